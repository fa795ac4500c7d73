"""Files are parsed on threads that an exit doesn't wait for.

Guaranteed: at most `PARSERS` hold a place at once, so that other requests go on; who gets none in time is told to come
later. After `LIMIT_S` a place is given to the next, and who waits is told which files took too long.
Not covered: a thread can't be ended; one that never ends goes with the process.
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
LIMIT_S = 1200.0
"""For the files of one request."""


class Parsers:
    """The places of one event loop."""

    def __init__(self, count: int = PARSERS, wait_s: float = WAIT_S, limit_s: float = LIMIT_S) -> None:
        self._places, self._wait_s, self._limit_s = asyncio.Semaphore(count), wait_s, limit_s

    async def run(self, names: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises of files called `names`. Raises Refused where no place is left for too long, or
        it takes too long."""
        await self._take_place()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                self._places.release()
            given_back = True

        overdue = loop.call_later(self._limit_s, give_back)

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
            overdue.cancel()
            give_back()
            if ended.done():
                return  # nobody waits any more
            if failure is None:
                ended.set_result(result)
            else:
                ended.set_exception(failure)

        threading.Thread(target=body, name="palimpsest-parser", daemon=True).start()
        if not (await asyncio.wait((ended,), timeout=self._limit_s))[0]:
            raise Refused(400, f"{names}: not read within {self._limit_s:g} s; send its text", code="invalid_file")
        return ended.result()

    async def _take_place(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            said = "other files are being read; try again later"
            raise Refused(503, said, code="busy", headers={"Retry-After": "5"}) from None
