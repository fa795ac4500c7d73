"""The clock of an event loop, moved by a test, so that limits can be long and are reached without waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Any


def leap(seconds: float) -> None:
    """Put the clock of the running event loop forward."""
    loop: Any = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds


async def overdue(*waiting: asyncio.Task[Any], seconds: float = 60.0) -> None:
    """Put the clock forward by `seconds` repeatedly, until these tasks are done."""
    until = time.monotonic() + 60
    while not all(task.done() for task in waiting):
        assert time.monotonic() < until, "no time limit ends what is awaited"
        leap(seconds)
        await asyncio.sleep(0.001)
