"""Driver of a job in a run folder: resume, log, evaluate, save, stop. The job defines the steps.

Guaranteed: a job whose step is a function of (step, state, weights) yields the same metrics, trajectories and weights
regardless of kills and resumes; the first SIGINT or SIGTERM finishes the step, saves and returns. A step that ends in
an error the user can fix (a failed sampler or judge, a problem that exceeds a budget) leaves a checkpoint of the
previous step, unless the weights have changed since.
Not covered: an interrupted step. It runs again from the last checkpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from palimpsest import files
from palimpsest.config.training_steps import TrainConfig
from palimpsest.engines.protocol import Learner
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.notes import Note
from palimpsest.runs.checkpoint import step_name
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import LoggerSet
from palimpsest.runs.resume_rules import command_of_whole
from palimpsest.runs.run_folder import METRICS, SAVED, RunFolder
from palimpsest.runs.signals import GracefulStop
from palimpsest.types import Group

BEST = "best"
"""Name of the checkpoint for `train.metric_for_best_model`."""

Evaluate = Callable[[int], Awaitable[Mapping[str, float]]]
"""Called with the step after which it measures; returns metrics, logged under `eval/`."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of a step."""

    metrics: Mapping[str, float]
    """A function of only configuration and step."""
    timings: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    """Trajectories to record."""
    encoded: bytes | None = None
    """Record of `groups`, if it exists already."""


class Job(Protocol):
    """A training job; steps count from 1."""

    records: ClassVar[bool]
    """True if the report of each step has trajectories."""

    @property
    def done(self) -> bool:
        """True if no further step is needed, before `max_steps` too."""
        ...

    async def step(self, step: int) -> StepReport: ...

    def state(self) -> Mapping[str, Any]:
        """JSON state that later steps need, besides configuration and learner."""
        ...

    def files(self) -> Mapping[str, bytes]:
        """Large state that later steps need: content by path in the checkpoint's folder."""
        ...

    def restore(self, state: Mapping[str, Any], folder: Path) -> None:
        """Restore the results of `state` and `files`; the files are in `folder`."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """End of a run."""

    step: int
    """Last finished step; its checkpoint exists."""
    interrupted: bool
    """True if a signal ended the run before its last step."""
    checkpoint: Path


@dataclass
class Driver:
    job: Job
    learner: Learner
    folder: RunFolder
    config: TrainConfig
    loggers: LoggerSet
    evaluate: Evaluate | None = None
    stop: GracefulStop = field(default_factory=GracefulStop)

    async def run(self) -> Finished:
        """Continue from the newest checkpoint to `config.max_steps`. Closes the loggers, not the folder."""
        stop = self.stop
        try:
            step, saved = await self._resume()
            with stop.watching(self._on_signal):
                if saved is None and self.config.eval_on_start and self.evaluate is not None:
                    await self._finish(0, {}, {})
                while not self._done(step) and not stop.requested:
                    await self._one(step + 1, saved)
                    step += 1
                    if self._due(self.config.save_steps, step):
                        saved = await self._save(step)
                if saved is None or saved.name != step_name(step):
                    saved = await self._save(step)
            interrupted = not self._done(step)
            self.folder.event("interrupted" if interrupted else "finished", step=step)
            return Finished(step, interrupted, saved)
        finally:
            self.loggers.close()

    async def _resume(self) -> tuple[int, Path | None]:
        checkpoint = self.folder.checkpoints.latest()
        step = checkpoint.step if checkpoint else 0
        if checkpoint is not None:
            # first: rejecting the checkpoint leaves the folder unchanged
            self.job.restore(checkpoint.state, checkpoint.path)
        self.folder.checkpoints.tidy(checkpoint)
        if checkpoint is None:
            self.folder.begin_again()
            await self.learner.publish()
            return 0, None
        self.folder.rewind(step, recorded=self.job.records)
        self.loggers.resumed(step)
        await self.learner.load(checkpoint.path)
        if not self._done(step):  # without further sampling, no server must start
            await self.learner.publish()
        self.folder.event("resumed", step=step)
        self.loggers.message(Note("resumed", step=step, checkpoint=str(checkpoint.path)))
        return step, checkpoint.path

    async def _one(self, step: int, saved: Path | None) -> None:
        version = self.learner.version
        try:
            report = await self.job.step(step)
        except PalimpsestError as error:
            unsaved = saved is None or saved.name != step_name(step - 1)
            if step > 1 and unsaved and self.learner.version == version:
                await self._rescue(step - 1, error)
            raise
        if report.groups and step % self.config.record_steps == 0:
            await asyncio.to_thread(self.folder.record, step, report.groups, report.encoded)
        await self._finish(step, report.metrics, report.timings)

    async def _finish(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        measured: Mapping[str, float] = {}
        if self.evaluate is not None and (step == 0 or self._due(self.config.eval_steps, step)):
            measured = {f"eval/{name}": value for name, value in (await self.evaluate(step)).items()}
        self.loggers.log(step, {**metrics, **measured}, {**timings, "sink_failures": float(self.loggers.failures)})
        if measured and self.config.metric_for_best_model is not None:
            await self._keep_best(step, self.config.metric_for_best_model, measured)

    async def _keep_best(self, step: int, name: str, measured: Mapping[str, float]) -> None:
        """Save checkpoints/best if `eval/name` is the highest so far. Raises RunError for an unknown metric.

        Earlier values come from metrics.jsonl, so a resumed run compares like an uninterrupted one.
        """
        key = f"eval/{name}"
        if key not in measured:
            if "eval/accuracy" not in measured:
                return  # nothing was graded
            names = ", ".join(sorted(one.removeprefix("eval/") for one in measured))
            mistyped = RunError(f"train.metric_for_best_model={name}: unknown evaluation metric; choose one of {names}")
            if step:
                await self._rescue(step, mistyped)  # retains the training so far
            raise mistyped
        rows = read_rows(self.folder.path / METRICS)
        before = [row[key] for row in rows if row["step"] < step and row.get(key) is not None]
        there = (self.folder.checkpoints.folder / BEST).is_dir()
        if not math.isfinite(measured[key]) or (there and before and measured[key] <= max(before)):
            return
        self.folder.flush()
        await self.folder.checkpoints.save(step, self._write, self.job.state(), name=BEST)
        self.folder.event("best", step=step, metric=name, value=measured[key])
        self.loggers.message(Note("best_checkpoint", step=step, metric=name, value=measured[key]))

    async def _rescue(self, step: int, error: PalimpsestError) -> None:
        """Save the weights from before `error`. If saving fails too, the message of `error` reports it."""
        try:
            await self._save(step)
        except (PalimpsestError, OSError) as second:
            error.args = (f"{error}; writing the checkpoint of step {step} failed too: {second}",)

    async def _save(self, step: int) -> Path:
        self.folder.flush()
        saved = await self.folder.checkpoints.save(step, self._write, self.job.state())
        self.folder.event(SAVED, step=step, bytes=saved.size)
        return saved.path

    async def _write(self, folder: Path) -> Mapping[str, str]:
        written = dict(await self.learner.save(folder))
        for name, content in self.job.files().items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            files.write_plain(path, content)
            written[name] = hashlib.sha256(content).hexdigest()
        return written

    def _due(self, every: int | None, step: int) -> bool:
        return every is not None and (step % every == 0 or self._done(step))

    def _done(self, step: int) -> bool:
        return step >= self.config.max_steps or self.job.done

    def _on_signal(self, name: str) -> None:
        self.loggers.message(Note("stopping", signal=name, resume=command_of_whole(self.folder.path)))
