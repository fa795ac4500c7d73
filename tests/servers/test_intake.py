"""Bodies while they are received: bounded in number, in bytes together and in rate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from palimpsest.servers import http_service as intake_module
from palimpsest.servers.connection_limits import ConnectionLimits
from palimpsest.servers.http_service import Intake, Refused


class Sender:
    """A body whose pieces a test sends."""

    def __init__(self, *pieces: bytes) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for piece in pieces:
            self.send(piece)
        self.request = Request({"type": "http", "headers": []}, self._messages.get)

    def send(self, piece: bytes, more: bool = True) -> None:
        self._messages.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def received(self, intake: Intake) -> asyncio.Task[bytes]:
        return asyncio.create_task(intake.body(self.request, most=100, seconds=30.0, advice="send less"))


async def refused(task: asyncio.Task[bytes]) -> tuple[int, str | None]:
    with pytest.raises(Refused) as error:
        await task
    return error.value.status, error.value.code


async def test_half_of_the_connections_may_send_a_body_and_a_place_is_free_again_after_it() -> None:
    intake, senders = Intake(ConnectionLimits(connections=8)), [Sender(b"a") for _ in range(4)]
    tasks = [each.received(intake) for each in senders]
    await asyncio.sleep(0.01)
    assert await refused(Sender(b"a").received(intake)) == (503, "too_many_bodies")
    senders[0].send(b"b", more=False)
    assert await tasks[0] == b"ab"
    tasks.append(Sender(b"a").received(intake))
    await asyncio.sleep(0.01)
    assert await refused(Sender(b"a").received(intake)) == (503, "too_many_bodies")
    for task in tasks[1:]:
        task.cancel()


async def test_bodies_that_are_not_complete_hold_a_bounded_sum_of_bytes() -> None:
    intake = Intake(ConnectionLimits(), together=150)
    first, second = Sender(b"a" * 100), Sender(b"b" * 60)
    task = first.received(intake)
    await asyncio.sleep(0.01)
    assert await refused(second.received(intake)) == (503, "too_many_bodies")
    first.send(b"", more=False)
    assert await task == b"a" * 100
    third = Sender(b"c" * 100)
    third.send(b"", more=False)
    assert await third.received(intake) == b"c" * 100


async def test_a_body_that_trickles_in_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "INTAKE_GRACE_SECONDS", 0.02)
    assert await refused(Sender(b"a").received(Intake(ConnectionLimits()))) == (408, None)
