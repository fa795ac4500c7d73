"""Threads that end with the process: reading a file that takes long, or never ends, holds up no end of a server.

Guaranteed: nothing waits for work under way, neither `close` nor the end of the process, which only work that writes
nothing may use; work that hasn't begun when the threads are closed is left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class ReadingThreads:
    """A few daemon threads for blocking work."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """What `work` will give or raise, once a thread is free for it."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """The same, awaited."""
        return await asyncio.wrap_future(self.begin(work))

    def close(self) -> None:
        """Have the threads end after what they are at."""
        while not self._queue.empty():
            self._queue.get()
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            future, work = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001  it is raised again where it is awaited
                    future.set_exception(error)
            del asked, future, work  # what they hold, a document say, isn't kept until there is more to do
