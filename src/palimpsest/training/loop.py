"""The training loop: play, assign credit, learn, publish. It knows neither the method nor the engine.

    problems -> groups -> (dynamic sampling: others in place of groups without a signal) -> batches, one an optimiser
    step -> forward and backward, update -> publish -> metrics

Guaranteed: a step is a function of (configuration, step, curriculum, weights), so a resumed run repeats it to the
same bytes where sampler and learner do. A step in which no episode could be graded ends the run with the reason
instead of training on nothing.
Not covered: overlapping rollouts with learning; a step is on-policy but for its own later mini-batches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from palimpsest.config.schema import RunConfig
from palimpsest.credit.assign import assign
from palimpsest.credit.dynamic import has_signal
from palimpsest.engines.protocol import Learner, Sampler, StepBatch
from palimpsest.errors import RunError
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all
from palimpsest.reward.grading import Grades
from palimpsest.rollout.group import Player
from palimpsest.rollout.variant import Variant, build_variant
from palimpsest.runs.driver import Driver, Evaluate, Finished, Report
from palimpsest.runs.loggers import LoggerSet
from palimpsest.runs.run_folder import RunFolder
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.codec import Codec
from palimpsest.training.curriculum import Curriculum
from palimpsest.training.metrics import Metrics, credit_metrics, group_metrics, learner_metrics, rates, sampled_tokens
from palimpsest.types import Grade, Group, Trajectory

if TYPE_CHECKING:
    from palimpsest.data.source import ProblemSource

SILENT_STEPS = 5
"""Steps in a row without any group with a signal after which the run warns."""


@dataclass
class Trainer:
    """Reinforcement learning of one configuration in one run folder. `await trainer.run()` does it all."""

    config: RunConfig
    folder: RunFolder
    codec: Codec
    sampler: Sampler
    learner: Learner
    policy: MemoryPolicy
    source: ProblemSource
    grader: Grades
    loggers: LoggerSet
    evaluate: Evaluate | None = None
    """Called every `train.eval_every` steps and after the last; None: no evaluation."""
    stop: GracefulStop = field(default_factory=GracefulStop)
    """Wishes that the run end early: signals do, and whoever waits for a run in another thread."""
    curriculum: Curriculum | None = field(init=False)
    variant: Variant | None = field(init=False)
    _silent: int = field(default=0, init=False)
    _told_of_refills: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        sizes = self.config.data.curriculum
        self.curriculum = Curriculum(sizes) if sizes else None
        self.variant = build_variant(self.config)

    async def run(self) -> Finished:
        """Train to `train.steps`, or until `stop` is wished for; resumes if the folder holds a checkpoint."""
        driver = Driver(self, self.learner, self.folder, self.config.train, self.loggers, self.evaluate, self.stop)
        return await driver.run()

    async def step(self, step: int) -> Report:
        """One rollout batch and its optimiser steps."""
        size = self.curriculum.size if self.curriculum else None
        counters = self.sampler.stats()
        start = time.perf_counter()
        played = await self._collect(step, size)
        rollout_s = time.perf_counter() - start
        self._refuse_ungraded(step, played)
        sampler_rates = rates(counters, self.sampler.stats(), rollout_s)
        metrics = group_metrics(played, self.codec)
        key = (self.config.seed, "dcpo", step)
        batches = assign(played, self.config.credit, self.config.train.optimizer_steps, key)
        start = time.perf_counter()
        learnt, learner_timings = await self._learn(batches)
        learn_s = time.perf_counter() - start
        metrics |= credit_metrics(batches) | learnt
        if self.curriculum and size is not None:
            unit = self.curriculum.unit
            metrics |= {f"curriculum/{unit}": float(size), "curriculum/stage": float(self.curriculum.stage)}
            if self.curriculum.update(metrics.get("grade/outcome", metrics.get("reward/mean"))):
                self.loggers.message(f"step {step}: problems grow from {size} to {self.curriculum.size} {unit}")
        self._watch_signal(step, played)
        learnt_tokens = metrics.get("policy/logical_tokens", 0.0)
        timings = _stage_timings(played, learnt_tokens, rollout_s, learn_s) | sampler_rates | learner_timings
        return Report(metrics, timings, played)

    def state(self) -> dict[str, Any]:
        """What a later step depends on, besides configuration and learner."""
        sizes = self.curriculum.state() if self.curriculum else None
        return {"curriculum": sizes, "silent": self._silent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint."""
        if self.curriculum and state["curriculum"]:
            self.curriculum.restore(state["curriculum"])
        self._silent = state["silent"]

    async def _collect(self, step: int, size: int | None) -> list[Group]:
        """The groups of a step, those without a signal included, which `assign` drops under dynamic sampling."""
        wanted = self.config.train.prompts_per_step
        played = await self._play(step, wanted, 0, size)
        dynamic = self.config.credit.dynamic_sampling
        if dynamic is None:
            return played
        for round_number in range(1, dynamic.max_refills + 1):
            missing = wanted - sum(map(has_signal, played))
            if missing == 0:
                return played
            played += await self._play(step, missing, round_number, size)
        if (kept := sum(map(has_signal, played))) < wanted:
            self.folder.event("refills_used_up", step=step, kept=kept, wanted=wanted, played=len(played))
            if not self._told_of_refills:
                self._told_of_refills = True
                self.loggers.message(
                    f"step {step}: {kept} of {wanted} groups have a signal after {dynamic.max_refills} refills; "
                    f"training on those (said once, events.jsonl names every such step)"
                )
        return played

    async def _play(self, step: int, count: int, round_number: int, size: int | None) -> list[Group]:
        train = self.config.train
        # Sources count steps from 0: the first epoch begins with the first step.
        problems = self.source.problems(step=step - 1, count=count, round=round_number, size=size)
        for policy in (self.policy, *([self.variant.policy] if self.variant else ())):
            admit_all(policy, problems, self.codec, self.sampler.max_context)
        stage = "rollout" if round_number == 0 else f"refill {round_number}"
        done = Counter[str]()

        def on_episode(_trajectory: Trajectory, _grade: Grade) -> None:
            done["episodes"] += 1
            self.loggers.progress(stage, done["episodes"], len(problems) * train.group_size)

        player = Player(
            policy=self.policy,
            sampler=self.sampler,
            codec=self.codec,
            sampling=self.config.sampling,
            grader=self.grader,
            group_size=train.group_size,
            timeout_s=train.episode_timeout_s,
            retries=train.sampler_retries,
            variant=self.variant,
        )
        return await player.batch(
            problems,
            key=(self.config.seed, "train", step, round_number),
            group_prefix=f"{step}/{round_number}/",
            on_episode=on_episode,
        )

    async def _learn(self, batches: tuple[StepBatch, ...]) -> tuple[Metrics, Metrics]:
        """The optimiser steps; a batch without segments takes none, for even a zero gradient moves the weights."""
        full = [batch for batch in batches if batch.segments]
        self.loggers.progress("learn", 0, len(full))
        updates = await self.learner.update(full) if full else []
        await self.learner.publish()
        metrics, timings = learner_metrics(updates)
        return {**metrics, "optim/steps_left_out": float(len(batches) - len(full))}, timings

    def _refuse_ungraded(self, step: int, played: list[Group]) -> None:
        """Raise RunError, with the commonest reason, if nothing was graded."""
        if any(grade.graded for group in played for grade in group.grades):
            return
        reasons = Counter(grade.reason or "no reason given" for group in played for grade in group.grades)
        reason, count = reasons.most_common(1)[0] if reasons else ("the source gave no problems", 0)
        raise RunError(f"step {step}: no episode could be graded; {count} of {reasons.total()}: {reason}{_why(played)}")

    def _watch_signal(self, step: int, played: list[Group]) -> None:
        self._silent = 0 if any(map(has_signal, played)) else self._silent + 1
        if self._silent and self._silent % SILENT_STEPS == 0:
            self.folder.warn(
                f"step {step}: for {self._silent} steps no group had different rewards, so nothing is learnt; "
                f"the problems are too hard or too easy, or the reward is constant"
            )


def _why(played: list[Group]) -> str:
    """The first error that episodes recorded, as part of a message."""
    for group in played:
        for trajectory in group.trajectories:
            for event in trajectory.events:
                if "message" in event.detail:
                    return f" ({event.detail.get('type', event.kind)}: {event.detail['message']})"
    return ""


def _stage_timings(played: list[Group], learnt: float, rollout_s: float, learn_s: float) -> dict[str, float]:
    sampled = sum(sampled_tokens(trajectory) for group in played for trajectory in group.trajectories)
    return {
        "rollout_s": rollout_s,
        "learn_s": learn_s,
        "rollout_tokens_per_s": sampled / rollout_s,
        "learn_tokens_per_s": learnt / learn_s,
        "rss_mb": psutil.Process().memory_info().rss / 2**20,
    }
