"""Load a recipe: YAML and overrides to one typed `RunConfig`; secrets are rejected.

    load_recipe("memagent-7b", ["train.max_steps=10", "credit.overlong=null", "data.curriculum.chunks=[1,2,4]"])
    load_recipe("memagent-7b", {"train.max_steps": 10, "credit": {"overlong": None}})

An override of `engine.name` or `sampler.name` drops the recipe's keys of another one, including `cluster`. An override
of `reward.name` with a custom reward drops the recipe's reward with its layers. A file as `data.train_files` drops the
curriculum of generated documents. An override of `train.batch_size` lowers the recipe's `train.num_minibatches` to it.
A warning names these keys.
Values follow YAML 1.2 where 1.1 surprises: `1e-6` is a number, `no` and `on` are text.

Prompts may be in a file: `prompts: my.yaml` among the options of a policy, `reward.judge.prompt: my.txt`. Loading
stores its texts: a run folder is complete without the file, and a resumed run uses its original wording. Paths are
relative to the current folder. The policy defines the texts and their slots (memory/parts/prompts.py).

Run folders, reports and trackers store the configuration, so it must not contain secrets: values under a key called
token, password, secret or API key, and addresses with a user or a password. The check includes options of custom
policies and tools. Recorded command lines mask such values.

Guaranteed: an unknown key is rejected under its full dotted name with the nearest known one; a wrong value is rejected
in one line with key, value and what is allowed; a secret is never shown; `parse_config(dump_config(c)) == c`.
Not covered: options of a memory policy, which are checked when it is built (plugin_options.py); a secret under another
key, or inside a longer text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from palimpsest.config.data import GENERATED
from palimpsest.config.engine import ALIKE, COPIES
from palimpsest.config.keys import explain, section_of
from palimpsest.config.reward import JUDGE_PROMPTS, REWARDS, is_criteria_file
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import Strict, leaves
from palimpsest.config.yaml_text import Dumper, read, refuse_unwritable, yaml_problem
from palimpsest.errors import ConfigError, nearest
from palimpsest.files import NoRegularFile, read_regular

# ---- Secrets -------------------------------------------------------------------------------------------------


_SECRET = re.compile(r"(?:.*_)?(?:token|password|passwd|secret|api_?key|access_key)", re.IGNORECASE)
_WITH_USER = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]*@", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/?#\s]*(?=@)")
_NAMED = [re.compile(rf"([\w.-]*\w)({sign})([^&\s,;}}]+)") for sign in ("=", r":\s*")]


def refuse_secrets(values: Any, source: str) -> None:
    """Raise ConfigError for the first secret in `values`; `source` names the configuration in messages."""
    for key, value in _texts(values, ""):
        name = key.rpartition(".")[2]
        if value.strip() and _SECRET.fullmatch(name):
            raise ConfigError(
                f"{source}: {key}: run folders and reports store the configuration, so it must not "
                f"contain secrets; use an environment variable and set its name under {name}_env"
            )
        if _WITH_USER.match(value.strip()):
            raise ConfigError(
                f"{source}: {key}: the address contains a user or a password; remove them, and name an environment "
                "variable for a token"
            )


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line's words with `***` for the values of secrets: after an option so called, after `name=` or
    `name:`, and for the user and password of an address.

    >>> without_secrets(["--api-key=abc", "--token", "t", "a.password=x", "http://h:1/?api_key=k&n=1", "--x-env", "K"])
    ['--api-key=***', '--token', '***', 'a.password=***', 'http://h:1/?api_key=***&n=1', '--x-env', 'K']
    >>> without_secrets(["judge={url: http://ann:pw@h, api_key: k}"])
    ['judge={url: http://***@h, api_key: ***}']
    """
    words, hidden = list[str](), False
    for argument in arguments:
        shown = _USER.sub("***", argument)
        for pattern in _NAMED:
            shown = pattern.sub(_masked, shown)
        words.append("***" if hidden else shown)
        hidden = argument.startswith("-") and _is_secret(argument)
    return words


def _masked(match: re.Match[str]) -> str:
    name, sign, value = match.groups()
    return f"{name}{sign}{'***' if _is_secret(name) else value}"


def _is_secret(name: str) -> bool:
    return _SECRET.fullmatch(name.rpartition(".")[2].lstrip("-").replace("-", "_")) is not None


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Dotted keys and their texts."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str):
        yield key, value


# ---- Recipes and overrides -----------------------------------------------------------------------------------


Overrides = Mapping[str, Any] | Sequence[str]
"""Keys to change: `a.b=c` texts whose values are YAML, or a mapping of dotted keys, or of sections, to values."""


EVALUATIONS = "eval/"
"""Begins the name of an evaluation recipe, a published protocol."""


def recipe_names(prefix: str = "") -> list[str]:
    """Names of the shipped training recipes; with `EVALUATIONS`, of the evaluation recipes."""
    return [prefix + name for name in shipped(f"recipes/{prefix}")]


def shipped(folder: str) -> list[str]:
    """Names of the YAML files in a folder of the package."""
    entries = (resources.files("palimpsest") / folder).iterdir()
    return sorted(entry.name[: -len(".yaml")] for entry in entries if entry.name.endswith(".yaml"))


PRETRAINED = "memagent-smollm2"
"""Quickstart of a pretrained model, on files."""


def quickstarts() -> dict[str, str]:
    """Recipe of each quickstart by its name on the command line."""
    found = {name.removesuffix("-quickstart"): name for name in recipe_names() if name.endswith("-quickstart")}
    return {**found, PRETRAINED: PRETRAINED}


def recipe_text(name_or_path: str) -> str:
    """The YAML of a shipped recipe, or of a file.

    Raises ConfigError if there is neither.
    """
    names = [*recipe_names(), *recipe_names(EVALUATIONS)]
    if name_or_path in names:
        return (resources.files("palimpsest") / "recipes" / f"{name_or_path}.yaml").read_text("utf-8")
    path = Path(name_or_path)
    if (path / "config.yaml").is_file():
        raise ConfigError(
            f"recipe {path}: a run folder; use its configuration {path / 'config.yaml'} as a recipe, or resume it with "
            f"palimpsest train --resume {path}"
        )
    if not path.is_file():
        if path.suffix in (".yaml", ".yml"):
            raise ConfigError(f"recipe {path}: no such file{nearest(path.stem, names)}")
        hint = nearest(name_or_path, names) or f"; shipped recipes: {', '.join(names)}"
        raise ConfigError(f"recipe {name_or_path}: neither a shipped recipe nor a YAML file{hint}")
    if path.suffix == ".sh":
        raise ConfigError(f"recipe {path}: a shell script; write a recipe with palimpsest recipes import {path}")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: not UTF-8 text ({error})") from None


def load_recipe(name_or_path: str | Path, overrides: Overrides = (), *, read_files: bool = True) -> RunConfig:
    """The configuration of a shipped recipe or a YAML file with overrides applied in order.

    Unless `read_files` is False, texts replace a prompt file (`with_texts`).
    """
    if not isinstance(name_or_path, str | Path):
        kind = type(name_or_path).__name__
        raise ConfigError(f"recipe: expected a name or a YAML file, got {kind}; pass changes as overrides")
    name = str(name_or_path)
    return parse_config(recipe_text(name), name=name, overrides=overrides, read_files=read_files)


def parse_config(text: str, *, name: str = "config", overrides: Overrides = (), read_files: bool = True) -> RunConfig:
    """`load_recipe` for YAML text; error messages call it `name`."""
    values = sections_of(text, name)
    if foreign := {"actor_rollout_ref", "algorithm", "trainer"} & values.keys():
        raise ConfigError(
            f"recipe {name}: {min(foreign)} is a section of verl; write a recipe with palimpsest recipes import {name}"
        )
    texts, changes = {}, list(split_overrides(overrides))
    before = {} if RunConfig.model_fields.keys() <= values.keys() else dict(leaves(values))  # {}: it was dumped
    values.setdefault("recipe", Path(name).stem)
    _drop_replaced(values, [(key, value) for key, value, _ in changes])
    left = dict(leaves(values))
    given = {key for key, _, _ in changes}
    if replaced := [key for key, value in before.items() if left.get(key, ...) != value and key not in given]:
        warnings.warn(f"recipe {name}: the overrides replace its {', '.join(replaced)}", stacklevel=3)
    for key, value, shown in changes:
        put(values, key, value)
        texts[key] = shown
    refuse_secrets(values, name)
    refuse_unwritable(values, "", name)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, source=name, overrides=texts)) from None
    return with_texts(config) if read_files else config


def dump_config(config: Strict) -> str:
    """YAML from which `parse_config` or `load_league` makes the same configuration again."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)


def split_override(override: str) -> tuple[str, Any]:
    """Dotted key and YAML value of one override.

    >>> split_override("train.max_steps=10")
    ('train.max_steps', 10)
    >>> split_override("optim.learning_rate=1e-6")
    ('optim.learning_rate', 1e-06)
    >>> split_override("data.curriculum.chunks=[1, 2]")
    ('data.curriculum.chunks', [1, 2])
    """
    key, equals, value = override.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError(f"override {override}: expected key=value with a dotted key, e.g. train.max_steps=10")
    try:
        return key, read(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override}: the value is not YAML ({yaml_problem(error)})") from None


def split_overrides(overrides: Overrides) -> Iterator[tuple[str, Any, str]]:
    """Dotted key, value, and how a message quotes it, of each override.

    >>> list(split_overrides(["train.max_steps=10"]))
    [('train.max_steps', 10, 'train.max_steps=10')]
    >>> list(split_overrides({"train": {"max_steps": 10}, "data.corpus": None}))
    [('train.max_steps', 10, 'train.max_steps=10'), ('data.corpus', None, 'data.corpus=None')]
    """
    if not isinstance(overrides, Mapping | Sequence) or isinstance(overrides, str):
        raise ConfigError(f"overrides {overrides}: give a mapping or a list of texts, e.g. ['train.max_steps=10']")
    if isinstance(overrides, Mapping):
        yield from _leaves(overrides, "")
        return
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(f"override {override!r}: expected a text such as 'train.max_steps=10', or give a mapping")
        key, value = split_override(override)
        yield from ((name, leaf, override) for name, leaf, _ in _leaves({key: value}, ""))


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    """The values of a mapping whose sections may be mappings themselves; an empty one for a section stays."""
    for name, value in values.items():
        if not isinstance(name, str) or not all(name.split(".")):
            raise ConfigError(f"override {prefix}{name!r}: expected a dotted key, e.g. 'train.max_steps'")
        key = prefix + name
        if isinstance(value, Mapping) and value and section_of(key) is not None:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, str(value) if isinstance(value, Path) else value, f"{key}={value}"


def sections_of(
    text: str, name: str, kind: str = "recipe", expected: str = "sections such as `train:`"
) -> dict[str, Any]:
    """The sections of a YAML file, a recipe's or of another `kind`, unchecked. Raises ConfigError."""
    try:
        values = read(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{kind} {name}: not valid YAML ({yaml_problem(error)})") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{kind} {name}: expected {expected} at the top, got {type(values).__name__}")
    if wrong := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"{kind} {name}: the key {wrong[0]!r:.60} is not the name of a section; remove it")
    return values


def _drop_replaced(values: dict[str, Any], overrides: Sequence[tuple[str, Any]]) -> None:
    """Drop or change the recipe's keys that an override leaves without a meaning."""
    before, engine = _name(values.get("engine")), _named(overrides, "engine")
    if engine not in (None, before):
        if not {before, engine} <= set(ALIKE):
            values["engine"] = {}
        if before == "ray":
            values.pop("cluster", None)
    sampler, cluster = values.get("sampler"), values.get("cluster")
    if _named(overrides, "sampler") not in (None, _name(sampler)):
        if isinstance(sampler, dict) and "name" in sampler:  # without one, the override completes the section
            values["sampler"] = {}
        if isinstance(cluster, dict):  # copies of the embedded sampler
            values["cluster"] = {key: value for key, value in cluster.items() if key not in COPIES}
    _leave_reward(values, overrides)
    _leave_curriculum(values, overrides)
    _fit_minibatches(values, overrides)


def _fit_minibatches(values: dict[str, Any], overrides: Sequence[tuple[str, Any]]) -> None:
    """A smaller batch has fewer mini-batches, as each needs a whole group."""
    train, size = values.get("train"), dict(overrides).get("train.batch_size")
    if isinstance(train, dict) and isinstance(size, int) and isinstance(parts := train.get("num_minibatches"), int):
        values["train"] = {**train, "num_minibatches": max(1, min(parts, size))}


def _leave_reward(values: dict[str, Any], overrides: Sequence[tuple[str, Any]]) -> None:
    """Drop layers, turn rewards and state mix when a custom reward replaces a shipped one, unless overridden."""
    reward, name = values.get("reward"), _named(overrides, "reward")
    if name is None or not isinstance(reward, dict):
        return
    if name not in REWARDS and str(reward.get("name", "boxed")) in REWARDS:
        values["reward"] = {key: value for key, value in reward.items() if key == "timeout_s"}
        credit = values.get("credit")
        named = any(key.startswith(("credit", "reward.state", "reward.layers")) for key, _ in overrides)
        if isinstance(credit, dict) and credit.get("adv_estimator") == "state_mix" and not named:
            options = credit.get("options") or {}
            rule = {"adv_estimator": options.get("outcome", "mean"), "options": options.get("outcome_options", {})}
            values["credit"] = {**credit, **rule}
    elif reward.get("name") == "final_answer" and name != "final_answer":
        values["reward"] = {key: value for key, value in reward.items() if key not in _OF_FINAL_ANSWER}


def _leave_curriculum(values: dict[str, Any], overrides: Sequence[tuple[str, Any]]) -> None:
    """Drop the curriculum for problems other than synthetic documents: their sizes are fixed."""
    data, source = values.get("data"), dict(overrides).get("data.train_files")
    if (
        source in (None, "synthetic")
        or not isinstance(data, dict)
        or data.get("train_files", "synthetic") not in GENERATED
    ):
        return
    values["data"] = {key: value for key, value in data.items() if key != "curriculum"}


_OF_FINAL_ANSWER = ("final_answer", "judge")
"""Keys of `reward` that only `reward.name=final_answer` reads."""


def _name(section: Any) -> str:
    return str(section.get("name", "embedded")) if isinstance(section, dict) else "embedded"


def _named(overrides: Sequence[tuple[str, Any]], section: str) -> str | None:
    """Name of an engine, sampler or reward in the last override; None without one."""
    for key, value in reversed(overrides):
        if key == f"{section}.name":
            return str(value)
        if key == section and isinstance(value, dict) and "name" in value:
            return str(value["name"])
    return None


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; creates missing or null sections."""
    *sections, leaf = key.split(".")
    node = values
    for depth, section in enumerate(sections):
        child = node.get(section)
        if child is None:
            child = node[section] = {}
        if not isinstance(child, dict):
            name = ".".join(sections[: depth + 1])
            raise ConfigError(f"override {key}={value}: {name} is a value ({child!r}), not a section")
        node[section] = node = dict(child)  # a copy: don't change other uses of a YAML alias
    if isinstance(value, dict) and isinstance(node.get(leaf), dict) and section_of(key) is not None:
        node[leaf] = {**node[leaf], **value}  # {a: 1} for a section changes what it names and keeps the rest
    else:
        node[leaf] = value


# ---- Prompts in files ----------------------------------------------------------------------------------------


PROMPTS = "prompts"
MAX_PROMPT_BYTES = 1_000_000
"""Maximum size of a prompt file."""


def is_prompt_file(value: object) -> bool:
    """Return whether an option names a prompt file.

    >>> is_prompt_file("my.yaml"), is_prompt_file("short")
    (True, False)
    """
    return isinstance(value, str) and value.endswith((".yaml", ".yml"))


_MAKE_PROMPTS = (
    "palimpsest recipes show RECIPE --prompts prints an example, palimpsest recipes import CHECKOUT reads an agent's"
)


def read_prompt_file(path: str, key: str) -> dict[str, Any]:
    """The texts in a file, by name. Raises ConfigError that begins with `key`, which named it."""
    where = f"{key}={path}"
    try:
        values = read(_prompt_text(path, where, _MAKE_PROMPTS))
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML ({yaml_problem(error)})") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{where}: expected texts by name, such as `read: ...`, got {type(values).__name__}")
    refuse_unwritable(values, "", where)
    return values


def _prompt_text(path: str, where: str, others: str) -> str:
    """Text of a file. Only regular files: reading a pipe or a device might never end. Raises ConfigError; `others`:
    what else to use."""
    try:
        content = read_regular(Path(path), MAX_PROMPT_BYTES + 1)
        if len(content) > MAX_PROMPT_BYTES:
            raise ConfigError(
                f"{where}: longer than {MAX_PROMPT_BYTES:,} bytes, too long for prompts; use a file of a few texts"
            )
        return content.decode("utf-8-sig")
    except NoRegularFile:
        raise ConfigError(f"{where}: not a regular file; use a YAML file of texts") from None
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such file; {others}") from None
    except (OSError, ValueError) as error:  # a ValueError: no UTF-8, or no name a file can have
        raise ConfigError(f"{where}: not UTF-8 text ({type(error).__name__})") from None


def with_texts(config: RunConfig, stored: RunConfig | None = None) -> RunConfig:
    """`config` with texts instead of prompt files: for the policy, its variant and its baselines.

    `stored`: configuration of a resumed run; its texts win over the current file.
    """
    values = config.model_dump(mode="json")
    saved = (
        {key: options.get(PROMPTS) for key, options in _policy_options(stored.model_dump(mode="json"))}
        if stored
        else {}
    )
    changed = False
    for key, options in _policy_options(values):
        path = options.get(PROMPTS)
        if isinstance(path, str) and is_prompt_file(path):
            changed = True
            texts = saved.get(key)
            options[PROMPTS] = texts if isinstance(texts, dict) else read_prompt_file(path, f"{key}.{PROMPTS}")
    judge = values["reward"]["judge"]
    if judge is not None and is_criteria_file(judge["prompt"]):
        changed = True
        prompt = stored.reward.judge.prompt if stored and stored.reward.judge else judge["prompt"]
        judge["prompt"] = read_criteria(judge["prompt"], "reward.judge.prompt") if is_criteria_file(prompt) else prompt
    return RunConfig.model_validate(values) if changed else config


def read_criteria(path: str, key: str) -> str:
    """The text of a file of criteria for a judge. Raises ConfigError that begins with `key`, which named it."""
    where = f"{key}={path}"
    text = _prompt_text(path, where, f"shipped criteria are {', '.join(JUDGE_PROMPTS)}").strip()
    missing = [verdict for verdict in ("correct:", "partial:", "incorrect:") if verdict not in text]
    if missing:
        raise ConfigError(f"{where}: doesn't say what is {missing[0]} give a line for each verdict")
    return text


def _policy_options(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of every policy of a configuration, by their key."""
    yield "policy.options", config["policy"]["options"]
    if config["train"]["variant"]:
        yield "train.variant.options", config["train"]["variant"]["options"]
    for kind in ("baselines", "trained_baselines"):
        for name, policy in config["evaluation"][kind].items():
            yield f"evaluation.{kind}.{name}.options", policy["options"]
