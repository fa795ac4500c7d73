"""What an evaluation will cost, how far it is, and what an endpoint counted.

Every reply is taken to be as long as it may be, so a policy takes as many turns and reads as much as it can; the
problem whose document is of middle length stands for its set.

Guaranteed: the model is asked nothing. Not covered: policies with tools, with roles, and of a user's own making, whose
turns aren't known before; what a judge costs.

What an endpoint counted while it was asked: told when an evaluation ends, and kept in `usage.jsonl`.

Guaranteed: a line for each call that played something and came to an end, in the order of the calls.
Not covered: calls that were killed; what tokens cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Container, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from palimpsest import files
from palimpsest.app.evaluate.evaluation_result import Prices
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import outlines
from palimpsest.engines.protocol import CompletionDelta, Engine, SamplerStats
from palimpsest.evaluation.runner import EvalSet, Samples
from palimpsest.evaluation.sample_log import SAMPLES, Sample, SampleKey, not_asked_told, read_samples
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.progress.reporter import Progress, Tick
from palimpsest.rollout.episode import play
from palimpsest.types import Completion, Problem, SamplingParams, StopReason


@dataclass(slots=True)
class _Longest:
    """A sampler whose replies are as long as they may be. Satisfies `palimpsest.engines.protocol.Sampler`."""

    max_context: int
    filler: int
    """The id that they are made of."""
    requests: int = 0
    read: int = 0
    sampled: int = 0
    version: int = 0

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        self.requests += 1
        self.read += len(prompt_ids)
        self.sampled += params.max_tokens
        ids = (self.filler,) * params.max_tokens
        return Completion(ids, (0.0,) * len(ids), StopReason.LENGTH)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        yield CompletionDelta(completion=await self.generate(prompt_ids, params))

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        return (0.0,) * len(ids)

    def stats(self) -> SamplerStats:
        return SamplerStats()


async def announce_cost(
    sets: Sequence[EvalSet],
    config: RunConfig,
    engine: Engine,
    prices: Prices | None,
    progress: Progress,
    done: Container[SampleKey] = (),
) -> None:
    """Tell what `sets` cost at the most, but for the episodes that are `done`, where the model is somebody else's or
    has its price, and something is left to play."""
    if prices is None and engine.limits.endpoint is None:
        return
    left = [(each, episodes) for each in sets if (episodes := sum(key not in done for key in each.keys))]
    if not left:
        return
    requests = read = sampled = 0
    unknown = dict[str, None]()
    for each, episodes in left:
        if not _is_known(each.policy, config):
            unknown[each.name] = None
            continue
        longest = _Longest(engine.sampler.max_context, engine.codec.encode("a")[0])
        await _play(each.policy, _of_middle_length(each.problems), longest, config, engine)
        requests += longest.requests * episodes
        read += longest.read * episodes
        sampled += longest.sampled * episodes
    told = f"at most about {_about(requests)} requests, {_about(read)} prompt tokens and {_about(sampled)} sampled ones"
    if prices is not None:
        told += f": {(read * prices.read + sampled * prices.sampled) / 1e6:,.2f} at the prices given"
    progress.message(told + (f"; beside that, not known before: {', '.join(unknown)}" if unknown else ""))


def _of_middle_length(problems: Sequence[Problem]) -> Problem:
    """That whose document is the median; one document at a time is in memory."""
    lengths = [len(problem.context or "") for problem in problems]
    return problems[sorted(range(len(lengths)), key=lengths.__getitem__)[len(lengths) // 2]]


async def _play(policy: MemoryPolicy, problem: Problem, sampler: _Longest, config: RunConfig, engine: Engine) -> None:
    await play(
        problem,
        policy=policy,
        sampler=sampler,
        codec=engine.codec,
        sampling=config.eval_sampling,
        key=("estimate",),
        group_id="estimate",
        rollout=0,
    )


def _is_known(policy: MemoryPolicy, config: RunConfig) -> bool:
    """Whether an episode of it needs a model alone."""
    own = not type(policy).__module__.startswith("palimpsest.")
    return not own and not config.roles and not hasattr(policy, "tools")


def _about(number: int) -> str:
    """Two digits of it.

    >>> _about(1234567), _about(80)
    ('1,200,000', '80')
    """
    return f"{float(f'{number:.2g}'):,.0f}"


# ---- How far an evaluation is --------------------------------------------------------------------------------


class Counted:
    """Counts the episodes as they end, with the agent's score so far."""

    def __init__(self, tick: Tick, before: Sequence[Sample]) -> None:
        self.done = frozenset(sample.key for sample in before)
        """Episodes that need not be played again."""
        self.played, self.seconds = 0, 0.0
        self._tick = tick
        self._values = [sample.value for sample in before if sample.baseline is None and sample.value is not None]

    def __call__(self, sample: Sample) -> None:
        self.played += 1
        if sample.baseline is None and sample.value is not None:
            self._values.append(sample.value)
        self._tick(note=f"score {100 * fmean(self._values):.1f}" if self._values else None)


def logged(out: Path | None) -> Samples:
    """Every episode in the log at `out`."""
    found = read_samples(out / SAMPLES)[0] if out is not None and (out / SAMPLES).exists() else []
    return {sample.key: sample for sample in found}


def finished(log: Samples) -> frozenset[SampleKey]:
    """Episodes that need not be played again."""
    return frozenset(key for key, sample in log.items() if sample.is_final)


@contextmanager
def counting(sets: Sequence[EvalSet], log: Samples, progress: Progress) -> Iterator[Counted]:
    """What was played before counts as done; `log`: everything that was."""
    drawn = {(each.name, problem.id): each.samples for each in sets for problem in outlines(each.problems)}
    asked = [sample for sample in log.values() if sample.draw < drawn.get((sample.name, sample.id), 0)]
    before = [sample for sample in asked if sample.is_final]
    if before:
        progress.message(f"{len(before):,} of {sum(drawn.values()):,} episodes are there already")
    if further := len(log) - len(asked):
        progress.message(not_asked_told(further))
    began = time.monotonic()
    with progress.count("episodes", sum(drawn.values()), done=len(before)) as tick:
        counted = Counted(tick, before)
        yield counted
        counted.seconds = time.monotonic() - began


# ---- What an endpoint counted while it was asked -------------------------------------------------------------


T = TypeVar("T")

USAGE = "usage.jsonl"


async def metered(engine: Engine, work: Coroutine[Any, Any, T], out: Path | None, progress: Progress) -> T:
    """What `work` gives; however it ends, what the engine's endpoint counted meanwhile is told, and kept in `out`."""
    try:
        return await work
    finally:
        _record(engine, out, progress)


def _record(engine: Engine, out: Path | None, progress: Progress) -> None:
    """Of an engine that asks an endpoint; nothing of others, or where nothing was asked."""
    stats = engine.sampler.stats()
    if engine.limits.endpoint is None or not stats.requests:
        return
    cached = stats.prompt_tokens - stats.computed_prompt_tokens
    progress.message(
        f"the endpoint counted {stats.requests:,} requests, {stats.prompt_tokens:,} prompt tokens ({cached:,} of them "
        f"cached) and {stats.generated_tokens:,} sampled ones; {stats.failed:,} requests failed"
    )
    if out is None or not out.is_dir():
        return
    counted = {"url": engine.limits.endpoint.url, "requests": stats.requests, "failed": stats.failed}
    counted |= {"prompt_tokens": stats.prompt_tokens, "cached_tokens": cached, "sampled_tokens": stats.generated_tokens}
    with files.naming(out / USAGE), (out / USAGE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(counted) + "\n")
