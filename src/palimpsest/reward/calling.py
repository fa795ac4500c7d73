"""A user's function, plain or async, to be awaited, for so long and no longer.

A plain function is called on one daemon thread, a call at a time in the order in which they are asked for. Its time
begins when the call does, not while it waits for others.

Guaranteed: after `timeout_s` whoever waits gets `OutOfTime`; the calls behind one that ran out of time go on, on a new
thread.
Not covered: ending a plain function that ran out of time. No thread can be ended from outside: it goes on beside the
calls after it, until it returns or the process ends, which doesn't wait for it. An async function is cancelled; one
that takes no cancellation, or blocks the event loop, is not ended either.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from palimpsest import plugins


class OutOfTime(Exception):
    """A call that took longer than it may."""


class Caller:
    """A function, plain or async."""

    def __init__(self, call: Callable[..., Any], timeout_s: float | None = None) -> None:
        self._call = call
        self._timeout_s = timeout_s
        self.waits = is_async(call)
        """Whether it is async; what isn't is called on a thread."""
        self._thread: _Thread | None = None

    async def __call__(self, *arguments: Any) -> Any:
        """What it returns. What it raises comes out as itself, but for a CancelledError that nobody asked for."""
        if self.waits:
            return await self._in_time(self._call(*arguments))
        if self._thread is None:
            self._thread = _Thread()
        asked = self._thread.ask(lambda: self._call(*arguments))
        await asked.begun
        try:
            result = await self._in_time(asked.ended)
        except OutOfTime:
            self._thread.leave(asked)
            raise
        if isinstance(result, _Raised):
            raise result.error
        return await self._in_time(result) if inspect.isawaitable(result) else result

    async def _in_time(self, awaitable: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await awaitable
        except TimeoutError:
            if not limit.expired():
                raise  # the function's own
            raise OutOfTime(f"did not return within {self._timeout_s:g} s") from None

    async def close(self) -> None:
        """Let go of the thread, and close what the object has open."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        owner = plugins.owner(self._call)
        closing_call = getattr(owner, "close", None)
        if closing_call is not None:
            result = closing_call()
            if inspect.isawaitable(result):
                await result


def is_async(call: Callable[..., Any]) -> bool:
    """Also where it is an object whose class defines `async def __call__`."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


@dataclass(frozen=True, slots=True)
class _Raised:
    """A future can't carry every kind of error (StopIteration)."""

    error: BaseException


@dataclass(slots=True, eq=False)
class _Asked:
    """A call that was asked for."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    begun: asyncio.Future[None] = field(init=False)
    ended: asyncio.Future[Any] = field(init=False)
    is_done: bool = False

    def __post_init__(self) -> None:
        self.begun, self.ended = self.loop.create_future(), self.loop.create_future()

    def tell(self, future: asyncio.Future[Any], result: Any) -> None:
        """Set a future's result from the thread, if anybody still waits for it."""

        def settle() -> None:
            if not future.done():
                future.set_result(result)

        try:
            self.loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop is closed: nobody waits


class _Thread:
    """One daemon thread at a time that makes the calls; one that is stuck in a call is left to itself."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Asked | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._current = self._start()

    def ask(self, work: Callable[[], Any]) -> _Asked:
        """Have `work` done after what was asked for before."""
        asked = _Asked(work)
        self._queue.put(asked)
        return asked

    def leave(self, asked: _Asked) -> None:
        """Go on with the next call on a new thread, if the present one is still in `asked`."""
        with self._lock:
            if not asked.is_done:
                self._current = self._start()

    def close(self) -> None:
        """End the thread after the call it is in; what waits is dropped."""
        while not self._queue.empty():
            if (waiting := self._queue.get()) is not None:
                waiting.begun.cancel()
        self._queue.put(None)

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="reward", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            if asked.begun.cancelled():
                continue  # whoever asked gave up before
            asked.tell(asked.begun, None)
            try:
                result = asked.work()
            except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
                result = _Raised(error)
            with self._lock:
                asked.is_done = True
                asked.tell(asked.ended, result)
                if self._current is not threading.current_thread():
                    return  # it was left to itself meanwhile
