"""Collecting: the groups that one step learns from, sampled with the published weights at its start.

    problems -> groups -> (dynamic sampling: replaces groups without a signal) -> Batch

Guaranteed: a batch is a function of (configuration, step, stage, published weights), and records the weights' version.
A batch without any graded episode is an error with the reason, never training data.
Not covered: publishing. The sampler's weights must not change until the batch is complete (training/loop.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.config.schema import RunConfig
from palimpsest.credit.assign import build_rule, has_signal
from palimpsest.errors import RunError, take_tracebacks
from palimpsest.events import PolicyFailed
from palimpsest.memory.registry import admit_all
from palimpsest.notes import Note
from palimpsest.plugin_kinds import KINDS, OBJECT
from palimpsest.rollout.episode import failure
from palimpsest.rollout.group import Player
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.runs.checkpoint import step_name
from palimpsest.runs.loggers import LoggerSet
from palimpsest.runs.resume_rules import EVENTS
from palimpsest.runs.run_folder import RunFolder
from palimpsest.training.step_metrics import Metrics, group_metrics, rates
from palimpsest.types import Grade, Group, Trajectory

if TYPE_CHECKING:
    from palimpsest.data.sources.file_source import ProblemSource


@dataclass(frozen=True, slots=True)
class Batch:
    """Training data of one step."""

    step: int
    groups: tuple[Group, ...]
    """All groups; `credit.assign` drops those without a signal under dynamic sampling."""
    version: int
    """Optimizer steps before the weights that sampled it."""
    stage: int | None
    """Stage of the curriculum at the start of the batch; None without one."""
    metrics: Metrics
    """Metrics of the groups (training/step_metrics.py)."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Empty for a batch from a checkpoint."""
    encoded: bytes | None = None
    """Recorded bytes of the groups, for a batch from a checkpoint."""

    @property
    def file(self) -> str:
        """Path within a checkpoint, for a batch collected ahead."""
        return f"ahead/{step_name(self.step)}.jsonl.zst"

    def record(self) -> bytes:
        """The groups as a record file. A second encoding could differ (rollout/trajectory_file.py)."""
        return self.encoded or encode_groups(self.groups)

    def facts(self) -> dict[str, Any]:
        """JSON of everything except the groups; includes the metrics, since a record omits the documents."""
        return {"step": self.step, "version": self.version, "stage": self.stage, "metrics": self.metrics}

    @classmethod
    def from_checkpoint(cls, facts: Mapping[str, Any], folder: Path) -> Batch:
        """The batch with saved `facts` and `file`. Its problems have no documents, since learning needs none."""
        empty = cls(facts["step"], (), facts["version"], facts["stage"], dict(facts["metrics"]))
        path = folder / empty.file
        return replace(empty, groups=read_groups(path).groups, encoded=path.read_bytes())


@dataclass
class Collector:
    """Collects the batches of a run in order."""

    config: RunConfig
    player: Player
    source: ProblemSource
    folder: RunFolder
    loggers: LoggerSet
    _warned_of_refills: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        take_tracebacks()  # of earlier calls in this process: they are not the run's

    async def collect(self, step: int, stage: int | None) -> Batch:
        """The batch of `step`, with problems of the curriculum's `stage`. Raises RunError if nothing was graded."""
        curriculum = self.config.data.curriculum
        size = curriculum.chunks[stage] if curriculum and stage is not None else None
        sampler = self.player.sampler
        version, counters, start = sampler.version, sampler.stats(), time.perf_counter()
        groups = await self._groups(step, size)
        for where, text in take_tracebacks().items():
            self.folder.event("user_code_failed", step=step, where=where, traceback=text)
        if not _any_graded(groups):
            reason = why_ungraded(groups) or "0 of 0: the source returned no problems"
            raise RunError(f"step {step}: no episode has a grade; {reason}{_why(groups)}{self._advice(groups)}")
        seconds = time.perf_counter() - start
        sampled = sum(episode.sampled_tokens for group in groups for episode in group.trajectories)
        speculation = self.player.speculation
        timings = {"rollout_s": seconds, "rollout_tokens_per_s": sampled / seconds}
        timings |= speculation.take_metrics() if speculation else {}
        return Batch(
            step=step,
            groups=tuple(groups),
            version=version,
            stage=stage,
            metrics=group_metrics(groups, self.player.codec, self.config.credit),
            timings=timings | rates(counters, sampler.stats(), seconds),
        )

    async def _groups(self, step: int, size: int | None) -> list[Group]:
        wanted = self.config.train.batch_size
        played = await self._play(step, wanted, 0, size)
        credit = self.config.credit
        dynamic = credit.dynamic_sampling
        if dynamic is None:
            return played
        signals = partial(has_signal, config=credit, rule=build_rule(credit))
        for round_number in range(1, dynamic.max_refills + 1):
            missing = wanted - sum(map(signals, played))
            if missing == 0:
                return played
            played += await self._play(step, missing, round_number, size)
        if (usable := sum(map(signals, played))) < wanted:
            self._report_refills(step, usable, wanted, played)
        return played

    async def _play(self, step: int, count: int, round_number: int, size: int | None) -> list[Group]:
        # Sources count steps from 0: the first epoch starts with the first step.
        problems = self.source.problems(step=step - 1, count=count, round=round_number, size=size)
        variant = self.player.variant
        for policy in (self.player.policy, *([variant.policy] if variant else ())):
            admit_all(policy, problems, self.player.codec, self.player.sampler.max_context)
        stage = "rollout" if round_number == 0 else f"refill {round_number}"
        done = Counter[str]()

        def on_episode(_trajectory: Trajectory, _grade: Grade) -> None:
            done["episodes"] += 1
            self.loggers.progress(stage, done["episodes"], len(problems) * self.player.group_size)

        return await self.player.batch(
            problems,
            key=(self.config.seed, "train", step, round_number),
            group_prefix=f"{step}/{round_number}/",
            on_episode=on_episode,
        )

    def _advice(self, groups: Sequence[Group]) -> str:
        failed = any(isinstance(event.what, PolicyFailed) for g in groups for t in g.trajectories for event in t.events)
        name = self.config.policy.name if failed else self.config.reward.name
        if name in KINDS["policy" if failed else "reward"].shipped:
            return ""
        tries = "" if name.startswith(OBJECT) else f" `palimpsest check {name}` tries it,"
        return f";{tries} tracebacks are in {self.folder.path / EVENTS}"

    def _report_refills(self, step: int, usable: int, wanted: int, played: Sequence[Group]) -> None:
        self.folder.event("refills_used_up", step=step, kept=usable, wanted=wanted, played=len(played))
        if self._warned_of_refills or not _any_graded(played):  # a step without grades is an error
            return
        self._warned_of_refills = True
        dynamic = self.config.credit.dynamic_sampling
        assert dynamic is not None
        counts = {"step": step, "wanted": wanted, "refills": dynamic.max_refills}
        few = Note("few_groups_with_signal", groups=usable, **counts)
        self.loggers.message(few if usable else Note("no_group_with_signal", reason=_why_silent(played), **counts))


def _any_graded(groups: Sequence[Group]) -> bool:
    return any(grade.graded for group in groups for grade in group.grades)


def _why_silent(groups: Sequence[Group]) -> str:
    same = "each group has equal rewards, so the step learns nothing"
    if ungraded := why_ungraded(groups):
        episodes = sum(len(group.grades) for group in groups)
        return f"some of {episodes} episodes have no grade ({ungraded}{_why(groups)}); among the others {same}"
    return f"{same}: the problems are too hard or too easy, or the reward is constant"


def why_ungraded(groups: Sequence[Group]) -> str:
    """Most frequent reason and its share of the ungraded episodes; empty if all are graded."""
    grades = [grade for group in groups for grade in group.grades if not grade.graded]
    reasons = Counter(grade.reason or "no reason given" for grade in grades)
    return "".join(f"{count} of {len(grades)}: {reason}" for reason, count in reasons.most_common(1))


def _why(groups: Sequence[Group]) -> str:
    failures = (failure(trajectory) for group in groups for trajectory in group.trajectories)
    first = next((text for text in failures if text is not None), None)
    return "" if first is None else f" ({first})"
