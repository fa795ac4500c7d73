"""What an evaluation will cost, told before anything is played: by playing one problem of each set without its model.

Every reply is taken to be as long as it may be, so a policy takes as many turns and reads as much as it can; the
problem whose document is of middle length stands for its set.

Guaranteed: the model is asked nothing. Not covered: policies with tools, with roles, and of a user's own making, whose
turns aren't known before; what a judge costs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import dataclass

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import CompletionDelta, Engine, SamplerStats
from palimpsest.evaluation.run import EvalSet
from palimpsest.evaluation.samples import SampleKey
from palimpsest.jobs.evaluated import Prices
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.progress.progress import Progress
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
