"""Prompts as a file: `prompts: my.yaml` among the options of a policy, `reward.judge.prompt: my.txt`.

Loading a configuration reads the file and stores its texts: a run folder is complete without the file, and a resumed
run uses its original wording. Paths are relative to the current folder. The policy defines the texts and their slots
(memory/parts/prompts.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from palimpsest.config.reward import JUDGE_PROMPTS, is_criteria_file
from palimpsest.config.schema import RunConfig
from palimpsest.config.yaml_text import first_line, read, refuse_unwritable
from palimpsest.errors import ConfigError
from palimpsest.files import NoRegularFile, read_regular

OPTION = "prompts"
MAX_BYTES = 1_000_000
"""Maximum size of a prompt file."""


def is_prompt_file(value: object) -> bool:
    """Return whether an option names a prompt file.

    >>> is_prompt_file("my.yaml"), is_prompt_file("short")
    (True, False)
    """
    return isinstance(value, str) and value.endswith((".yaml", ".yml"))


def read_prompt_file(path: str, key: str) -> dict[str, Any]:
    """The texts in a file, by name. Raises ConfigError that begins with `key`, which named it."""
    where = f"{key}={path}"
    try:
        values = read(_text(path, where, "palimpsest recipes show RECIPE --prompts prints an example"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML ({first_line(error)})") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{where}: expected texts by name, such as `read: ...`, got {type(values).__name__}")
    refuse_unwritable(values, "", where)
    return values


def _text(path: str, where: str, others: str) -> str:
    """Text of a file. Only regular files: reading a pipe or a device might never end. Raises ConfigError; `others`:
    what else to use."""
    try:
        content = read_regular(Path(path), MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{where}: longer than {MAX_BYTES:,} bytes, too long for prompts; use a file of a few texts"
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
    saved = {key: options.get(OPTION) for key, options in _options(stored.model_dump(mode="json"))} if stored else {}
    changed = False
    for key, options in _options(values):
        path = options.get(OPTION)
        if isinstance(path, str) and is_prompt_file(path):
            changed = True
            texts = saved.get(key)
            options[OPTION] = texts if isinstance(texts, dict) else read_prompt_file(path, f"{key}.{OPTION}")
    judge = values["reward"]["judge"]
    if judge is not None and is_criteria_file(judge["prompt"]):
        changed = True
        prompt = stored.reward.judge.prompt if stored and stored.reward.judge else judge["prompt"]
        judge["prompt"] = read_criteria(judge["prompt"], "reward.judge.prompt") if is_criteria_file(prompt) else prompt
    return RunConfig.model_validate(values) if changed else config


def read_criteria(path: str, key: str) -> str:
    """The text of a file of criteria for a judge. Raises ConfigError that begins with `key`, which named it."""
    where = f"{key}={path}"
    text = _text(path, where, f"shipped criteria are {', '.join(JUDGE_PROMPTS)}").strip()
    missing = [verdict for verdict in ("correct:", "partial:", "incorrect:") if verdict not in text]
    if missing:
        raise ConfigError(f"{where}: doesn't say what is {missing[0]} give a line for each verdict")
    return text


def _options(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of every policy of a configuration, by their key."""
    yield "policy.options", config["policy"]["options"]
    if config["train"]["variant"]:
        yield "train.variant.options", config["train"]["variant"]["options"]
    for kind in ("baselines", "trained_baselines"):
        for name, policy in config["evaluation"][kind].items():
            yield f"evaluation.{kind}.{name}.options", policy["options"]
