"""Search interface of an agent: queries in, ranked passages out, with concurrent queries batched.

    LocalSearch    an index in this process (retrieval/bm25.py), queried in a thread
    DirectSearch   an index small enough to be queried on the event loop
    RemoteSearch   a retrieval server (retrieval/search_client.py)

`Coalescer` answers the queries of many callers in few calls. While a call runs, the queries that arrive wait; the next
call takes all of them, up to a bound. A query that can start at once never waits for others. So callers share the cost
of a call (a request, a hand-over to a thread, a pass through an encoder) exactly when they would otherwise queue.

    running=1    asker A   |--call [a]--|--call [b c d]--|
                 B, C, D      b c d wait

Guaranteed: each caller gets the answers to its own queries, in their order; an error reaches the callers in that call,
and an error that may be one caller's fault (`divide`) reaches only that caller, the others are asked again; a caller
that gives up does not affect the others.
Not covered: use from several event loops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from palimpsest.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage found."""

    document: dict[str, Any]
    """The passage, the caller's own copy."""
    score: float
    """Larger is better; comparable within one query only."""


class Search(Protocol):
    """What a search tool asks."""

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first. Raises SearchError where the service can't answer."""
        ...


class Index(Protocol):
    """A backend in this process."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]: ...


class LocalSearch:
    """An index of this process behind the interface of a server; the event loop goes on while it is asked."""

    def __init__(self, index: Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return await asyncio.to_thread(self.index.search, tuple(queries), topk)


class DirectSearch:
    """A small index of this process behind the interface of a server; whoever asks has the answer without a wait."""

    def __init__(self, index: Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return self.index.search(queries, topk)


def check_token(token: str | None, key: str) -> None:
    """Refuse a server's token, the value of `key`, that would not arrive as it is. Raises ConfigError."""
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{key}: no client can send this one in a header; use ASCII letters, digits and signs")


# ---- Batches of the queries of many callers ------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Ask(Generic[T]):
    queries: tuple[str, ...]
    topk: int
    answer: asyncio.Future[list[T]]


class Coalescer(Generic[T]):
    """`call(queries, topk)` gives one answer for each query; at most `running` calls at a time."""

    def __init__(
        self,
        call: Callable[[Sequence[str], int], Awaitable[Sequence[T]]],
        *,
        running: int,
        together: int,
        divide: tuple[type[Exception], ...] = (),
    ) -> None:
        """`together`: queries in one call; a caller with more has a call of its own."""
        self._call, self._most, self._together, self._divide = call, running, together, divide
        self._waiting: deque[_Ask[T]] = deque()
        self._running: set[asyncio.Task[Any]] = set()
        self.calls = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Callers whose queries are in no call yet."""
        return len(self._waiting)

    async def ask(self, queries: Sequence[str], topk: int) -> list[T]:
        """One answer for each query. Raises what `call` raises."""
        answer: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
        ask = _Ask(tuple(queries), topk, answer)
        self._waiting.append(ask)
        if len(self._running) < self._most:
            self._running.add(asyncio.create_task(self._work()))
        return await ask.answer

    async def close(self) -> None:
        """Give up what is under way; whoever waits is cancelled."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ask in self._waiting:
            ask.answer.cancel()

    async def _work(self) -> None:
        try:
            while asks := self._next():
                try:
                    await self._answer(asks)
                finally:
                    for ask in asks:
                        ask.answer.cancel()  # of no effect on those that were answered
        finally:
            # here and not in a callback, which comes later: who asks in between would wait for a worker that is gone
            task = asyncio.current_task()
            assert task
            self._running.discard(task)

    def _next(self) -> list[_Ask[T]]:
        """The callers of one call: those longest waiting for the same topk."""
        asks: list[_Ask[T]] = []
        count = 0
        while self._waiting:
            first = self._waiting[0]
            if asks and (first.topk != asks[0].topk or count + len(first.queries) > self._together):
                break
            self._waiting.popleft()
            if not first.answer.done():  # its caller may have given up
                asks.append(first)
                count += len(first.queries)
        return asks

    async def _answer(self, asks: Sequence[_Ask[T]]) -> None:
        self.calls += 1
        queries = [query for ask in asks for query in ask.queries]
        try:
            results = await self._call(queries, asks[0].topk)
            if len(results) != len(queries):
                raise ValueError(f"{len(results)} answers to {len(queries)} queries")
        except self._divide as error:
            if len(asks) == 1:
                _fail(asks[0], error)
            else:
                for ask in asks:
                    await self._answer([ask])
        except Exception as error:  # noqa: BLE001  it is every caller's to handle
            for ask in asks:
                _fail(ask, error)
        else:
            rest = iter(results)
            for ask in asks:
                answers = [next(rest) for _ in ask.queries]
                if not ask.answer.done():
                    ask.answer.set_result(answers)


def _fail(ask: _Ask[T], error: Exception) -> None:
    if not ask.answer.done():
        ask.answer.set_exception(error)
