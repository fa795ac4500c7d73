"""Ray engine (`engine.name=ray`): a learner on ranks, copies of the sampler, each in a process.

The driver decides the steps of every copy's batch as if the batch were local, so a run repeats byte for byte.

Guaranteed: the event loop never blocks; the same numbers of ranks and samplers give the same bytes; processes start on
first use, and all have ended after `close`. All requests of an episode go to one copy, chosen by the episode's name.
Samplers have separate weights: while the learner learns (`train.max_off_policy_steps`) they sample from the last
published version.
Not covered: roles with another model on separate GPUs; each role takes as many copies as `cluster.samplers` says.
Speed: every step is a call to another process, about a millisecond; vLLM's servers are for that.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from palimpsest.config.engine import RayEngineConfig
from palimpsest.config.schema import Layout, RunConfig, by_ray, is_served
from palimpsest.engines.embedded.architecture import Context, context_of
from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.engines.embedded.engine import check_vocabulary
from palimpsest.engines.embedded.forest.gradients import skips_silent
from palimpsest.engines.embedded.sampling.continuous_batch import Request, Stepped
from palimpsest.engines.embedded.sampling.sampler import BatchSampler
from palimpsest.engines.protocol import (
    CompletionDelta,
    Limits,
    Objective,
    SamplerStats,
    StepBatch,
    UpdateStats,
)
from palimpsest.engines.ray.actor_group import ActorGroup, check_gpus
from palimpsest.engines.ray.actors import ActorReply, BatchStep
from palimpsest.engines.ray.rank_batches import RankPlan, merged, plan
from palimpsest.engines.ray.ray_runtime import COMPILING, Limit, WrittenWeights
from palimpsest.engines.ray.server_hosts import ServerHosts
from palimpsest.engines.ray.sharding import skeleton, source_of
from palimpsest.errors import ConfigError, SamplerError
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, SamplingParams

# ---- Copies of the embedded sampler, one per process ---------------------------------------------------------


Ids = Sequence[int]


class RemoteBatch:
    """A `Batch` in the process of a sampler. Satisfies `embedded.sampling.sampler.Steps`."""

    def __init__(self, group: ActorGroup, index: int, vocab: int) -> None:
        self.vocab, self.version, self.counters = vocab, 0, SamplerStats()
        self._group, self._index = group, index
        self._requests: dict[int, Request] = {}
        self._last = 0

    def _call(self, method: str, *arguments: Any) -> Any:
        self._group.start()
        limit = self._group.limit()
        (answer,) = self._group.call(self._group.samplers[self._index :][:1], method, *arguments, limit=limit)
        return answer

    def step(self, arrivals: Sequence[Request], dropped: Collection[Request]) -> Stepped:
        fresh = {self._last + 1 + n: request for n, request in enumerate(arrivals)}
        self._last += len(fresh)
        self._requests |= fresh
        gone = [number for number, request in self._requests.items() if request in dropped]
        reply: ActorReply = self._call(
            "step",
            BatchStep([(n, request.prompt, request.params, request.streamed) for n, request in fresh.items()], gone),
        )
        for number in gone:
            del self._requests[number]
        self.counters = reply.counters
        streamed = [(self._requests[number], token, logprob) for number, token, logprob in reply.streamed]
        ended = [
            (self._requests.pop(number), SamplerError(result) if isinstance(result, str) else result)
            for number, result in reply.ended
        ]
        return Stepped(ended, streamed)

    def score(self, prompt_ids: Ids, ids: Ids) -> tuple[float, ...]:
        return tuple(self._call("score", list(prompt_ids), list(ids)))

    def reset(self) -> None:
        self._requests.clear()
        if self._group.samplers:
            self._call("reset")

    def publish(self, version: int) -> None:
        """Set the version of the weights from `load_weights`."""
        self.version = version

    def load_weights(self, folder: Path, version: int) -> None:
        self._call("load_weights", folder, version)
        self.version = version


class Samplers:
    """Satisfies `palimpsest.engines.protocol.Sampler`."""

    def __init__(self, group: ActorGroup, copies: int, context: Context, vocab: int) -> None:
        self.max_context = context.tokens
        self._threads = [ComputeThread() for _ in range(copies)]
        self._batches = [RemoteBatch(group, index, vocab) for index in range(copies)]
        self._samplers = [
            BatchSampler(batch, context, thread) for batch, thread in zip(self._batches, self._threads, strict=True)
        ]

    @property
    def version(self) -> int:
        return min(batch.version for batch in self._batches)

    def _of(self, session: str | None, prompt_ids: Ids) -> BatchSampler:
        name = session if session is not None else repr(hash(tuple(prompt_ids)))
        return self._samplers[zlib.crc32(name.encode()) % len(self._samplers)]

    async def generate(self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None) -> Completion:
        return await self._of(session, prompt_ids).generate(prompt_ids, params)

    async def stream(
        self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        async for delta in self._of(session, prompt_ids).stream(prompt_ids, params):
            yield delta

    async def score(self, prompt_ids: Ids, ids: Ids) -> tuple[float, ...]:
        return await self._of(None, prompt_ids).score(prompt_ids, ids)

    def stats(self) -> SamplerStats:
        """The sum over all copies."""
        per_copy = [sampler.stats() for sampler in self._samplers]
        return SamplerStats(**{f.name: sum(getattr(stats, f.name) for stats in per_copy) for f in fields(SamplerStats)})

    async def load_weights(self, folder: Path, version: int) -> None:
        """Load the model in `folder` into every copy; returns once the last has it."""
        pairs = zip(self._threads, self._batches, strict=True)
        await asyncio.gather(*(thread.run(batch.load_weights, folder, version) for thread, batch in pairs))

    async def close(self) -> None:
        for sampler in self._samplers:
            await sampler.close()


# ---- Learner and engine --------------------------------------------------------------------------------------


class RayLearner:
    """Satisfies `palimpsest.engines.protocol.Learner`."""

    def __init__(
        self, config: RunConfig, objective: Objective, group: ActorGroup, samplers: Samplers | None, limits: Limits
    ) -> None:
        self._config, self._cluster, self._group, self._samplers = config, config.cluster, group, samplers
        self._skips_silent = skips_silent(objective, config.loss)
        self.limits = limits
        self.version = self._updates = 0
        self._published: int | None = None
        self._layout: Layout | None = None

    async def update(self, steps: Sequence[StepBatch]) -> list[UpdateStats]:
        dealt = await asyncio.to_thread(self._plan, steps)
        answers = await asyncio.to_thread(self._update, dealt)
        self.version = answers[0][1]
        ranks = [stats for stats, _ in answers[:: self._cluster.tensor_parallel_size]]  # the others computed the same
        return [merged(of_step, dealt.metrics) for of_step in zip(*ranks, strict=True)]

    def _plan(self, steps: Sequence[StepBatch]) -> RankPlan:
        settings = self._config.engine
        assert isinstance(settings, RayEngineConfig)
        if self._layout is None:
            self._group.start()
            (self._layout,) = self._group.call(self._group.ranks[:1], "layout", limit=self._limit())
        self._updates += 1
        return plan(
            steps,
            self._cluster.learners // self._cluster.tensor_parallel_size,
            number=self._updates,
            micro_batch_tokens=settings.micro_batch_tokens,
            max_context=self.limits.max_context,
            skips_silent=self._skips_silent,
            layout=self._layout,
        )

    def _update(self, dealt: RankPlan) -> list[tuple[list[UpdateStats], int]]:
        self._group.start()
        size = self._cluster.tensor_parallel_size
        calls = [rank.update.remote(dealt.parts[number // size]) for number, rank in enumerate(self._group.ranks)]
        passes = max(1, int(dealt.parts[0].passes.sum()))  # a limit for each time that ranks wait for each other
        return self._group.collect(calls, self._limit(passes), "update")

    def _limit(self, times: int = 1) -> Limit:
        return self._group.limit(times + (COMPILING if self._updates <= 1 else 0))

    async def save(self, folder: Path) -> Mapping[str, str]:
        """See `Learner.save`; each rank writes its share of the state, the first also the model's files."""
        written: dict[str, str] = {}
        for part in await self._all("save", folder.resolve()):
            written |= part
        return written

    async def load(self, folder: Path) -> None:
        self.version = (await self._all("load", folder.resolve()))[0]
        self._published = None

    async def publish(self) -> int:
        """See `Learner.publish`; returns once every copy of the sampler has the weights."""
        if self._samplers is None:
            return self.version
        await asyncio.to_thread(self._group.start)  # a failed start is an error of the run, not of an episode
        if self._published == self.version or (self._published is None and not self.version):
            return self.version
        folder = self._group.folder / f"weights-{self.version}"
        try:
            await self.write_weights(folder)
            await self._samplers.load_weights(folder, self.version)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._published = self.version
        return self.version

    async def write_weights(self, folder: Path) -> None:
        """Write the current model for samplers: adapters merged, output projection written separately.

        Raises EngineError if the disk is full.
        """
        folder.mkdir()
        await self._all("publish", folder.resolve())

    def write_on_its_machine(self, name: str) -> WrittenWeights:
        """Let the first rank write the current model into a new folder there, as `write_weights` does. Blocks."""
        self._group.start()
        written: WrittenWeights = self._group.call(self._group.ranks, "write", name, limit=self._limit())[0]
        return written

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """[T - 1] nats of each of `ids` after those before it, at temperature 1."""
        return tuple((await self._all("score", ids))[0])

    async def _all(self, method: str, argument: Any) -> list[Any]:
        def call() -> list[Any]:
            self._group.start()
            return self._group.call(self._group.ranks, method, argument, limit=self._limit())

        return await asyncio.to_thread(call)


class RayEngine:
    """Satisfies `palimpsest.engines.protocol.Engine`."""

    def __init__(self, config: RunConfig, *, objective: Objective | None) -> None:
        """Reads `config.model` without its weights; raises ModelError if it can't be used."""
        settings, cluster = config.engine, config.cluster
        assert isinstance(settings, RayEngineConfig)
        if cluster.folder is not None and not (Path(cluster.folder).is_dir() and os.access(cluster.folder, os.W_OK)):
            reason = "not a writable folder; create it, or set another"
            raise ConfigError(f"cluster.folder={cluster.folder}: {reason}")
        copies = 0 if objective == "nll" or is_served(config, objective) else cluster.samplers
        check_gpus(config, cluster.learners if objective else 0, copies)
        self.codec = Codec.load(config.model)
        model = skeleton(source_of(config.model))
        context, vocab = context_of(model), int(model.get_output_embeddings().weight.shape[0])
        check_vocabulary(self.codec, vocab, config.model.path)
        slots = settings.max_num_seqs * cluster.samplers
        notes = [f"the window is {context.tokens} tokens {context.reason}"] if context.reason else []
        if cluster.address is not None:
            notes.append(risk_of(cluster.address))
        self.limits = Limits(vocab, context.tokens, slots, "; ".join(notes))
        self._group = ActorGroup(config, objective, copies)
        self.sampler = Samplers(self._group, copies, context, vocab)
        self.learner: RayLearner | None = None
        if objective is not None:
            samples = self.sampler if copies else None
            self.learner = RayLearner(config, objective, self._group, samples, self.limits)
        self.hosts: ServerHosts | None = None
        """Machines for vLLM servers, if Ray decides where they run."""
        if self.learner is not None and by_ray(config, objective):
            size = sum(weight.numel() for weight in model.parameters())
            self.hosts = ServerHosts(config, self._group, self.learner.write_on_its_machine, size)

    async def close(self) -> None:
        await asyncio.to_thread(self._group.close)
        await self.sampler.close()


def risk_of(address: str) -> str:
    """Warning about the risk of joining a cluster at `address`."""
    token = os.environ.get("RAY_AUTH_MODE") == "token"
    return (
        f"cluster.address={address}: Ray and the ranks listen on all interfaces of their machines; anyone who reaches "
        f"a port {'and knows the token ' if token else ''}runs code there as you: keep them on a private network"
        + ("" if token else ", and start Ray with RAY_AUTH_MODE=token")
    )
