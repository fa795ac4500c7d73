"""An evaluation in shards, each played by a process with an engine of its own.

A shard is every n-th problem of some sets. How problems are dealt out, and so which sequences are batched together,
depends on the configuration alone, never on which process is faster: the same configuration gives the same answers.

Guaranteed: a shard that was interrupted goes on where its log ends, with more or fewer problems if the configuration
now says so; a log of other weights, policies, data or sampling is set aside and the shard played anew.
Not covered: a resumed shard is batched differently, so near ties of greedy decoding may fall otherwise by as much as
the sampler's results depend on the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.app.composition import Evaluator, evaluation_identity, measure_memory
from palimpsest.app.config_resolution import on_embedded
from palimpsest.app.quickstart.worker_pool import TaskReport
from palimpsest.app.quickstart_methods import METHODS
from palimpsest.config.load import parse_config
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Sampler
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import SAMPLES, Cell, Sample, read_samples, set_aside_other
from palimpsest.memory.registry import admit_all, build_policy, evaluated
from palimpsest.reward.compose import build_reward
from palimpsest.reward.grading import closing

_TELL_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` of `count` of an evaluation of some policies on one set of weights; a task for a `WorkerPool`."""

    method: str
    config: str
    """The run configuration as YAML."""
    model: str
    policies: Sequence[str]
    """Names of `evaluation.baselines` or `evaluation.trained_baselines`; any other is the configured policy."""
    folder: str
    index: int
    count: int

    @property
    def path(self) -> Path:
        """Folder of its log."""
        return Path(self.folder) / f"shard-{self.index + 1}-of-{self.count}"

    def turns(self, config: RunConfig) -> int:
        """About how many turns it takes, those of finished episodes included."""
        axis, policies = METHODS[self.method].axis, [_policy(name, config) for name in self.policies]
        return sum(
            len(range(self.index, axis.count(config, point), self.count)) * axis.turns(config, policy, point)
            for policy in policies
            for point in axis.points(config)
        )

    def turns_played(self) -> int:
        """Turns of the episodes that its log holds."""
        log = self.path / SAMPLES
        return sum(sample.turns for sample in read_samples(log)[0]) if log.is_file() else 0

    def run(self, report: TaskReport) -> None:
        """Play it."""
        asyncio.run(play_shard(self, report))


async def play_shard(shard: Shard, report: TaskReport) -> None:
    """Play what the shard's log does not hold yet."""
    config = on_embedded(parse_config(shard.config))  # whatever trained it
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": shard.model})})
    engine = await asyncio.to_thread(open_engine, config, objective=None)
    entries = _entries(shard, config)
    for each in entries:
        admit_all(each.policy, each.problems, engine.codec, engine.sampler.max_context)
    reward = build_reward(config.reward, engine.codec, Path(shard.folder))
    evaluator = Evaluator(config, engine, reward.answer, key="quickstart", measure=measure_memory)
    policies = {name: _policy(name, config) for name in shard.policies}
    planned = METHODS[shard.method].axis.planned(config)
    identity = {**evaluation_identity(config, policies), "trained": planned}  # points are multiples of it
    if aside := set_aside_other(shard.path, identity):
        report.message(f"{aside}: played with other weights or settings than now, so set aside and played anew")
    playing = evaluator.play(entries, out=shard.path, identity=identity, on_warning=report.message)
    telling = asyncio.create_task(_tell_turns(engine.sampler, report))
    try:
        await using(engine, closing(reward, playing))
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _tell_turns(sampler: Sampler, report: TaskReport) -> None:
    """Report the turns that were begun, until cancelled: long episodes go side by side and end at the same time."""
    told, playing = 0, True
    while playing:
        try:
            await asyncio.sleep(_TELL_EVERY_S)
        except asyncio.CancelledError:
            playing = False
        begun = sampler.stats().requests
        if begun > told:
            report.part(begun - told)
            told = begun


def samples_of(shards: Sequence[Shard]) -> dict[Cell, list[Sample]]:
    """Samples of finished shards by cell, of the problems that the configuration asks for now."""
    samples: dict[Cell, list[Sample]] = {}
    for shard in shards:
        entries = _entries(shard, parse_config(shard.config))
        asked = {(each.cell, problem.id) for each in entries for problem in each.problems}
        for sample in read_samples(shard.path / SAMPLES)[0]:
            if (sample.cell, sample.id) in asked:
                samples.setdefault(sample.cell, []).append(sample)
    return samples


def _entries(shard: Shard, config: RunConfig) -> list[Entry]:
    method = METHODS[shard.method]
    entries = []
    for point in method.axis.points(config):
        problems = method.axis.problems(config, point)[shard.index :: shard.count]
        for name in shard.policies:
            policy = build_policy(_policy(name, config))
            entries.append(Entry(method.cell(config, name, point), policy, problems))
    return entries


def _policy(name: str, config: RunConfig) -> PolicyConfig:
    others = {**config.evaluation.trained_baselines, **config.evaluation.baselines}
    return evaluated(others.get(name, config.policy))
