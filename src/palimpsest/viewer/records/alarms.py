"""Alarms of a run, from its rows alone: what is wrong, and advice.

`THRESHOLDS` lists the conditions. Means cover the last `WINDOW` steps with the metric; an alarm on them needs `FEWEST`.
Advice (possible improvements) appears only without a red alarm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from palimpsest.config.engine import SamplingConfig, top_p_gap
from palimpsest.runs.jsonl_rows import is_number, whole
from palimpsest.viewer.records.run_status import Row, Status

WINDOW, FEWEST, BEFORE = 10, 5, 50
NO_SIGNAL, SOLVED, UNGRADED, MEMORY_CUT, ANSWERS_CUT, LOGPROB_GAP = 0.5, 0.9, 0.02, 0.25, 0.25, 0.05
ENTROPY_LEFT, INVENTION_MORE, LOGPROB_DROP = 0.25, 0.10, 2.0
SLOW, SLOW_SECONDS, SILENT_SECONDS, SKIPPED = 6.0, 1.0, 60.0, 0.25
ROLLOUT_SHARE, MEMORY_USED, FLAT_STEPS, FLAT = 0.9, 0.5, 100, 0.01
THRESHOLDS: tuple[tuple[str, str, str], ...] = (
    ("dead", "the process died before the run finished", "red"),
    (
        "no_signal",
        f"the rewards of more than {NO_SIGNAL:.0%} of the groups are equal; advice if their mean is above {SOLVED}",
        "red",
    ),
    ("ungraded", f"more than {UNGRADED:.0%} of the episodes are ungraded", "red"),
    (
        "memory_cut",
        f"more than {MEMORY_CUT:.0%} of the memories exceeded their budget; red after {BEFORE} such steps, because "
        "an agent may learn to write less by then",
        "amber",
    ),
    ("answers_cut", f"more than {ANSWERS_CUT:.0%} of the answers exceeded their budget", "red"),
    ("logprob_gap", f"sampler and learner differ by more than {LOGPROB_GAP} nats per token, top-p aside", "red"),
    ("logprob_drop", f"a token that the sampler gave over half has {LOGPROB_DROP:g} nats less in the learner", "red"),
    (
        "entropy",
        f"the policy's entropy (if unmeasured: the spread of rewards) fell below {ENTROPY_LEFT:.0%} of its value "
        f"{BEFORE} steps before",
        "red",
    ),
    ("invention", f"the share of hallucinated sentences grew by over {INVENTION_MORE:.0%} in {BEFORE} steps", "red"),
    ("slow_stage", f"a stage of the last step took over {SLOW:g} times its median and {SLOW_SECONDS:g} s", "amber"),
    ("grad_skipped", f"training skipped steps with non-finite gradients; red above {SKIPPED:.0%} of them", "amber"),
    (
        "silent",
        f"a living process wrote no row for {SLOW:.0f} times a step's median, and over {SILENT_SECONDS:.0f} s",
        "amber",
    ),
    ("rollout_bound", f"rollouts take more than {ROLLOUT_SHARE:.0%} of the time", "advice"),
    ("memory_unused", f"memories have less than {MEMORY_USED:.0%} of their budget on average", "advice"),
    ("flat", f"the reward of an unfinished run moved by less than {FLAT} over the last {FLAT_STEPS} steps", "advice"),
)
"""Key, condition and severity; docs/how-to/inspect-episodes.md shows them."""
_STAGES = {"rollout_s": "the rollouts", "learn_s": "learning", "publish/seconds": "publishing weights"}
Severity = Literal["red", "amber", "advice"]
_ORDER: tuple[Severity, ...] = ("red", "amber", "advice")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm or piece of advice."""

    severity: Severity
    key: str
    text: str
    """A sentence with the value, and one with the fix."""
    step: int
    metric: str | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """Inputs of alarms."""

    metrics: Sequence[Row]
    timings: Sequence[Row] = ()
    status: Status = Status.FINISHED
    updated: float | None = None
    """Time of the last row, in seconds since 1970."""
    resume: str = "palimpsest train --resume"
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's, as stored: values by dotted key."""

    @property
    def memory_tokens(self) -> int | None:
        tokens = self.config.get("policy.options.memory_tokens")
        return tokens if type(tokens) is int else None

    @property
    def top_p_gap(self) -> float:
        """Nats that top-p may add to the gap; 0 for an invalid configuration."""
        given = {name: self.config.get(f"sampling.{name}") for name in SamplingConfig.model_fields}
        try:
            return top_p_gap(SamplingConfig(**given)) if self.config.get("sampler.name") == "vllm" else 0.0
        except ValueError:
            return 0.0

    @property
    def step(self) -> int:
        return whole(self.metrics[-1], "step", 0) if self.metrics else 0

    def values(self, key: str) -> list[float]:
        return [float(row[key]) for row in self.metrics if is_number(row.get(key))]

    def late(self, key: str) -> float | None:
        """The mean of the last steps; None for too few."""
        return _mean(self.values(key)[-WINDOW:])

    def before(self, key: str) -> float | None:
        """The mean of as many steps, `BEFORE` steps earlier."""
        return _mean(self.values(key)[-BEFORE - WINDOW : -BEFORE])


def alarms(watched: Watched, now: float | None = None) -> list[Alarm]:
    """Alarms, most severe first."""
    raised = [alarm for rule in _RULES for alarm in rule(watched)]
    raised += _silent(watched, time.time() if now is None else now)
    if not any(alarm.severity == "red" for alarm in raised):
        raised += [alarm for advise in _ADVICE for alarm in advise(watched)]
    return sorted(raised, key=lambda alarm: _ORDER.index(alarm.severity))


def _dead(run: Watched) -> Iterator[Alarm]:
    if run.status is Status.DEAD:
        text = f"The process died before the run finished. Resume with: {run.resume}"
        yield Alarm("red", "dead", text, run.step)


def _no_signal(run: Watched) -> Iterator[Alarm]:
    share, reward = run.late("groups/with_signal"), run.late("reward/mean")
    if share is not None and 1 - share > NO_SIGNAL:
        text = f"In {_percent(1 - share)} of the groups all rewards are equal, so training ignores them. "
        if reward is not None and reward > SOLVED:
            text += f"The mean reward is {reward:.2f}: stop, or try harder problems or a finer reward."
            yield Alarm("advice", "no_signal", text, run.step, "groups/with_signal")
        else:
            text += "Try easier or harder problems, a larger train.group_size, or a finer reward."
            yield Alarm("red", "no_signal", text, run.step, "groups/with_signal")


def _share_of_outcomes(run: Watched, outcome: str) -> float | None:
    rows = run.metrics[-WINDOW:]
    counts, played = (sum(_outcomes(row, prefix) for row in rows) for prefix in (outcome, ""))
    return counts / played if len(rows) >= FEWEST and played else None


def _outcomes(row: Row, prefix: str = "") -> float:
    counts = (row[key] for key in row if key.startswith(f"outcome/{prefix}"))
    return sum(float(count) for count in counts if is_number(count))


def _ungraded(run: Watched) -> Iterator[Alarm]:
    rows = [row for row in run.metrics if is_number(row.get("reward/ungraded"))][-WINDOW:]
    played = sum(map(_outcomes, rows))
    lost = sum(float(row["reward/ungraded"]) for row in rows)
    if len(rows) >= FEWEST and played and lost / played > UNGRADED:
        text = f"{_percent(lost / played)} of the episodes are ungraded. The table of episodes shows the reasons."
        yield Alarm("red", "ungraded", text, run.step, "reward/ungraded")


def _memory_cut(run: Watched) -> Iterator[Alarm]:
    key = "memory/truncated"
    share, lasting = run.late(key), _mean(run.values(key)[-BEFORE:], fewest=BEFORE)
    if share is not None and share > MEMORY_CUT:
        text = (
            f"{_percent(share)} of the memories exceeded their budget. Raise policy.options.memory_tokens, or penalise "
            "length (credit.overlong)."
        )
        if lasting is not None and lasting > MEMORY_CUT:
            yield Alarm("red", "memory_cut", text, run.step, key)
        else:
            text += f" If the share falls, wait: the agent may learn to write less within {BEFORE} steps."
            yield Alarm("amber", "memory_cut", text, run.step, key)


def _answers_cut(run: Watched) -> Iterator[Alarm]:
    now = _share_of_outcomes(run, "answer_truncated")
    if now is not None and now > ANSWERS_CUT:
        text = (
            f"{_percent(now)} of the answers exceeded their budget. Set reward.truncated_penalty=1, or raise "
            "policy.options.answer_tokens."
        )
        yield Alarm("red", "answers_cut", text, run.step, "outcome/answer_truncated")


def _logprob_gap(run: Watched) -> Iterator[Alarm]:
    for key in ("sampler/logprob_gap_mean", "policy/logprob_gap"):
        gap = run.late(key)
        if gap is not None:
            if gap > LOGPROB_GAP + run.top_p_gap:
                moved = "" if key.startswith("sampler/") else ", including the policy's movement since the samples"
                text = (
                    f"Sampler and learner differ by {gap:.3f} nats per token{moved}: training is off-policy. Compare "
                    "their versions and number formats. loss.old_logprobs=recompute loss.importance_sampling_cap=2 "
                    "corrects a part."
                )
                yield Alarm("red", "logprob_gap", text, run.step, key)
            return


def _logprob_drop(run: Watched) -> Iterator[Alarm]:
    key = "sampler/logprob_drop_max"
    largest = max(run.values(key)[-WINDOW:], default=0.0)
    if largest > LOGPROB_DROP + run.top_p_gap:
        text = f"The learner gives a token {largest:.1f} nats less than the sampler, which gave it over half. "
        text += "Compare their weights, versions and number formats."
        yield Alarm("red", "logprob_drop", text, run.step, key)


def _entropy(run: Watched) -> Iterator[Alarm]:
    key, name = "policy/entropy", "The policy's entropy"
    if not run.values(key):
        key, name = "reward/std", "The spread of rewards"
    now, was = run.late(key), run.before(key)
    if now is not None and was and now < ENTROPY_LEFT * was:
        fell = f"{name} fell from {was:.3g} to {now:.3g} in {BEFORE} steps."
        text = f"{fell} Lower optim.learning_rate, or set loss.entropy_coeff above 0."
        yield Alarm("red", "entropy", text, run.step, key)


def _invention(run: Watched) -> Iterator[Alarm]:
    now, was = run.late("memory/copy_fidelity"), run.before("memory/copy_fidelity")
    if now is not None and was is not None and was - now > INVENTION_MORE:
        text = (
            f"{_percent(1 - now)} of the written sentences are hallucinated, compared with {_percent(1 - was)} "
            f"{BEFORE} steps before. reward.unsupported_penalty penalises hallucination."
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
            f"{_percent(share)} of the last optimizer steps had non-finite gradients and no effect. After "
            "10 in a row the run ends; lower optim.learning_rate."
        )
        yield Alarm(severity, "grad_skipped", text, run.step, "optim/grad_skipped")


def _silent(run: Watched, now: float) -> Iterator[Alarm]:
    if run.status is not Status.RUNNING or run.updated is None or len(run.timings) < FEWEST:
        return
    usual = median(step_seconds(row) for row in run.timings[-BEFORE:])
    waited = now - run.updated
    if waited > max(SILENT_SECONDS, SLOW * usual):
        text = f"No step ended for {waited:.0f} s; a step takes {usual:.1f} s. It may be evaluating, saving or hanging."
        yield Alarm("amber", "silent", text, run.step)


def _rollout_bound(run: Watched) -> Iterator[Alarm]:
    rows = [row for row in run.timings if is_number(row.get("rollout_s"))][-WINDOW:]
    total = sum(map(step_seconds, rows))
    share = sum(float(row["rollout_s"]) for row in rows) / total if total else 0.0
    if len(rows) >= FEWEST and share > ROLLOUT_SHARE:
        text = f"Rollouts take {_percent(share)} of the time. Raise engine.max_num_seqs or train.max_off_policy_steps."
        yield Alarm("advice", "rollout_bound", text, run.step, "rollout_s")


def _memory_unused(run: Watched) -> Iterator[Alarm]:
    used = run.late("memory/tokens")
    if used is not None and run.memory_tokens and used < MEMORY_USED * run.memory_tokens:
        text = (
            f"Memories use {used:.1f} of {run.memory_tokens} tokens on average. A smaller "
            "policy.options.memory_tokens reads as much at less cost."
        )
        yield Alarm("advice", "memory_unused", text, run.step, "memory/tokens")


def _flat(run: Watched) -> Iterator[Alarm]:
    rewards = run.values("reward/mean")[-FLAT_STEPS:]
    if len(rewards) == FLAT_STEPS and run.status in (Status.RUNNING, Status.STOPPED):
        half = FLAT_STEPS // 2
        moved = mean_of(rewards[half:]) - mean_of(rewards[:half])
        if abs(moved) < FLAT:
            text = f"The reward moved by {moved:+.3f} over the last {FLAT_STEPS} steps. Training may have converged."
            yield Alarm("advice", "flat", text, run.step, "reward/mean")


Rule = Callable[[Watched], Iterator[Alarm]]
_RULES: tuple[Rule, ...] = (
    _dead,
    _no_signal,
    _ungraded,
    _memory_cut,
    _answers_cut,
    _logprob_gap,
    _logprob_drop,
    _entropy,
    _invention,
    _slow_stage,
    _grad_skipped,
)
_ADVICE: tuple[Rule, ...] = (_rollout_bound, _memory_unused, _flat)


def _mean(values: Sequence[float], fewest: int = FEWEST) -> float | None:
    return mean_of(values) if len(values) >= fewest else None


def step_seconds(row: Row) -> float:
    """Time of a step's stages."""
    return sum(float(row[stage]) for stage in _STAGES if is_number(row.get(stage)))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def mean_of(values: Iterable[float]) -> float:
    """Mean of one or more values; infinite if their sum overflows, which charts omit.

    >>> mean_of([0.5, 1.5]), mean_of([1e308, 1e308])
    (1.0, inf)
    """
    try:
        return fmean(values)
    except OverflowError:
        return math.inf
