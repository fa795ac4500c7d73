"""Connections are kept between requests, and replaced where the service closed them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from palimpsest.http_connections import Connections
from palimpsest.http_services import BadReply, Unanswered

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"


@dataclass
class Service:
    url: str = ""
    opened: int = 0
    requests: int = 0


@asynccontextmanager
async def service(answers: Callable[[int], bytes | None]) -> AsyncIterator[Service]:
    """A server on loopback. `answers(number)`: reply to request `number` of a connection; after None and HALF, the
    connection closes."""
    state = Service()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.opened += 1
        number = 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                state.requests, number = state.requests + 1, number + 1
                if (reply := answers(number)) is None:
                    break
                writer.write(reply)
                if reply == HALF:
                    break
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield state


async def requests(connections: Connections, state: Service, times: int) -> list[bytes]:
    return [(await connections.ask("POST", state.url, {"a": 1}, limit=100)).body for _ in range(times)]


async def test_requests_one_after_the_other_use_one_connection() -> None:
    async with service(lambda _number: OK) as state:
        connections = Connections()
        assert await requests(connections, state, 3) == [b"ok"] * 3
        assert (state.opened, state.requests) == (1, 3)
        await connections.close()


async def test_a_request_on_a_reused_connection_that_closes_is_sent_again() -> None:
    async with service(lambda number: OK if number == 1 else None) as state:
        connections = Connections()
        assert await requests(connections, state, 3) == [b"ok"] * 3
        assert (state.opened, state.requests) == (3, 5)
        await connections.close()


@pytest.mark.parametrize("reply", [None, HALF])
async def test_a_request_on_a_new_connection_is_sent_once(reply: bytes | None) -> None:
    async with service(lambda _number: reply) as state:
        connections = Connections()
        with pytest.raises(Unanswered):
            await requests(connections, state, 1)
        assert state.requests == 1
        await connections.close()


async def test_a_request_whose_reply_began_is_sent_once() -> None:
    async with service(lambda number: OK if number == 1 else HALF) as state:
        connections = Connections()
        with pytest.raises(Unanswered):
            await requests(connections, state, 2)
        assert (state.opened, state.requests) == (1, 2)
        await connections.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"Authorization: Bearer sk-SECRET\r\n\r\n",
        b"HTTP/1.1 sk-SECRET x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nsk-SECRET\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: sk-SECRET\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsk-SECRET\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: sk-SECRET\r\nContent-Length: 2\r\n\r\nok",
        bytes(range(33, 127)) * 60 + b"\r\n\r\n",
    ],
)
async def test_an_error_of_a_malformed_reply_is_short_and_has_no_token(reply: bytes) -> None:
    async with service(lambda number: reply) as state:
        connections = Connections(token="sk-SECRET")
        with pytest.raises((Unanswered, BadReply)) as failed:
            await connections.ask("POST", state.url, {"a": 1}, limit=100, timeout_s=60)
        await connections.close()
    assert "secret" not in str(failed.value).lower()
    assert 0 < len(str(failed.value)) <= 300
