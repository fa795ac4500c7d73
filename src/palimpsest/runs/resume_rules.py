"""Resume rules: configuration keys that may change, and the commands that start and resume a run.

allowed   past steps do not depend on the key
warned    later steps differ; the run continues, and events.jsonl records the change; also the source of
          policy.options.tools.search from one address to another
refused   all keys outside `_RULES` (seed, policy, data, reward, credit, loss, sampling, sizes of a step...):
          the result would be another experiment under the same name

`train.max_steps` is warned instead of allowed if the learning-rate schedule depends on it, or if batches are collected
ahead: a run collects none beyond its last step, so more steps start with samples of newer weights.

The first line of the run's events.jsonl contains the command. A run with lost or malformed events counts as one of
`palimpsest train`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from palimpsest.config.reward import JUDGE_OPERATION
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import leaves
from palimpsest.errors import ConfigError
from palimpsest.provenance import MADE_WITH
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.text.json_text import storable

Verdict = Literal["allowed", "warned", "refused"]

_SEARCH = "policy.options.tools.search"
_ADDRESSES = re.compile(rf"{re.escape(_SEARCH)}\.source|roles\..+\.url|environment\.options\.url")
_A_SERVER = "(a server)"
"""Replaces the address of a server, which does not define the experiment."""

COMPUTED = "tokens/computed_total"
"""Metric that `train.max_tokens` bounds."""

_TRAIN = (
    *("max_steps", "max_tokens", "save_steps", "save_total_limit"),
    *("eval_steps", "eval_on_start", "metric_for_best_model"),
)
_RULES: Mapping[str, Verdict] = {
    **dict.fromkeys(("recipe", "logging", "evaluation", "train.record_steps"), "allowed"),
    **dict.fromkeys((f"train.{key}" for key in _TRAIN), "allowed"),
    **dict.fromkeys(("engine", "cluster", "sampler", "optim", "eval_sampling", "data.val_files"), "warned"),
    **dict.fromkeys(("model.device", "model.gradient_checkpointing", "reward.timeout_s"), "warned"),
    **dict.fromkeys(("train.episode_timeout_s", "train.eval_samples", "evaluation.problems"), "warned"),
    "environment.timeout_s": "warned",
    **dict.fromkeys((f"reward.judge.{key}" for key in JUDGE_OPERATION), "warned"),
    **dict.fromkeys((f"{_SEARCH}.{key}" for key in ("attempts", "timeout_s", "token_env")), "warned"),
}


@dataclass(frozen=True, slots=True)
class FieldChange:
    key: str
    old: Any
    new: Any
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r}"


def changes(old: RunConfig, new: RunConfig) -> list[FieldChange]:
    """Every field in which the two differ, in the order of the schema, with its verdict.

    >>> first = RunConfig()
    >>> [str(c) for c in changes(first, first.model_copy(update={"seed": 7}))]
    ['seed: 0 -> 7']
    """
    before, after = _flat(old), _flat(new)
    keys = list(dict.fromkeys([*before, *after]))
    steps_matter = old.optim.lr_scheduler_type != "constant" or old.train.max_off_policy_steps > 0
    return [
        FieldChange(
            key, before.get(key), after.get(key), _verdict(key, (before.get(key), after.get(key)), steps_matter)
        )
        for key in keys
        if before.get(key) != after.get(key)
    ]


def identity(config: RunConfig) -> str:
    """SHA-256 over the fields that must not change in a run: equal for all configurations it may resume with."""
    fixed = {key: _meant(key, value) for key, value in _flat(config).items() if _verdict(key) == "refused"}
    return hashlib.sha256(orjson.dumps(storable(fixed, []), option=orjson.OPT_SORT_KEYS)).hexdigest()


def _verdict(key: str, values: tuple[Any, Any] | None = None, steps_matter: bool = False) -> Verdict:
    if key == "train.max_steps" and steps_matter:
        return "warned"
    if values and _meant(key, values[0]) == _meant(key, values[1]):
        return "warned"
    names = key.split(".")
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((_RULES[prefix] for prefix in prefixes if prefix in _RULES), "refused")


def _meant(key: str, value: Any) -> Any:
    """`value`, with one text for all addresses of servers."""
    is_address = isinstance(value, str) and value.startswith(("http://", "https://"))
    return _A_SERVER if is_address and _ADDRESSES.fullmatch(key) else value


def _flat(config: RunConfig) -> dict[str, Any]:
    return dict(leaves(config.model_dump(mode="json")))


# ---- Commands that start and resume a run --------------------------------------------------------------------


EVENTS = "events.jsonl"
STARTED = "started"
CONTINUED = "continued"
"""Event of a process that resumes a run."""
COMMANDS = ("train", "quickstart", "sft")
"""Commands of `palimpsest` that start a run."""

GIVEN = "given"
"""Key of `RunOrigin.detail` that lists the arguments with objects in a call from Python."""


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Command that started a run, besides its configuration."""

    command: str = "train"
    """One of `COMMANDS`."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """JSON of the command's arguments outside the configuration."""


def origin_of(run: str | os.PathLike[str]) -> RunOrigin:
    """Origin recorded at the start of the run."""
    first = next((row for row in read_rows(Path(run) / EVENTS) if row.get("kind") == STARTED), {})
    command, detail = first.get("command", "train"), first.get("detail", {})
    return RunOrigin(command, detail) if command in COMMANDS and isinstance(detail, dict) else RunOrigin()


def made_with(run: str | os.PathLike[str]) -> Mapping[str, Any]:
    """`provenance` of the last process of the run; empty for a run of an earlier version."""
    rows = (row.get(MADE_WITH) for row in reversed(read_rows(Path(run) / EVENTS)))
    return next((made for made in rows if isinstance(made, dict)), {})


def resume_command(run: str | os.PathLike[str], **changes: int) -> str:
    """Command line that resumes the run, with `changes` to keys of `train`. For a run with objects, the call from
    Python.

    >>> resume_command("runs/my first", max_steps=40)
    "palimpsest train --resume 'runs/my first' train.max_steps=40"
    """
    overrides = {f"train.{key}": value for key, value in changes.items()}
    origin = origin_of(run)
    given = origin.detail.get(GIVEN)
    words = given if isinstance(given, list) else []
    if names := [word for word in words if isinstance(word, str) and word.isidentifier()]:  # others could be code
        objects = ", ".join(f"{name}=..." for name in names)
        more = f", overrides={overrides!r}" if overrides else ""
        return f"palimpsest.{origin.command}(resume={os.fspath(run)!r}, {objects}{more})"
    typed = [shlex.quote(os.fspath(run)), *(f"{key}={value}" for key, value in overrides.items())]
    return f"palimpsest {origin.command} --resume {' '.join(typed)}"


def reached(config: RunConfig, step: int, rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if `step` is the last of a run with these metrics: `train.max_steps`, or the one with `max_tokens`.

    >>> budget = RunConfig.model_validate({"train": {"max_tokens": 50}})
    >>> [reached(budget, 2, [{"step": 2, "tokens/computed_total": total}]) for total in (49.0, 50.0)]
    [False, True]
    """
    most, computed = config.train.max_tokens, (row.get(COMPUTED, 0) for row in rows if row.get("step") == step)
    return step >= config.train.max_steps or (most is not None and any(total >= most for total in computed))


def longer(config: RunConfig, done: int) -> dict[str, int]:
    """Changes to keys of `train` with which a finished run of `done` steps trains on.

    >>> longer(RunConfig(), 100)
    {'max_steps': 200}
    """
    steps, tokens = config.train.max_steps, config.train.max_tokens
    doubled = {"max_steps": steps if done >= steps else None, "max_tokens": tokens}
    return {key: 2 * value for key, value in doubled.items() if value is not None}


def command_of_whole(run: Path) -> str:
    """`resume_command`; for a cold start, or a run of a quickstart's baseline, that of the run around it."""
    outer = run.parent
    inner = (outer / EVENTS).is_file() and (run.name == "cold-start" or origin_of(outer).command == "quickstart")
    return resume_command(outer if inner else run)


def how_to_resume(run: str | os.PathLike[str]) -> str:
    """`resume_command` and its effect: a run, or its cold start, without a checkpoint starts over."""
    does = "resumes from the newest checkpoint" if has_checkpoint(run) else "starts over: it has no checkpoint"
    return f"{resume_command(run)} {does}"


def has_checkpoint(run: str | os.PathLike[str]) -> bool:
    """True if a run, or its cold start, has a checkpoint."""
    return any(checkpoint_paths(folder / CHECKPOINTS) for folder in (Path(run), Path(run) / "cold-start"))


# ---- Source of the episodes to imitate -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Imitated:
    records: Path | None = None
    """A run, a folder of records, one record file, or a file of questions that name their evidence."""
    min_grade: float | None = None
    """Lowest grade of records; None: all."""
    per_problem: int | None = None
    """Records per problem, best first."""
    data: Path | None = None
    """Conversations with tool calls."""
    memory_first: bool = False
    """Write a prune's memory before its ids, in conversations."""
    drop_too_long: bool = False
    """Skip conversations that exceed the context."""

    def to_json(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Imitated:
        """Inverse of `to_json`. Raises ConfigError for other values.

        >>> asked = Imitated(Path("runs/first"), min_grade=0.5)
        >>> Imitated.from_json(asked.to_json()) == asked
        True
        """
        try:
            imitated = TypeAdapter(cls).validate_python(dict(row))
        except ValidationError:
            imitated = cls()
        if (imitated.records is None) == (imitated.data is None):
            raise ConfigError("the run's events.jsonl lacks the source of its episodes: set --from or --data again")
        return imitated
