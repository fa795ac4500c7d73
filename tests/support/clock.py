"""The clock of an event loop, moved by a test: a time limit is reached without waiting for it.

So limits in tests can be longer than anything takes on a busy machine.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any


def leap(seconds: float) -> None:
    """Put the clock of the running event loop forward: what it was to do by then is due."""
    loop: Any = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds


async def overdue(*waiting: asyncio.Task[Any], seconds: float = 60.0) -> None:
    """Put the clock forward by `seconds` again and again, until every limit that these wait under is reached."""
    until = time.monotonic() + 60
    while not all(task.done() for task in waiting):
        assert time.monotonic() < until, "no time limit ends what is awaited"
        leap(seconds)
        await asyncio.sleep(0.001)
