"""Training loop: `collect` collects a step's batch, `learn` takes its optimizer steps (optimizer_steps.py).

It depends on neither method nor engine. With `train.max_off_policy_steps: N` the batch of step s + N is collected
while step s learns. The weights that sample a batch never depend on timing: batch k is sampled entirely with the
weights after step max(0, k - 1 - N).

    N = 0    collect 1 (w0) | learn 1 | collect 2 (w1) | learn 2 | ...
    N = 1    collect 1 (w0) | learn 1 and collect 2 (w0) | learn 2 and collect 3 (w1) | ...

Between two steps nothing is in flight: the N batches collected ahead are ready, and the new weights are published.
Evaluations and checkpoints, which contain those batches too, happen there.

Guaranteed: a step is a function of (configuration, step, state, weights), so a resumed run repeats it to the same
bytes if sampler and learner do. A batch that fails (nothing graded, a problem that exceeds a budget) ends the run with
the reason, after the step that learned meanwhile, which is saved; a resume collects it again, with the weights of
that step.
Not covered: more speed from N > 1. Weights are published between two collections, so a step waits for the concurrent
one, regardless of the number of ready batches; a larger N only learns from older samples.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from palimpsest.config.schema import RunConfig
from palimpsest.credit.assign import unread_rewards
from palimpsest.engines.protocol import FOREST_REUSE, Learner, Sampler
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.notes import Note
from palimpsest.provenance import changed
from palimpsest.reward.grading import Grades
from palimpsest.rollout.episode import Roles
from palimpsest.rollout.group import Player
from palimpsest.rollout.speculation import Speculation
from palimpsest.rollout.variant import build_variant
from palimpsest.runs.driver import Driver, Evaluate, Finished, StepReport
from palimpsest.runs.loggers import LoggerSet
from palimpsest.runs.resume_rules import COMPUTED
from palimpsest.runs.run_folder import RunFolder
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.training.collect import Batch, Collector, why_ungraded
from palimpsest.training.curriculum import Curriculum
from palimpsest.training.optimizer_steps import Learnt, SkipWatch, learn
from palimpsest.training.step_metrics import Metrics, why_no_signal

if TYPE_CHECKING:
    from palimpsest.data.sources.file_source import ProblemSource


SILENT_STEPS = 5
"""Steps in a row without signal in any group before the run warns."""
MANY_EPISODES = 32
"""Episodes of a first batch without signal before the run warns of it."""


@dataclass
class Trainer:
    """Reinforcement learning of one configuration in one run folder; call `await trainer.run()`."""

    records: ClassVar[bool] = True
    config: RunConfig
    folder: RunFolder
    codec: Codec
    sampler: Sampler
    learner: Learner
    policy: MemoryPolicy
    source: ProblemSource
    grader: Grades
    loggers: LoggerSet
    roles: Roles = field(default_factory=dict)
    environment: OpenEnvironment | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)
    """Digests of the data by use, `train` or `held_out`; a resume with other contents of `train` is rejected."""
    evaluate: Evaluate | None = None
    """Called every `train.eval_steps` steps and after the last; None: no evaluation."""
    stop: GracefulStop = field(default_factory=GracefulStop)
    """Requests to end early, from signals or from a caller in another thread."""
    spent: int = 0
    """Tokens that the cold start computed; they count towards `train.max_tokens`."""
    curriculum: Curriculum | None = field(init=False)
    _collector: Collector = field(init=False)
    _ready: deque[Batch] = field(default_factory=deque, init=False)
    """Batches collected ahead, the next step's first."""
    _failed: PalimpsestError | None = field(default=None, init=False)
    """Error of collecting ahead."""
    _computed: int = field(init=False)
    """Tokens that the cold start and all steps so far computed."""
    _silent: int = field(default=0, init=False)
    _skips: SkipWatch = field(init=False)
    _warned: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._computed = self.spent
        sizes = self.config.data.curriculum
        self.curriculum = Curriculum(sizes) if sizes else None
        self._skips = SkipWatch(self.folder.warn)
        train = self.config.train
        player = Player(
            policy=self.policy,
            sampler=self.sampler,
            codec=self.codec,
            sampling=self.config.sampling,
            grader=self.grader,
            group_size=train.group_size,
            timeout_s=train.episode_timeout_s,
            variant=build_variant(self.config),
            roles=self.roles,
            environment=self.environment,
            speculation=Speculation.of(self.config.engine, self.learner.limits.concurrency, training=True),
        )
        self._collector = Collector(self.config, player, self.source, self.folder, self.loggers)

    async def run(self) -> Finished:
        """Train to `train.max_steps` or `max_tokens`, or a stop request; resumes from a checkpoint in the folder."""
        driver = Driver(self, self.learner, self.folder, self.config.train, self.loggers, self.evaluate, self.stop)
        finished = await driver.run()
        silent = self._silent == finished.step and self.learner.version == 0
        if finished.step and silent and not finished.interrupted:
            self.folder.warn(Note("no_signal_at_all"))
        return finished

    async def step(self, step: int) -> StepReport:
        """Learn from the batch of `step`, and meanwhile collect the batch `train.max_off_policy_steps` steps ahead.

        If that fails, the next call raises the error: this step's learning is kept.
        """
        if self._failed is not None:
            raise self._failed
        ahead, steps = self.config.train.max_off_policy_steps, self.config.train.max_steps
        while len(self._ready) < ahead and step + len(self._ready) <= steps:
            self._ready.append(await self._collect(step + len(self._ready)))
        batch = self._ready[0] if self._ready else await self._collect(step)
        if step == 1 and not batch.metrics.get("groups/with_signal"):
            found = why_no_signal(batch.metrics)
            if found["episodes"] >= MANY_EPISODES:
                self.folder.warn(Note("no_signal_at_start", **found))
        if ahead and step + ahead <= steps:
            learnt, collected = await self._learn_while_collecting(batch, step + ahead)
        else:
            learnt, collected = await self._learn(batch), None
        self._skips.see(batch.step, learnt.updates)
        recorded = step % self.config.train.record_steps == 0
        encoding = asyncio.to_thread(batch.record) if recorded else asyncio.sleep(0)
        encoded, seconds = await asyncio.gather(encoding, self._publish())  # together: the GPUs wait
        self._failed = collected if isinstance(collected, PalimpsestError) else None
        self._ready = deque([*list(self._ready)[1:], *([collected] if isinstance(collected, Batch) else [])])
        metrics = batch.metrics | learnt.metrics | self._grow(batch)
        self._computed += int(metrics["tokens/played"] + metrics.get("policy/physical_tokens", 0))
        metrics[COMPUTED] = float(self._computed)
        self._watch(batch)
        if times := learnt.metrics.get(FOREST_REUSE):
            self._warn_once("segments_apart", step=step, times=times)
        memory = {"rss_mb": psutil.Process().memory_info().rss / 2**20}
        timings = {**batch.timings, **learnt.timings, "publish/seconds": seconds, **memory}
        return StepReport(metrics, timings, batch.groups, encoded)

    @property
    def done(self) -> bool:
        """True once the steps have computed `train.max_tokens`."""
        most = self.config.train.max_tokens
        return most is not None and self._computed >= most

    def state(self) -> dict[str, Any]:
        """State that later steps need, besides configuration, learner and `files`."""
        sizes = self.curriculum.state() if self.curriculum else None
        ahead = {"ahead": [batch.facts() for batch in self._ready]} if self._ready else {}
        data = {"data": dict(self.contents)} if self.contents else {}
        counts = {"silent": self._silent, "skipped": self._skips.in_a_row, "computed": self._computed}
        return {"curriculum": sizes, **counts, **ahead, **data}

    def files(self) -> dict[str, bytes]:
        """Batches collected ahead; they cannot be collected again, since their weights no longer exist."""
        return {batch.file: batch.record() for batch in self._ready}

    def restore(self, state: Mapping[str, Any], folder: Path) -> None:
        """Restore state and files of a checkpoint. Raises RunError for other data."""
        self._compare_data(state.get("data", {}))
        if self.curriculum and state["curriculum"]:
            self.curriculum.restore(state["curriculum"])
        self._silent = state["silent"]
        self._skips.in_a_row, self._computed = state.get("skipped", 0), state.get("computed", 0)
        self._ready = deque(Batch.from_checkpoint(facts, folder) for facts in state.get("ahead", ()))

    def _compare_data(self, before: Mapping[str, Any]) -> None:
        """Reject other training data, warn of other held-out problems; earlier versions saved no digests."""
        differs = {use: changed(before[use], self.contents[use]) for use in before.keys() & self.contents.keys()}
        if differs.get("train"):
            raise RunError(
                f"{self.folder.path}: data.train_files={self.config.data.train_files} differs from the data at the "
                f"start of the run ({differs['train']}): restore the file, or start a new run with another --out"
            )
        if differs.get("held_out"):
            self.folder.warn(Note("held_out_changed", differences=differs["held_out"]))

    async def _collect(self, step: int) -> Batch:
        return await self._collector.collect(step, self.curriculum.stage if self.curriculum else None)

    async def _publish(self) -> float:
        start = time.perf_counter()
        await self.learner.publish()
        return time.perf_counter() - start

    async def _learn(self, batch: Batch) -> Learnt:
        return await learn(batch, self.learner, self.config, self.loggers)

    async def _learn_while_collecting(self, batch: Batch, step: int) -> tuple[Learnt, Batch | PalimpsestError]:
        """Learn from `batch` while collecting the batch of `step`, or the error of that."""
        collecting = asyncio.create_task(self._collect(step))
        try:
            learnt = await self._learn(batch)
        except BaseException:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)
            raise
        try:
            return learnt, await collecting
        except PalimpsestError as error:
            return learnt, error

    def _grow(self, batch: Batch) -> Metrics:
        """Pass the batch's reward to the curriculum; ignores batches started in an earlier stage."""
        if self.curriculum is None or batch.stage is None:
            return {}
        sizes = self.curriculum
        size = sizes.size_at(batch.stage)
        reward = batch.metrics.get("grade/outcome", batch.metrics.get("reward/mean"))
        if batch.stage == sizes.stage and sizes.update(reward):
            self.loggers.message(Note("curriculum_grows", step=batch.step, before=size, after=sizes.size))
        return {"curriculum/chunks": float(size), "curriculum/stage": float(batch.stage)}

    def _watch(self, batch: Batch) -> None:
        """Warn of steps in a row without signal, and once each of other losses."""
        self._silent = 0 if batch.metrics.get("groups/with_signal") else self._silent + 1
        if self._silent and self._silent % SILENT_STEPS == 0:
            self.folder.warn(Note("no_signal", step=batch.step, steps=self._silent))
        searched = "rewards_unread" in self._warned  # the search reads every turn
        if (
            not searched
            and self.config.reward.name != "environment"
            and (unread := unread_rewards(batch.groups, self.config.credit))
        ):
            self._warn_once("rewards_unread", step=batch.step, **unread)
        if cut := int(batch.metrics.get("episode/documents_cut", 0)):
            self._warn_once("documents_cut", step=batch.step, episodes=cut)
        if rate := batch.metrics.get("tool/tool_errors_unreadable"):
            self._warn_once("calls_unread", rate=rate)
        if count := int(batch.metrics["reward/ungraded"]):
            episodes = sum(len(group.grades) for group in batch.groups)
            counts = {"count": count, "episodes": episodes, "reason": why_ungraded(batch.groups)}
            self._warn_once("episodes_ungraded", step=batch.step, **counts)

    def _warn_once(self, key: str, **values: Any) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self.folder.warn(Note(key, **values))
