"""The embedded sampler's copies in processes of their own, and the batch of each as the driver sees it.

What is in a step of a batch is decided in the driver, as if the batch were there: so a run repeats byte for byte.

Guaranteed: an episode's requests all go to one copy, chosen by the episode's name alone.
Not covered: speed. Every step is a call to another process, about a millisecond; vLLM's servers are for that.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from palimpsest.engines.embedded.architecture import Context
from palimpsest.engines.embedded.sampling.batch import Counters, Request, Stepped
from palimpsest.engines.embedded.sampling.sampler import BatchSampler
from palimpsest.engines.embedded.thread import ComputeThread
from palimpsest.engines.protocol import CompletionDelta, SamplerStats
from palimpsest.engines.scale.actors import Reply, Step
from palimpsest.engines.scale.group import Group
from palimpsest.errors import SamplerError
from palimpsest.types import Completion, SamplingParams

Ids = Sequence[int]


class RemoteBatch:
    """A `Batch` in the process of a sampler. Satisfies `embedded.sampling.sampler.Steps`."""

    def __init__(self, group: Group, index: int, vocab: int) -> None:
        self.vocab, self.version, self.counters, self.evicted = vocab, 0, Counters(), 0
        self._group, self._index = group, index
        self._requests: dict[int, Request] = {}
        self._last = 0

    def _call(self, method: str, *arguments: Any) -> Any:
        self._group.start()
        limit = self._group.limit("publish_timeout_s")
        (answer,) = self._group.call(self._group.samplers[self._index :][:1], method, *arguments, limit=limit)
        return answer

    def step(self, arrivals: Sequence[Request], dropped: Collection[Request]) -> Stepped:
        """See `Batch.step`."""
        fresh = {self._last + 1 + n: request for n, request in enumerate(arrivals)}
        self._last += len(fresh)
        self._requests |= fresh
        gone = [number for number, request in self._requests.items() if request in dropped]
        reply: Reply = self._call(
            "step", Step([(n, request.prompt, request.params, request.streamed) for n, request in fresh.items()], gone)
        )
        for number in gone:
            del self._requests[number]
        self.counters, self.evicted = reply.counters, reply.evicted
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
        """What `load_weights` loaded is of this version."""
        self.version = version

    def load_weights(self, folder: Path, version: int) -> None:
        self._call("load_weights", folder, version)
        self.version = version


class Samplers:
    """Satisfies `palimpsest.engines.protocol.Sampler`."""

    def __init__(self, group: Group, copies: int, context: Context, vocab: int) -> None:
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
        name = session if session is not None else repr(list(prompt_ids))
        return self._samplers[zlib.crc32(name.encode()) % len(self._samplers)]

    async def generate(self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None) -> Completion:
        """See `Sampler.generate`."""
        return await self._of(session, prompt_ids).generate(prompt_ids, params)

    async def stream(
        self, prompt_ids: Ids, params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """See `Sampler.stream`."""
        async for delta in self._of(session, prompt_ids).stream(prompt_ids, params):
            yield delta

    async def score(self, prompt_ids: Ids, ids: Ids) -> tuple[float, ...]:
        """See `Sampler.score`."""
        return await self._of(None, prompt_ids).score(prompt_ids, ids)

    def stats(self) -> SamplerStats:
        """The sum over all copies."""
        each = [sampler.stats() for sampler in self._samplers]
        return SamplerStats(**{f.name: sum(getattr(stats, f.name) for stats in each) for f in fields(SamplerStats)})

    async def load_weights(self, folder: Path, version: int) -> None:
        """Have every copy sample from the model in `folder`; returns once the last does."""
        pairs = zip(self._threads, self._batches, strict=True)
        await asyncio.gather(*(thread.run(batch.load_weights, folder, version) for thread, batch in pairs))

    async def close(self) -> None:
        for sampler in self._samplers:
            await sampler.close()
