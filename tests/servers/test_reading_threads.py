"""Threads that work for an event loop."""

from __future__ import annotations

import asyncio
import weakref

from palimpsest.servers.http_service import ReadingThreads


class Document:
    """Something large."""


async def test_what_was_worked_on_is_let_go_of_when_it_is_done() -> None:
    threads, document = ReadingThreads(1, "test"), Document()
    known = weakref.ref(document)
    assert await threads.run(lambda held=document: held) is document  # type: ignore[misc]
    del document
    for _ in range(1000):  # the thread comes to its next wait
        if known() is None:
            break
        await asyncio.sleep(0.01)
    assert known() is None
    threads.close()
