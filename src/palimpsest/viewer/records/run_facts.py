"""Facts about a run, an evaluation or a file as a whole: status, configuration, progress.

Guaranteed: a configuration of another version, a damaged summary or a missing folder reduces the facts and adds a
message to `trouble`; it is never an error.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from palimpsest.config.section import leaves
from palimpsest.config.yaml_text import read, yaml_problem
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.evaluation.sample_log import IDENTITY, REQUESTED, SAMPLES, SUMMARY
from palimpsest.files import read_regular
from palimpsest.runs.jsonl_rows import is_number, whole, with_number
from palimpsest.runs.resume_rules import EVENTS, resume_command
from palimpsest.runs.run_folder import CONFIG, METRICS, TIMINGS, TRAJECTORIES
from palimpsest.viewer.records.alarms import Alarm, Watched, alarms, mean_of, step_seconds
from palimpsest.viewer.records.run_status import Row, RowFiles, Status, status_of_run
from palimpsest.viewer.records.sources import Source, SourceKind, gone, last_change, leads_out, updated

REWARD = "reward/mean"
_DEPTH, _VALUES = 32, 20_000
"""Maximum depth and values of a displayed configuration."""
_MOST_BYTES = {".json": 4 << 20, ".yaml": 256 << 10}
"""Maximum file size by suffix: YAML parses at about 1 MB/s."""
_READ = (CONFIG, METRICS, TIMINGS, EVENTS, TRAJECTORIES, IDENTITY, SAMPLES, REQUESTED, SUMMARY, EPISODES)
_ALIVE_SECONDS = 120.0
"""An evaluation without a summary counts as running if its log grew within this time."""


class RunFacts:
    """Facts about sources, with cached rows. Thread-safe."""

    def __init__(self) -> None:
        self.files = RowFiles()
        self._configs: dict[Path, tuple[int, dict[str, Any], str | None]] = {}
        self._lock = threading.Lock()

    def row(self, source: Source) -> dict[str, Any]:
        """A row in the list of runs."""
        facts = {
            "key": source.key,
            "kind": source.kind,
            "name": source.name,
            "updated": updated(source),
            "accuracy": _accuracy(source) if source.kind is SourceKind.EVALUATION else [],
            **dict.fromkeys(("alarm", "recipe", "step", "steps", "reward_now")),
            "reward": [],
        }
        if source.kind is not SourceKind.RUN:
            return {**facts, "status": _status_of_files(source)}
        metrics, config = self.files.rows(source.path / METRICS), self.config(source)
        worst = next((alarm for alarm in self.alarms(source) if alarm.severity != "advice"), None)
        return {
            **facts,
            "alarm": None if worst is None else {"severity": worst.severity, "key": worst.key, "text": worst.text},
            "status": self.status(source),
            "recipe": config.get("recipe"),
            "step": whole(metrics[-1], "step", 0) if metrics else 0,
            "steps": steps_of(config),
            "reward": spark(metrics, REWARD),
            "reward_now": next((row[REWARD] for row in reversed(metrics) if is_number(row.get(REWARD))), None),
        }

    def all(self, source: Source) -> dict[str, Any]:
        """All facts about a source."""
        if not source.path.exists():
            raise gone(source)
        row = self.row(source)
        config, trouble = self._configured(source)
        trouble = "; ".join(text for text in (trouble, _linked_out(source)) if text) or None
        facts = {**row, "path": str(source.path), "config": dict(leaves(config)), "trouble": trouble}
        facts |= {"model": self.model(source), "policies": self.policies(source)}
        facts["summary"] = read_object(source.path / SUMMARY) if source.path.is_dir() else None
        if source.kind is not SourceKind.RUN:
            return facts
        timings = self.files.rows(source.path / TIMINGS)
        return {
            **facts,
            "metrics": names_of(self.files.rows(source.path / METRICS)),
            "seconds_left": seconds_left(timings, row["step"], row["steps"]),
        }

    def alarms(self, source: Source) -> list[Alarm]:
        timings = self.files.rows(source.path / TIMINGS)
        status = self.status(source)
        return alarms(
            Watched(
                self.files.rows(source.path / METRICS),
                timings,
                status,
                last_change([source.path / METRICS, source.path / EVENTS]),
                resume_command(source.path) if status is Status.DEAD else "",
                dict(leaves(self.config(source))),
            )
        )

    def status(self, source: Source) -> Status:
        steps = steps_of(self.config(source))
        rows = [self.files.rows(source.path / name) for name in (METRICS, EVENTS)]
        return status_of_run(source.path, rows[0], rows[1], steps)

    def config(self, source: Source) -> dict[str, Any]:
        """A run's configuration, or an evaluation's identity, as stored; empty if unreadable."""
        return self._configured(source)[0]

    def model(self, source: Source) -> str | None:
        """Folder or hub id of the model; None if no file names it."""
        if source.kind is SourceKind.EVALUATION:
            return _text(_summary_of(source).get("model"))
        model = self.config(source).get("model")
        return _text(model.get("path")) if isinstance(model, dict) else None

    def policies(self, source: Source) -> tuple[str, ...]:
        """Names of the evaluated or trained memory policies; empty if no file names one."""
        named = self.config(source).get("policies") if source.kind is SourceKind.EVALUATION else None
        if isinstance(named, dict) and named:
            return tuple(map(str, named))
        policy = (_summary_of(source) if source.kind is SourceKind.EVALUATION else self.config(source)).get("policy")
        name = policy.get("name") if isinstance(policy, dict) else None
        return (name,) if isinstance(name, str) else ()

    def _configured(self, source: Source) -> tuple[dict[str, Any], str | None]:
        path = source.path / (CONFIG if source.kind is SourceKind.RUN else IDENTITY)
        if leads_out(source.path, path):
            return {}, None  # `_linked_out` names it
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return {}, None if source.kind is not SourceKind.RUN else f"{path.name} isn't there"
        with self._lock:
            if self._configs.get(path, (None,))[0] != changed:
                self._configs[path] = changed, *_config_in(path)
            return self._configs[path][1:]

    def rows(self, source: Source, name: str, since: int, keys: Collection[str] | None = None) -> dict[str, Any]:
        """Rows of a run's `metrics`, `timings` or `events` after a step or after a number of events."""
        if not source.path.exists():
            raise gone(source)
        path = source.path / {"metrics": METRICS, "timings": TIMINGS, "events": EVENTS}[name]
        rows = self.files.rows(path)
        new = events_since(rows, since) if name == "events" else rows_since(rows, since, keys)
        return {**new, "file": self.files.identity(path)}


def _linked_out(source: Source) -> str | None:
    if source.kind is SourceKind.RECORD:
        return None
    names = [name for name in _READ if leads_out(source.path, source.path / name)]
    return f"not shown, because they link out of the folder: {', '.join(names)}" if names else None


def steps_of(config: Mapping[str, Any]) -> int | None:
    """Configured number of steps; None if unknown."""
    train = config.get("train")
    steps = train.get("max_steps") if isinstance(train, dict) else None
    return steps if type(steps) is int else None


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object in a file; None if it is missing, or if a link leads out of the file's folder."""
    try:
        value = None if leads_out(path.parent, path) else orjson.loads(read_regular(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _summary_of(source: Source) -> dict[str, Any]:
    return read_object(source.path / SUMMARY) or {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _accuracy(source: Source) -> list[float]:
    rows = (read_object(source.path / SUMMARY) or {}).get("evaluations")
    scores = [row.get("accuracy") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [float(part["mean"]) for part in scores if isinstance(part, dict) and is_number(part.get("mean"))]


def _status_of_files(source: Source) -> Status:
    if not source.path.exists():
        return Status.GONE
    if source.kind is SourceKind.RECORD:
        return Status.FILE
    if (source.path / SUMMARY).is_file():
        return Status.FINISHED
    changed = last_change([source.path / SAMPLES]) or 0.0
    return Status.RUNNING if time.time() - changed < _ALIVE_SECONDS else Status.STOPPED


def _config_in(path: Path) -> tuple[dict[str, Any], str | None]:
    most = _MOST_BYTES[path.suffix]
    try:
        text = read_regular(path, most + 1)
        if len(text) > most:
            return {}, f"{path.name} is too large to show: more than {most >> 10:,} KiB"
        values = orjson.loads(text) if path.suffix == ".json" else read(text.decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join((yaml_problem(error) if isinstance(error, yaml.YAMLError) else str(error)).split())
        return {}, f"{path.name} is unreadable: {reason[:200] or type(error).__name__}"
    if not isinstance(values, dict):
        return {}, f"{path.name} is unreadable: it contains no keys"
    if not _is_bounded(values):
        limits = f"{_DEPTH} levels or {_VALUES:,} values with expanded aliases"
        return {}, f"{path.name} is too large to show: more than {limits}"
    return values, None


def _is_bounded(value: object) -> bool:
    """True if a value has few levels and values; each use of an alias counts, and a recursive alias never ends."""
    level, count = list[object]([value]), 0
    for _ in range(_DEPTH):
        inner = list[object]()
        for node in level:
            count += 1
            inner += node.values() if isinstance(node, dict) else node if isinstance(node, list | set | tuple) else ()
            if count + len(inner) > _VALUES:
                return False
        if not (level := inner):
            return True
    return False


# ---- A run's rows as the page asks for them ------------------------------------------------------------------


SPARK = 60


def rows_since(rows: Sequence[Row], since: int, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Rows of steps after `since`, restricted to `keys` if set; `next` is the next call's `since`.

    >>> rows_since([{"step": 1, "a": 2.0, "b": 0.0}, {"step": 2, "a": 3.0}], 1, ["a"])
    {'rows': [{'step': 2, 'a': 3.0}], 'next': 2, 'last': 2}
    """
    steps = [whole(row, "step", -1) for row in rows]
    fresh = [row for row, step in zip(rows, steps, strict=True) if step > since]
    last = max(steps, default=-1)
    return {"rows": [_chosen(row, keys) for row in fresh], "next": max(last, since), "last": last}


def events_since(rows: Sequence[Row], since: int) -> dict[str, Any]:
    """Events after the first `since`, with their number in the file.

    >>> events_since([{"kind": "started"}, {"kind": "saved"}], 1)
    {'rows': [{'number': 1, 'kind': 'saved'}], 'next': 2, 'last': 2}
    """
    fresh = [{"number": number, **row} for number, row in enumerate(rows) if number >= since]
    return {"rows": fresh, "next": len(rows), "last": len(rows)}


def spark(rows: Sequence[Row], key: str, points: int = SPARK) -> list[float]:
    """`key` over the run, as the means of at most `points` pieces.

    >>> spark([{"step": 1, "r": 0.0}, {"step": 2, "r": 1.0}, {"step": 3, "r": 3.0}, {"step": 4, "r": 5.0}], "r", 2)
    [0.5, 4.0]
    """
    values = [float(row[key]) for row in with_number(rows, key)]
    size = math.ceil(len(values) / points) or 1
    pieces = [values[start : start + size] for start in range(0, len(values), size)]
    return [mean_of(piece) for piece in pieces]


def names_of(rows: Sequence[Row]) -> list[str]:
    """Names of all numeric metrics, sorted."""
    return sorted({name for row in rows for name, value in row.items() if name != "step" and is_number(value)})


def seconds_left(timings: Sequence[Row], done: int, steps: int | None) -> float | None:
    """Estimated time of the remaining steps at the pace of the last twenty; None if unknown."""
    paces = [pace for pace in map(step_seconds, timings[-20:]) if pace > 0]
    if steps is None or not paces or done >= steps:
        return None
    return (steps - done) * sum(paces) / len(paces)


def _chosen(row: Mapping[str, Any], keys: Collection[str] | None) -> dict[str, Any]:
    return dict(row) if keys is None else {key: row[key] for key in ("step", *keys) if key in row}
