"""What is wrong with a run, from its rows alone; and, where nothing is, what could go better. `THRESHOLDS` says when.

Means are over the last `WINDOW` steps that have the metric; an alarm on them needs `FEWEST`. Advice is given only where
no alarm is red.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from palimpsest.runs.jsonl_rows import is_number, whole
from palimpsest.viewer.records.run_status import Row, Status, mean_of

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
    found = [alarm for rule in _RULES for alarm in rule(watched)]
    found += _silent(watched, time.time() if now is None else now)
    if not any(alarm.severity == "red" for alarm in found):
        found += [alarm for advise in _ADVICE for alarm in advise(watched)]
    return sorted(found, key=lambda alarm: _ORDER.index(alarm.severity))


def to_json(found: Sequence[Alarm]) -> list[dict[str, Any]]:
    return [asdict(alarm) for alarm in found]


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
                    "Look at their versions and number formats; loss.tis_cap corrects a part."
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
        text = f"{fell} A lower optim.learning_rate or loss.entropy_coef above 0 helps."
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
            "optim.max_skipped in a row the run ends; a lower optim.learning_rate helps."
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
        text = f"Rollouts take {_percent(share)} of the time. More engine.batch_slots, or train.ahead, may help."
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
