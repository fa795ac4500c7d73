"""README.md of an export: the model's training, its accuracy, how to load it.

Guaranteed: it states an accuracy only if the evaluated weights are the checkpoint's, by their fingerprint; it names
base model and license only if known, and no folder of the machine; text from files is escaped.
Not covered: the base model's license terms for derivatives.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from palimpsest.config.engine import SHIPPED
from palimpsest.config.load import recipe_names
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import IDENTITY, SUMMARY, Cell, read_identity
from palimpsest.evaluation.summary import Score
from palimpsest.files import read_regular
from palimpsest.memory.registry import evaluated
from palimpsest.models.model_folder import cached
from palimpsest.plugin_kinds import OBJECT
from palimpsest.plugins import plain
from palimpsest.provenance import installed, same_weights, weights_fingerprint
from palimpsest.report.axis_labels import axis_of
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.text.display_text import printable, visible

CARD = "README.md"
OLDEST = "4.57.6"
"""The oldest transformers in which exports are tested."""
_REPOSITORY = "https://github.com/palimpsest-rl/palimpsest"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_QUICKSTART = "evaluations"
_MOST_ROWS = 20
_MOST_BYTES = 64 << 20  # per file read for a card


def model_card(
    run: str,
    folder: Path,
    name: str,
    evaluations: Sequence[Path] = (),
    *,
    step: int | None = None,
    adapter: bool = False,
) -> str:
    """Markdown for the model in `folder`, of `run`; `evaluations`: folders of `palimpsest eval` outside the run's.
    Raises RunError for an evaluation of other weights."""
    config = load_config(run) if (Path(run) / CONFIG).is_file() else None
    base, license_name = _base(run if config is None else config.model.path)
    front = {
        "library_name": "peft" if adapter else "transformers",
        **({"base_model": base} if base else {}),
        **({"license": license_name} if license_name else {}),
        "tags": ["palimpsest", "memory-agent", "long-context", "reinforcement-learning"],
    }
    rows = list(_accuracies(Path(run), folder, evaluations))
    table = ["| data | accuracy | 95% interval | graded |", "|---|---|---|---|", *rows[:_MOST_ROWS]]
    shown = f", {_MOST_ROWS} of {len(rows)} sets" if len(rows) > _MOST_ROWS else ""
    lines = loading(printable(name), config, adapter=adapter)
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {_plain(name)}",
        _origin(config, step, base, license_name),
        f"## Accuracy of the checkpoint{shown}",
        "\n".join(table) if rows else "These weights were not evaluated by palimpsest.",
        "## Use",
        "\n".join(f"    {line}" for line in lines.values()),
    ]
    return "\n\n".join(sections) + "\n"


def _origin(config: RunConfig | None, step: int | None, base: str | None, license_name: str | None) -> str:
    versions = f"transformers {installed('transformers')}; merged exports are tested from {OLDEST} on"
    lines = [f"Written by [palimpsest]({_REPOSITORY}) with {versions}."]
    if config is not None:
        after = "" if step is None else f" for {step:,} steps"
        recipe, policy = _plain(Path(config.recipe).name), _plain(config.policy.name)
        lines += [f"Trained{after} by the recipe {recipe}, reward {_plain(config.reward.name)}, seed {config.seed}."]
        lines += [f"The memory policy {policy}, named below, builds prompts and memory; the weights do not contain it."]
    lines += [f"Base model: {_plain(base)}."] if base else []
    lines += [f"License of the base model: {_plain(license_name)}."] if license_name else []
    return "\n".join(lines)


def loading(name: str, config: RunConfig | None, *, adapter: bool = False) -> dict[str, str]:
    """Lines that load a model, by program; `name`: its folder or hub id; `config`: that of its run.

    >>> loading("my agent", None)["vLLM"]
    "vllm serve 'my agent'"
    """
    shell = shlex.quote(name)
    if adapter:
        lines = {"peft": f"peft.AutoPeftModelForCausalLM.from_pretrained({name!r})"}
    else:
        lines = {
            "transformers": f"transformers.AutoModelForCausalLM.from_pretrained({name!r})",
            "vLLM": f"vllm serve {shell}",
        }
    policy = None if config is None else config.policy
    if config is not None and config.environment is not None:  # no server has one
        recipe = config.recipe if config.recipe in recipe_names() else "RECIPE.yaml"
        return lines | {"palimpsest eval": f"palimpsest eval {shell} --recipe {recipe} --data FILE"}
    if policy is not None and policy.name.startswith(OBJECT):
        return lines | {"palimpsest": f"palimpsest.evaluate({name!r}, data, policy={plain(policy.name)})"}
    chosen = "" if policy is None else _as_options(evaluated(policy))
    return lines | {
        "palimpsest serve": f"palimpsest serve {shell}{chosen}",
        "palimpsest eval": f"palimpsest eval {shell} --data FILE{chosen}",
    }


def _as_options(policy: PolicyConfig) -> str:
    """Policy options that fit on a command line: no mappings, no files."""
    plain = {name: value for name, value in policy.options.items() if isinstance(value, bool | int | float)}
    names = {name: value for name, value in policy.options.items() if isinstance(value, str) and value.isidentifier()}
    options = {name: json.dumps(value) for name, value in plain.items()} | names
    settings = "".join(f" {shlex.quote(f'{name}={value}')}" for name, value in options.items())
    return f" --policy {shlex.quote(policy.name)}{settings}"


def _base(name: str) -> tuple[str | None, str | None]:
    """Hub id and license of the model that training started from, if known."""
    if name in SHIPPED:
        return None, "apache-2.0"  # the package's own
    on_hub = not Path(name).is_dir() and _HUB_ID.fullmatch(name) is not None
    folder = cached(name) if on_hub else Path(name)
    front: Any = None
    try:
        text = "" if folder is None else read_regular(folder / CARD, 1 << 20).decode("utf-8")
        front = yaml.safe_load(text.split("\n---", 1)[0].removeprefix("---")) if text.startswith("---\n") else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        pass  # no readable card
    base, terms = (front.get(key) if isinstance(front, dict) else None for key in ("base_model", "license"))
    return name if on_hub else base if isinstance(base, str) else None, terms if isinstance(terms, str) else None


def _accuracies(run: Path, folder: Path, requested: Sequence[Path]) -> Iterator[str]:
    """Table rows: the agent's figures of every evaluation of the weights in `folder`. Raises RunError."""
    weights = weights_fingerprint(str(folder))
    for evaluation in requested:
        if not (evaluation / SUMMARY).is_file():
            raise RunError(f"--evaluation {evaluation}: {SUMMARY} is missing; pass the --out of palimpsest eval")
        if not (same := same_weights(read_identity(evaluation), weights)):
            older = f"an earlier version recorded its weights in part; evaluate {folder} again"
            why = older if same is None else f"has other weights than {folder}; omit it"
            raise RunError(f"--evaluation {evaluation}: {why}")
    inside = sorted(path.parent for depth in ("*", "*/*", "*/*/*") for path in run.glob(f"{depth}/{IDENTITY}"))
    ours = [path for path in inside if same_weights(read_identity(path), weights)]
    if any(path.parent == run / _QUICKSTART / "after" for path in ours):
        ours.append(run / _QUICKSTART)
    for evaluation in dict.fromkeys((*ours, *requested)):
        if (evaluation / SUMMARY).is_file():
            try:
                yield from _rows(run, evaluation)
            except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                raise RunError(f"{evaluation / SUMMARY}: has no readable figures; restore or remove it") from None


def _rows(run: Path, evaluation: Path) -> Iterator[str]:
    summary = json.loads(read_regular(evaluation / SUMMARY, _MOST_BYTES))
    if evaluation != run / _QUICKSTART:
        for row in summary["evaluations"]:
            cell = Cell(row["set"].rpartition("/")[2], row["size"], row["unit"], row["player"])
            yield _row(row, cell.title)
        return
    config, run_summary = load_config(run), json.loads(read_regular(run / SUMMARY, _MOST_BYTES))
    words = axis_of(config)
    for row in summary[config.evaluation.agent].values():
        size = words.heading(row["size"], run_summary[f"training_{words.key}"])
        yield _row(row, f"{config.data.train_files}, {size}")


def _row(row: Mapping[str, Any], name: str) -> str:
    score = Score(**row["accuracy"])
    mean = "–" if score.mean is None else f"{score.mean:.1%}"
    interval = "–" if score.low is None or score.high is None else f"{score.low:.1%} to {score.high:.1%}"
    return f"| {_plain(name)} | {mean} | {interval} | {row['graded']:d} |"


def _plain(text: str) -> str:
    """Text on one line of Markdown, escaped.

    >>> _plain("a|b <b> [x](y)")
    'a\\\\|b \\\\<b\\\\> \\\\[x\\\\](y)'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", visible(text).replace("\n", " "))
