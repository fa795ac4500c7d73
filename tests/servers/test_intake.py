"""Bodies while they are received: bounded in bytes together and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

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

    def received(self, intake: Intake, seconds: float = 30.0) -> asyncio.Task[bytes]:
        return asyncio.create_task(intake.body(self.request, most=100, seconds=seconds, advice="send less"))


async def refused(task: asyncio.Task[bytes]) -> tuple[int, str | None]:
    with pytest.raises(Refused) as error:
        await task
    return error.value.status, error.value.code


async def test_bodies_that_are_not_complete_hold_a_bounded_sum_of_bytes() -> None:
    intake = Intake(together=150)
    first, second = Sender(b"a" * 100), Sender(b"b" * 60)
    task = first.received(intake)
    await asyncio.sleep(0.01)
    assert await refused(second.received(intake)) == (503, "too_many_bodies")
    first.send(b"", more=False)
    assert await task == b"a" * 100
    third = Sender(b"c" * 100)
    third.send(b"", more=False)
    assert await third.received(intake) == b"c" * 100


async def test_a_body_that_does_not_end_in_time_is_rejected_and_holds_nothing() -> None:
    intake = Intake(together=150)
    assert await refused(Sender(b"a" * 100).received(intake, seconds=0.02)) == (408, None)
    whole = Sender(b"b" * 100)
    whole.send(b"", more=False)
    assert await whole.received(intake) == b"b" * 100


@pytest.mark.parametrize(("declared", "status"), [(b"101", 413), (b"100", 408)])
async def test_a_body_declared_too_long_is_rejected_before_it_arrives(declared: bytes, status: int) -> None:
    sender = Sender()
    sender.request.scope["headers"] = [(b"content-length", declared)]
    assert await refused(sender.received(Intake(), seconds=0.05)) == (status, None)
