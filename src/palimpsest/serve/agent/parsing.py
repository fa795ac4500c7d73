"""Files are parsed on threads that an exit doesn't wait for.

Guaranteed: at most `PARSERS` run at once, so that other requests go on; a thread that never ends keeps its place, and
who gets none in time is told to come later.
Not covered: a thread can't be ended; it goes with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from palimpsest.serve.http import Refused

P = ParamSpec("P")
T = TypeVar("T")

PARSERS = 2
WAIT_S = 60.0
"""For a place."""


class Parsers:
    """The places of one event loop."""

    def __init__(self, count: int = PARSERS, wait_s: float = WAIT_S) -> None:
        self._places, self._wait_s = asyncio.Semaphore(count), wait_s

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises. Raises Refused where no place is left for too long."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            said = "other files are being read; try again later"
            raise Refused(503, said, code="busy", headers={"Retry-After": "5"}) from None
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def body() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  raised again by whoever waits
                failure = error
            with suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(finish, result, failure)

        def finish(result: T, failure: BaseException | None) -> None:
            self._places.release()
            if ended.done():
                return  # nobody waits any more
            if failure is None:
                ended.set_result(result)
            else:
                ended.set_exception(failure)

        threading.Thread(target=body, name="palimpsest-parser", daemon=True).start()
        return await ended
