"""Status of a run: its lock, its process, and the rows of its .jsonl files as they grow; and what is wrong with it.

The viewer reads the text of the lock, which names the holder, and never tries to take it: even a short attempt can make
a trainer that opens the folder at that moment believe it is in use. A holder that ended cleanly leaves the text empty.
`THRESHOLDS` says when alarms are raised. Means are over the last `WINDOW` steps that have the metric; an alarm on them
needs `FEWEST`. Advice, what could go better, is given only where no alarm is red.

Guaranteed: a half-written row is not a row; a row with a checksum is as it was written (runs/jsonl_rows.py); a link
that leads out of the file's folder is not followed.
Not covered: a process on another host, which counts as alive; a process whose number was reused within the second.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import orjson
import psutil

from palimpsest.files import read_regular
from palimpsest.runs.folder_guard import NAME as LOCK
from palimpsest.runs.jsonl_rows import is_number, lines_of, whole
from palimpsest.viewer.records.sources import leads_out

# ---- The .jsonl files of a run -------------------------------------------------------------------------------


_FILES = 256
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _RowFile:
    state: tuple[int, ...]
    """What changes with the file."""
    first: int
    """Checksum of its first line."""
    rows: tuple[Row, ...]


class RowFiles:
    """Rows of files, each read again once it changed. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: OrderedDict[Path, _RowFile] = OrderedDict()

    def rows(self, path: Path) -> Sequence[Row]:
        """Those that are whole now; none of a missing file."""
        return self._now(path).rows

    def identity(self, path: Path) -> int:
        """A number that changes where the file begins otherwise than before."""
        return self._now(path).first

    def _now(self, path: Path) -> _RowFile:
        with self._lock:
            try:
                read = _EMPTY if leads_out(path.parent, path) else _row_file(path, self._read.pop(path, _EMPTY))
            except OSError:
                read = _EMPTY
            self._read[path] = read
            while len(self._read) > _FILES:
                self._read.popitem(last=False)
            return read


_EMPTY = _RowFile((), 0, ())


def _row_file(path: Path, before: _RowFile) -> _RowFile:
    """What a file holds; `before` where that is it still."""
    stat = path.stat()
    state = stat.st_ino, stat.st_size, stat.st_mtime_ns
    if state == before.state:
        return before
    data = read_regular(path)
    complete = data[: data.rfind(b"\n") + 1]
    rows = tuple(line.row for line in lines_of(complete) if line.row is not None)
    return _RowFile(state, zlib.crc32(complete[: complete.find(b"\n")]), rows)


# ---- Status of a run -----------------------------------------------------------------------------------------


_LOCK_BYTES = 4096
_CLOCKS = 2.0
"""Seconds by which the start of a process and the time in its lock may differ."""


class Status(StrEnum):
    """One word for it."""

    RUNNING = "running"
    """A process holds it."""
    WAITING = "waiting"
    """A process holds it, and no step has ended yet."""
    FINISHED = "finished"
    """It came to its last step."""
    STOPPED = "stopped"
    """It ended tidily before that: `--resume` goes on."""
    DEAD = "dead"
    """The process that held it is gone and never let go: killed, or the machine went down. `--resume` goes on."""
    GONE = "gone"
    """Its folder was moved or deleted."""
    FILE = "file"
    """A file of episodes, which has no status."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a lock's text names."""

    pid: int
    host: str
    started: str
    """Local time, YYYY-MM-DD HH:MM:SS."""

    @property
    def alive(self) -> bool:
        """Whether that process is there still; True for one of another host, of which nothing is known."""
        if self.host != socket.gethostname():
            return True
        try:
            began = psutil.Process(self.pid).create_time()
            claimed = time.mktime(time.strptime(self.started, "%Y-%m-%d %H:%M:%S"))
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            return False
        except psutil.Error:
            return True  # it is there, and somebody else's
        return float(began) <= claimed + _CLOCKS


def holder_of(folder: Path) -> Holder | None:
    """Who holds a run's folder, or held it when it died; None where nobody does."""
    try:
        named = orjson.loads(read_regular(folder / LOCK, _LOCK_BYTES))
        return Holder(int(named["pid"]), str(named["host"]), str(named["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def status_of_run(folder: Path, metrics: Sequence[Row], events: Sequence[Row], steps: int | None) -> Status:
    """`steps`: how many it is to have, None where its configuration can't be read."""
    if not folder.is_dir():
        return Status.GONE
    done = whole(metrics[-1], "step", 0) if metrics else 0
    holder = holder_of(folder)
    if holder is not None and holder.alive:
        return Status.RUNNING if done else Status.WAITING
    if steps is not None and done >= steps:
        return Status.FINISHED
    ended = next((row.get("kind") for row in reversed(events) if row.get("kind") in _ENDS), None)
    if ended == "finished":
        return Status.FINISHED
    return Status.DEAD if holder is not None else Status.STOPPED


_ENDS = ("finished", "interrupted", "resumed", "started")


# ---- Alarms: what is wrong with a run, from its rows alone ----------------------------------------------------


WINDOW, FEWEST, BEFORE = 10, 5, 50
NO_SIGNAL, UNGRADED, MEMORY_CUT, LOGPROB_GAP = 0.5, 0.02, 0.25, 0.05
ENTROPY_LEFT, INVENTION_MORE = 0.25, 0.10
SLOW, SLOW_SECONDS, SILENT_SECONDS, SKIPPED = 6.0, 1.0, 60.0, 0.25
ROLLOUT_SHARE, MEMORY_USED, FLAT_STEPS, FLAT = 0.9, 0.5, 100, 0.01
THRESHOLDS: tuple[tuple[str, str, str], ...] = (
    ("dead", "the process is gone without having ended the run", "red"),
    ("no_signal", f"the rewards of more than {NO_SIGNAL:.0%} of the groups are all the same", "red"),
    ("ungraded", f"more than {UNGRADED:.0%} of the episodes have no grade", "red"),
    (
        "memory_cut",
        f"more than {MEMORY_CUT:.0%} of the memories were cut by their budget; red where {BEFORE} steps are so, as "
        "an agent may learn to write less",
        "amber",
    ),
    ("logprob_gap", f"sampler and learner differ by more than {LOGPROB_GAP} nats a token", "red"),
    (
        "entropy",
        f"the policy's entropy, or where that isn't measured the spread of rewards, fell below {ENTROPY_LEFT:.0%} of "
        f"what it was {BEFORE} steps before",
        "red",
    ),
    (
        "invention",
        f"the share of sentences without a source grew by more than {INVENTION_MORE:.0%} of all in {BEFORE} steps",
        "red",
    ),
    (
        "slow_stage",
        f"a stage of the last step took more than {SLOW:.0f} times its median, and over {SLOW_SECONDS:.0f} s",
        "amber",
    ),
    ("grad_skipped", f"gradients that weren't finite were left out; red above {SKIPPED:.0%} of the steps", "amber"),
    (
        "silent",
        f"the process lives, and no row came for {SLOW:.0f} times a step's median, and over {SILENT_SECONDS:.0f} s",
        "amber",
    ),
    ("rollout_bound", f"rollouts take more than {ROLLOUT_SHARE:.0%} of the time", "advice"),
    ("memory_unused", f"memories have less than {MEMORY_USED:.0%} of their budget on average", "advice"),
    (
        "flat",
        f"the reward moved by less than {FLAT} over the last {FLAT_STEPS} steps of a run that isn't finished",
        "advice",
    ),
)
"""Key, when it is raised, how grave it is; docs/viewer.md shows them."""
_STAGES = {"rollout_s": "the rollouts", "learn_s": "learning", "publish/seconds": "publishing weights"}
Severity = Literal["red", "amber", "advice"]
_ORDER: tuple[Severity, ...] = ("red", "amber", "advice")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing a reader should know first."""

    severity: Severity
    key: str
    text: str
    """A sentence with the figure, and one with what to do."""
    step: int
    metric: str | None = None
    """The curve that shows it."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What alarms are raised from."""

    metrics: Sequence[Row]
    timings: Sequence[Row] = ()
    status: Status = Status.FINISHED
    updated: float | None = None
    """Seconds since 1970 of the last row."""
    resume: str = "palimpsest train --resume"
    memory_tokens: int | None = None
    """The budget of a memory."""

    @property
    def step(self) -> int:
        return whole(self.metrics[-1], "step", 0) if self.metrics else 0

    def values(self, key: str) -> list[float]:
        """Of every step that has it."""
        return [float(row[key]) for row in self.metrics if is_number(row.get(key))]

    def late(self, key: str) -> float | None:
        """The mean of the last steps; None of too few."""
        return _mean(self.values(key)[-WINDOW:])

    def before(self, key: str) -> float | None:
        """The mean of as many steps, `BEFORE` steps earlier."""
        return _mean(self.values(key)[-BEFORE - WINDOW : -BEFORE])


def alarms(watched: Watched, now: float | None = None) -> list[Alarm]:
    """The worst first."""
    raised = [alarm for rule in _RULES for alarm in rule(watched)]
    raised += _silent(watched, time.time() if now is None else now)
    if not any(alarm.severity == "red" for alarm in raised):
        raised += [alarm for advise in _ADVICE for alarm in advise(watched)]
    return sorted(raised, key=lambda alarm: _ORDER.index(alarm.severity))


def _dead(run: Watched) -> Iterator[Alarm]:
    if run.status is Status.DEAD:
        text = f"The process is gone without having ended the run. Go on with: {run.resume}"
        yield Alarm("red", "dead", text, run.step)


def _no_signal(run: Watched) -> Iterator[Alarm]:
    share = run.late("groups/with_signal")
    if share is not None and 1 - share > NO_SIGNAL:
        text = (
            f"In {_percent(1 - share)} of the groups all rewards are the same, so they teach nothing. Easier or harder "
            "problems, a larger train.group_size, or a reward with more steps between right and wrong help."
        )
        yield Alarm("red", "no_signal", text, run.step, "groups/with_signal")


def _ungraded(run: Watched) -> Iterator[Alarm]:
    rows = [row for row in run.metrics if is_number(row.get("reward/ungraded"))][-WINDOW:]
    counts = [row[key] for row in rows for key in row if key.startswith("outcome/")]
    played = sum(float(count) for count in counts if is_number(count))
    lost = sum(float(row["reward/ungraded"]) for row in rows)
    if len(rows) >= FEWEST and played and lost / played > UNGRADED:
        text = f"{_percent(lost / played)} of the episodes have no grade. Their reasons stand in the episodes' table."
        yield Alarm("red", "ungraded", text, run.step, "reward/ungraded")


def _memory_cut(run: Watched) -> Iterator[Alarm]:
    key = "memory/truncated"
    share, lasting = run.late(key), _mean(run.values(key)[-BEFORE:], fewest=BEFORE)
    if share is not None and share > MEMORY_CUT:
        text = (
            f"{_percent(share)} of the memories were cut by their budget. Raise policy.options.memory_tokens, or make "
            "length cost something (credit.overlong)."
        )
        if lasting is not None and lasting > MEMORY_CUT:
            yield Alarm("red", "memory_cut", text, run.step, key)
        else:
            text += f" Wait where it falls: an agent that is cut off may learn to write less within {BEFORE} steps."
            yield Alarm("amber", "memory_cut", text, run.step, key)


def _logprob_gap(run: Watched) -> Iterator[Alarm]:
    for key in ("sampler/logprob_gap_mean", "policy/logprob_gap"):
        gap = run.late(key)
        if gap is not None:
            if gap > LOGPROB_GAP:
                text = (
                    f"Sampler and learner differ by {gap:.3f} nats a token: what is learnt isn't what was sampled. "
                    "Look at their versions and number formats; loss.importance_sampling_cap corrects a part."
                )
                yield Alarm("red", "logprob_gap", text, run.step, key)
            return


def _entropy(run: Watched) -> Iterator[Alarm]:
    key, name = "policy/entropy", "The policy's entropy"
    if not run.values(key):
        key, name = "reward/std", "The spread of rewards"
    now, was = run.late(key), run.before(key)
    if now is not None and was and now < ENTROPY_LEFT * was:
        fell = f"{name} fell from {was:.3g} to {now:.3g} in {BEFORE} steps."
        text = f"{fell} A lower optim.learning_rate or loss.entropy_coeff above 0 helps."
        yield Alarm("red", "entropy", text, run.step, key)


def _invention(run: Watched) -> Iterator[Alarm]:
    now, was = run.late("memory/copy_fidelity"), run.before("memory/copy_fidelity")
    if now is not None and was is not None and was - now > INVENTION_MORE:
        text = (
            f"{_percent(1 - now)} of the sentences written stand in nothing that was read, {_percent(1 - was)} did "
            f"{BEFORE} steps before. reward.unsupported_penalty makes invention cost something."
        )
        yield Alarm("red", "invention", text, run.step, "memory/copy_fidelity")


def _slow_stage(run: Watched) -> Iterator[Alarm]:
    for key, name in _STAGES.items():
        values = [float(row[key]) for row in run.timings if is_number(row.get(key))]
        if len(values) < FEWEST:
            continue
        usual, last = median(values[-BEFORE:]), values[-1]
        if last > SLOW * usual and last > SLOW_SECONDS:
            text = f"In the last step {name} took {last:.1f} s, {last / usual:.0f} times the median of {usual:.1f} s."
            yield Alarm("amber", "slow_stage", text, run.step, key)


def _grad_skipped(run: Watched) -> Iterator[Alarm]:
    share = _mean(run.values("optim/grad_skipped")[-WINDOW:], fewest=1)
    if share:
        severity: Severity = "red" if share > SKIPPED else "amber"
        text = (
            f"{_percent(share)} of the last optimiser steps were skipped: their gradients weren't finite. After "
            "10 in a row the run ends; a lower optim.learning_rate helps."
        )
        yield Alarm(severity, "grad_skipped", text, run.step, "optim/grad_skipped")


def _silent(run: Watched, now: float) -> Iterator[Alarm]:
    if run.status is not Status.RUNNING or run.updated is None or len(run.timings) < FEWEST:
        return
    usual = median(_seconds(row) for row in run.timings[-BEFORE:])
    waited = now - run.updated
    if waited > max(SILENT_SECONDS, SLOW * usual):
        text = f"No step has ended for {waited:.0f} s; one takes {usual:.1f} s. It may evaluate or save, or hang."
        yield Alarm("amber", "silent", text, run.step)


def _rollout_bound(run: Watched) -> Iterator[Alarm]:
    rows = [row for row in run.timings if is_number(row.get("rollout_s"))][-WINDOW:]
    total = sum(map(_seconds, rows))
    share = sum(float(row["rollout_s"]) for row in rows) / total if total else 0.0
    if len(rows) >= FEWEST and share > ROLLOUT_SHARE:
        text = (
            f"Rollouts take {_percent(share)} of the time. More engine.max_num_seqs, or train.max_off_policy_steps, "
            "may help."
        )
        yield Alarm("advice", "rollout_bound", text, run.step, "rollout_s")


def _memory_unused(run: Watched) -> Iterator[Alarm]:
    used = run.late("memory/tokens")
    if used is not None and run.memory_tokens and used < MEMORY_USED * run.memory_tokens:
        text = (
            f"Memories have {used:.1f} tokens of {run.memory_tokens} on average. A smaller "
            "policy.options.memory_tokens would read as much at less cost."
        )
        yield Alarm("advice", "memory_unused", text, run.step, "memory/tokens")


def _flat(run: Watched) -> Iterator[Alarm]:
    rewards = run.values("reward/mean")[-FLAT_STEPS:]
    if len(rewards) == FLAT_STEPS and run.status in (Status.RUNNING, Status.STOPPED):
        half = FLAT_STEPS // 2
        moved = mean_of(rewards[half:]) - mean_of(rewards[:half])
        if abs(moved) < FLAT:
            text = f"The reward moved by {moved:+.3f} over the last {FLAT_STEPS} steps. It may have learnt what it can."
            yield Alarm("advice", "flat", text, run.step, "reward/mean")


Rule = Callable[[Watched], Iterator[Alarm]]
_RULES: tuple[Rule, ...] = (
    _dead,
    _no_signal,
    _ungraded,
    _memory_cut,
    _logprob_gap,
    _entropy,
    _invention,
    _slow_stage,
    _grad_skipped,
)
_ADVICE: tuple[Rule, ...] = (_rollout_bound, _memory_unused, _flat)


def _mean(values: Sequence[float], fewest: int = FEWEST) -> float | None:
    return mean_of(values) if len(values) >= fewest else None


def _seconds(row: Row) -> float:
    return sum(float(row[stage]) for stage in _STAGES if is_number(row.get(stage)))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def mean_of(values: Iterable[float]) -> float:
    """Of one or more; infinite where their sum is too large for a float, which no chart has room for.

    >>> mean_of([0.5, 1.5]), mean_of([1e308, 1e308])
    (1.0, inf)
    """
    try:
        return fmean(values)
    except OverflowError:
        return math.inf
