"""Jobs of a quickstart: a shard of an evaluation, the training of a baseline.

A shard is every n-th problem of some players. How problems are dealt out, and so which sequences are batched together,
depends on the configuration alone, never on which process is faster: the same configuration gives the same answers.

Guaranteed: a shard that was interrupted continues where its log ends, with more or fewer problems if the configuration
now says so; a log of other weights, policies, data or sampling is set aside and the shard played again.
Not covered: a resumed shard is batched differently, so near ties of greedy decoding may fall otherwise by as much as
the sampler's results depend on the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from palimpsest.app.composition import Evaluator, evaluation_identity, measure_memory
from palimpsest.app.config_resolution import on_embedded
from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.quickstart.worker import JobReport
from palimpsest.app.train.training_run import Training, prepare
from palimpsest.config.load import parse_config
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Sampler
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import SAMPLES, Cell, Sample, read_samples, set_aside_other
from palimpsest.memory.registry import admit_all
from palimpsest.reward.compose import build_reward
from palimpsest.reward.grading import closing
from palimpsest.runs.checkpoint import CHECKPOINTS, step_name
from palimpsest.runs.run_folder import open_run

_REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` of `count` of an evaluation of some players on one set of weights."""

    config: str
    """The run configuration as YAML."""
    model: str
    names: tuple[str, ...]
    """Of the players."""
    folder: str
    index: int = 0
    count: int = 1

    @property
    def path(self) -> Path:
        """Folder of its log."""
        return Path(self.folder) / f"shard-{self.index + 1}-of-{self.count}"

    def samples(self) -> list[Sample]:
        """What its log holds."""
        log = self.path / SAMPLES
        return read_samples(log)[0] if log.is_file() else []

    def turns_played(self) -> int:
        """Turns of the episodes that its log holds."""
        return sum(sample.turns for sample in self.samples())

    def run(self, report: JobReport) -> None:
        """Play what its log doesn't hold yet."""
        asyncio.run(self.play(report))

    async def play(self, report: JobReport) -> None:
        """The same, on the loop that runs."""
        config = on_embedded(parse_config(self.config))  # whatever trained it
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": self.model})})
        engine = await asyncio.to_thread(open_engine, config, objective=None)
        grid = Grid(config)
        own = grid.entries(self.names, self.index, self.count)
        for each in own:
            admit_all(each.policy, each.problems, engine.codec, engine.sampler.max_context)
        reward = build_reward(config.reward, engine.codec, Path(self.folder))
        evaluator = Evaluator(config, engine, reward.answer, key="quickstart", measure=measure_memory)
        policies = {name: grid.players[name] for name in self.names}
        identity = {**evaluation_identity(config, policies), "trained": grid.planned}  # points are multiples of it
        if aside := set_aside_other(self.path, identity):
            report.message(f"{aside}: played with other weights or settings than now, so set aside and played anew")
        playing = evaluator.play(own, out=self.path, identity=identity, on_warning=report.message)
        reporting = asyncio.create_task(_report_turns(engine.sampler, report))
        try:
            await using(engine, closing(reward, playing))
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])


async def _report_turns(sampler: Sampler, report: JobReport) -> None:
    """Report the turns that have started, until cancelled: long episodes run concurrently and end at the same time."""
    reported, playing = 0, True
    while playing:
        try:
            await asyncio.sleep(_REPORT_EVERY_S)
        except asyncio.CancelledError:
            playing = False
        started = sampler.stats().requests
        if started > reported:
            report.part(started - reported)
            reported = started


def samples_of(shards: Iterable[Shard]) -> dict[Cell, list[Sample]]:
    """Samples of finished shards by cell, of the problems that the configuration asks for now."""
    found: dict[Cell, list[Sample]] = {}
    for shard in shards:
        own = Grid(parse_config(shard.config)).entries(shard.names, shard.index, shard.count)
        asked = {(each.cell, problem.id) for each in own for problem in each.problems}
        for sample in shard.samples():
            if (sample.cell, sample.id) in asked:
                found.setdefault(sample.cell, []).append(sample)
    return found


@dataclass(frozen=True, slots=True)
class BaselineTraining:
    """The training of a baseline."""

    config: str
    """Its own run configuration as YAML."""
    folder: str

    @property
    def model(self) -> str:
        """Folder of the trained weights, once it has run."""
        return str(Path(self.folder) / CHECKPOINTS / step_name(parse_config(self.config).train.max_steps))

    def run(self, report: JobReport) -> None:
        """Train to the end, continuing what is there."""
        config = parse_config(self.config)
        with open_run(self.folder, config, resume=True, on_warning=report.message) as folder:
            finished = asyncio.run(Training(folder).run(config, prepare(config, folder.path)))
        if finished.interrupted:
            raise RunError(
                f"{self.folder}: interrupted after step {finished.step}; resume the quickstart it belongs to"
            )
