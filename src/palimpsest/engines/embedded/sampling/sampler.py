"""The embedded engine's sampler: any number of callers on the event loop, one batch on the compute thread.

Every `generate` is a request. One task passes new requests to the next step of the batch (`continuous_batch.py`),
awaits the step on the compute thread, returns finished completions, and lets the loop run the waiting episodes; there
is no barrier between turns, episodes or groups.

Guaranteed: a step's contents depend only on earlier requests, never on events during its computation, so the same
episodes give the same bytes; a failure of one request fails only that request; every caller gets an answer after any
error. A batch never depends on the previous one: the cache is cleared when nothing is in flight.
Samplers with the same `turns` step one after the other, so this also holds for episodes that wait for several of them.
Not covered: episodes that also wait for something else (a judge, a clock): the step of their next request varies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from palimpsest.engines.embedded.architecture import Context, context_of
from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.engines.embedded.sampling.continuous_batch import (
    CACHE_TOKENS,
    ContinuousBatch,
    Request,
    Stepped,
)
from palimpsest.engines.protocol import CompletionDelta, SamplerStats, Turns, check_prompt
from palimpsest.errors import PalimpsestError, SamplerError
from palimpsest.types import Completion, SamplingParams

_SETTLE = 3  # a finished future, its episode and its wrapper each take a turn of the loop
_SETTLE_ROLES = 16  # a reply of a role passes more tasks (agents/roles.py, `generate_all`)


@dataclass(slots=True)
class _Caller:
    future: asyncio.Future[Completion]
    deltas: asyncio.Queue[CompletionDelta | None] = field(default_factory=asyncio.Queue)
    """Tokens of a stream; None: the end, with the result in the future."""


class Steps(Protocol):
    """Interface of a `Batch`, here or in another process. Called on the compute thread."""

    vocab: int
    version: int
    counters: SamplerStats

    def step(self, arrivals: Sequence[Request], dropped: Collection[Request]) -> Stepped: ...

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]: ...

    def publish(self, version: int) -> None: ...

    def reset(self) -> None: ...


class BatchSampler:
    """Satisfies `palimpsest.engines.protocol.Sampler`."""

    def __init__(self, batch: Steps, context: Context, thread: ComputeThread) -> None:
        self.max_context = context.tokens
        self._reason = context.reason
        self._thread = thread
        self._batch: Any = batch  # tests look into it
        self._incoming: list[Request] = []
        """Requests not yet in a step."""
        self._callers: dict[Request, _Caller] = {}
        """Callers of all unfinished requests."""
        self._driver: asyncio.Task[None] | None = None
        self._failed = self._cancelled = 0
        self._closed = False
        self.turns: Turns | None = None
        """Shared with other samplers of the same episodes."""

    @property
    def version(self) -> int:
        version: int = self._batch.version
        return version

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        """See `Sampler.generate`. Prompts share a computed prefix in any session."""
        return await self._submit(prompt_ids, params).future

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """See `Sampler.stream`; a delta holds one token."""
        caller = self._submit(prompt_ids, params, streamed=True)
        try:
            while (delta := await caller.deltas.get()) is not None:
                yield delta
            yield CompletionDelta(completion=await caller.future)
        finally:
            caller.future.cancel()

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        """See `Sampler.score`; one forward over the whole sequence."""
        self._refuse_closed()
        if not ids:
            return ()
        self._check(prompt_ids, len(ids))
        self._check(ids, 1)
        try:
            return await self._thread.run(self._batch.score, prompt_ids, ids)
        except PalimpsestError:
            raise
        except Exception as error:
            raise SamplerError(f"scoring failed: {type(error).__name__}: {error}") from error

    def stats(self) -> SamplerStats:
        stats: SamplerStats = replace(self._batch.counters, failed=self._failed, cancelled=self._cancelled)
        return stats

    async def publish(self, version: int) -> None:
        """Switch to the weights of `version`; see `Batch.publish`."""
        await self._thread.run(self._batch.publish, version)

    async def close(self) -> None:
        """Cancel all requests, on any event loop, and end the thread; a second call does nothing."""
        self._closed = True
        driver, self._driver = self._driver, None
        if driver is None or driver.get_loop().is_closed():
            pass  # no caller waits
        elif driver.get_loop() is asyncio.get_running_loop():
            self._stop(driver)
            await asyncio.gather(driver, return_exceptions=True)
        else:
            with suppress(RuntimeError):  # that loop is closed by now
                driver.get_loop().call_soon_threadsafe(self._stop, driver)
        await self._thread.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SamplerError("the engine is closed: open a new one")

    def _check(self, prompt_ids: Sequence[int], max_tokens: int) -> None:
        check_prompt(prompt_ids, max_tokens, vocab=self._batch.vocab, max_context=self.max_context, reason=self._reason)

    # ---- the driver -----------------------------------------------------------------------------------------

    def _submit(self, prompt_ids: Sequence[int], params: SamplingParams, *, streamed: bool = False) -> _Caller:
        self._refuse_closed()
        self._check(prompt_ids, params.max_tokens)
        loop = asyncio.get_running_loop()
        if self._driver is not None and self._driver.get_loop() is not loop:
            self._abandon()
        request = Request(np.array(prompt_ids, np.int64), params, streamed)
        caller = self._callers[request] = _Caller(loop.create_future())
        self._incoming.append(request)
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
        return caller

    async def _drive(self) -> None:
        """Step until nothing is waiting or in flight."""
        try:
            while self._callers:
                async with self.turns.lock() if self.turns else nullcontext():
                    await self._one_step()
        except Exception as error:  # noqa: BLE001 - border: every caller gets an answer after any error
            reason = "the engine was closed" if self._closed else f"sampling failed: {type(error).__name__}: {error}"
            self._fail_all(error if isinstance(error, PalimpsestError) else SamplerError(reason))
        except asyncio.CancelledError:
            self._fail_all(None)
            self._forget()
            raise
        self._forget()  # not in a `finally`: an abandoned task is destroyed at any later time

    async def _one_step(self) -> None:
        if self.turns:
            await _settle(_SETTLE_ROLES)  # episodes that waited for another of the turns before this one
            self._incoming.sort(key=lambda request: request.params.seed)  # not by which of them waited longer
        dropped = {request for request, caller in self._callers.items() if caller.future.done()}
        arrivals = [request for request in self._incoming if request not in dropped]
        self._incoming = []
        for request in dropped:
            del self._callers[request]
        self._cancelled += len(dropped)
        self._deliver(await self._thread.run(self._batch.step, arrivals, dropped))
        await _settle(_SETTLE_ROLES if self.turns else _SETTLE)

    def _stop(self, driver: asyncio.Task[None]) -> None:
        """Cancel `driver` and, since a task cancelled before its start notifies no one, the callers."""
        driver.cancel()
        self._fail_all(None)

    def _forget(self) -> None:
        """Clear the cache before any other computation."""
        with suppress(RuntimeError):  # the thread was closed: nothing is computed any more
            self._thread.post(self._batch.reset)

    def _deliver(self, stepped: Stepped) -> None:
        for request, token, logprob in stepped.streamed:
            self._callers[request].deltas.put_nowait(CompletionDelta((token,), (logprob,)))
        for request, result in stepped.ended:
            caller = self._callers.pop(request)
            caller.deltas.put_nowait(None)
            if caller.future.done():
                self._cancelled += 1
            elif isinstance(result, SamplerError):
                self._failed += 1
                caller.future.set_exception(result)
            else:
                caller.future.set_result(result)

    def _fail_all(self, error: PalimpsestError | None) -> None:
        for caller in self._callers.values():
            if not caller.future.done():
                self._failed += 1
                caller.future.set_exception(error) if error else caller.future.cancel()
            caller.deltas.put_nowait(None)
        self._callers.clear()
        self._incoming.clear()

    def _abandon(self) -> None:
        """Drop the requests of another event loop that has closed: their callers are gone."""
        self._cancelled += len(self._callers)
        self._driver = None
        self._callers.clear()
        self._incoming.clear()
        self._forget()


async def _settle(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


class EmbeddedSampler(BatchSampler):
    """A sampler in this process."""

    def __init__(
        self,
        model: Any,
        *,
        thread: ComputeThread | None = None,
        version: int = 0,
        max_num_seqs: int = 128,
        cache_tokens: int = CACHE_TOKENS,
        memory: int | None = None,
        fused: bool = True,
    ) -> None:
        """`thread`: the one that also trains `model`, if any; `version`: of its weights. Others: see
        `ContinuousBatch`."""
        batch = ContinuousBatch(
            model,
            max_num_seqs=max_num_seqs,
            cache_tokens=cache_tokens,
            memory=memory,
            fused=fused,
        )
        batch.version = version
        super().__init__(batch, context_of(model), thread or ComputeThread())
