"""Shared parts of the servers: errors in the server's own form, hosts and origins, bodies, upgrades, threads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import weakref
from collections.abc import MutableMapping
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.requests import Request

from palimpsest.errors import DataError
from palimpsest.servers.http_service import (
    SWITCH_SECONDS,
    ErrorForm,
    Intake,
    ReadingThreads,
    Refused,
    RequestGuard,
    Server,
    bound,
    json_response,
    plain_error,
)
from palimpsest.servers.openai.request_bodies import openai_error


@pytest.mark.parametrize("form", [plain_error, openai_error])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Refused(418, "no tea"), 418, "no tea"),
        (DataError("p: broken"), 400, "p: broken"),
        (OSError(28, "No space left on device"), 500, "the server failed (OSError); its log says why"),
    ],
)
async def test_every_error_has_the_form_of_the_server(
    form: ErrorForm, error: Exception, status: int, message: str
) -> None:
    def fails(_: Request) -> Any:
        raise error

    app = RequestGuard(None, form=form).app([("/a", "GET", fails)])
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/a")
    assert answer.status_code == status
    assert answer.json() == form(Refused(status, message))


async def test_a_server_sets_a_short_switch_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    before, intervals = sys.getswitchinterval(), list[float]()

    async def serve(self: uvicorn.Server, sockets: list[socket.socket] | None) -> None:
        intervals.append(sys.getswitchinterval())

    monkeypatch.setattr(uvicorn.Server, "serve", serve)
    try:
        with bound("127.0.0.1", 0) as listening:
            await Server(RequestGuard(None).app([]), listening).serve()
    finally:
        sys.setswitchinterval(before)
    assert intervals == [pytest.approx(SWITCH_SECONDS)]


def test_a_server_that_is_cancelled_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A signal does so to a command before the server handles signals."""

    async def cancelled() -> None:
        with bound("127.0.0.1", 0) as listening:
            server = Server(RequestGuard(None).app([]), listening)
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(cancelled())  # cancels the tasks that are left
    assert capsys.readouterr().err == ""


async def test_every_piece_of_an_answer_is_sent_at_once() -> None:
    """Without TCP_NODELAY the second one waits until the client has confirmed the first, 40 ms on Linux."""
    accepted = asyncio.Queue[int]()

    async def served(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening: socket.socket = writer.get_extra_info("socket")
        accepted.put_nowait(listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bound("127.0.0.1", 0) as listening:
        server = await asyncio.start_server(served, sock=listening)
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await accepted.get()
        writer.close()
        server.close()


async def status_for(hosts: list[str], origin: str | None = None) -> int:
    """The status of a request with those headers, at a server without a key."""
    app = RequestGuard(None, pages=False).app((("/", "GET", lambda _: json_response({})),))
    headers = [
        *((b"host", host.encode()) for host in hosts),
        *([(b"origin", origin.encode())] if origin is not None else []),
    ]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("evil.com@127.0.0.1", None),
        ("127.0.0.1#evil.com", None),
        ("127.0.0.1/evil.com", None),
        ("[::1].evil.com", None),
        ("127.0.0.1:8400:1", None),
        ("127.0.0.1:", None),
        ("localhost.", None),
        ("", None),
        ("localhost:8400", "http://evil.com\\@127.0.0.1:8400"),
        ("localhost:8400", "http://evil.com@localhost:8400"),
        ("localhost:8400", "http://localhost:3000"),
        ("localhost:8400", "http://localhost"),
        ("localhost", "https://localhost:80"),
        ("localhost:8400", "file://localhost:8400"),
        ("localhost:8400", "null"),
        ("localhost:8400", ""),
    ],
)
async def test_hosts_and_origins_other_than_this_server_are_rejected(host: str, origin: str | None) -> None:
    assert await status_for([host], origin) == 403


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8400", None),
        ("LOCALHOST:8400", "http://localhost:8400"),
        ("[::1]:8400", "http://127.0.0.1:8400"),
        ("127.0.0.1:8400", "https://localhost:8400"),
        ("localhost", "https://localhost:443"),
    ],
)
async def test_a_page_of_this_server_is_answered(host: str, origin: str | None) -> None:
    assert await status_for([host], origin) == 200


async def test_two_hosts_are_rejected() -> None:
    assert await status_for(["localhost", "evil.com"]) == 400


async def replies_to(*pieces: bytes) -> list[bytes]:
    """The bodies of the replies to `pieces`, sent one after the other, of a server that sends bodies back."""

    async def echo(request: Request) -> Any:
        return json_response([request.method, request.url.path, (await request.body()).decode()])

    app = RequestGuard(None).app([("/a", "POST", echo), ("/b", "GET", echo)])
    with bound("127.0.0.1", 0) as listening:
        server = Server(app, listening, grace_seconds=1)
        serving = asyncio.create_task(server.serve())
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.05)
        replies = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    return [reply.partition(b"\r\n\r\n")[2] for reply in replies.split(b"HTTP/1.1 ")[1:]]


OFFER = b"Host: 127.0.0.1\r\nUpgrade: %s\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMA\r\n"
LAST = b"GET /b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("size", [1, 5000])
async def test_an_upgrade_offer_is_ignored_and_body_and_later_requests_are_read(
    protocol: bytes, framing: str, size: int
) -> None:
    body = b"x" * size
    head = b"POST /a HTTP/1.1\r\n" + OFFER % protocol
    if framing == "length":
        head, sent = head + b"Content-Length: %d\r\n\r\n" % size, body
    else:
        head, sent = head + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
    expected = [b'["POST","/a","%s"]' % body, b'["GET","/b",""]']
    assert await replies_to(head + sent + LAST) == expected
    assert await replies_to(head[:40], head[40:], sent, LAST) == expected


async def test_connect_is_an_error_and_ends_the_connection() -> None:
    replies = await replies_to(b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + LAST)
    assert len(replies) == 1
    assert b"CONNECT" in replies[0]


async def test_an_upgrade_offer_does_not_widen_the_limit_of_a_head() -> None:
    head = b"GET /b HTTP/1.1\r\n" + OFFER % b"h2c" + b"X: %s\r\n\r\n"
    assert await replies_to(head % (b"a" * 15_000) + LAST) == [b'["GET","/b",""]'] * 2
    assert b"exceeds" in (await replies_to(head % (b"a" * 20_000) + LAST))[0]


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


async def rejection(task: asyncio.Task[bytes]) -> tuple[int, str | None]:
    with pytest.raises(Refused) as error:
        await task
    return error.value.status, error.value.code


async def test_bodies_that_are_not_complete_hold_a_bounded_sum_of_bytes() -> None:
    intake = Intake(together=150)
    first, second = Sender(b"a" * 100), Sender(b"b" * 60)
    task = first.received(intake)
    await asyncio.sleep(0.01)
    assert await rejection(second.received(intake)) == (503, "too_many_bodies")
    first.send(b"", more=False)
    assert await task == b"a" * 100
    third = Sender(b"c" * 100)
    third.send(b"", more=False)
    assert await third.received(intake) == b"c" * 100


async def test_a_body_that_does_not_end_in_time_is_rejected_and_holds_nothing() -> None:
    intake = Intake(together=150)
    assert await rejection(Sender(b"a" * 100).received(intake, seconds=0.02)) == (408, None)
    complete = Sender(b"b" * 100)
    complete.send(b"", more=False)
    assert await complete.received(intake) == b"b" * 100


@pytest.mark.parametrize(("declared", "status"), [(b"101", 413), (b"100", 408)])
async def test_a_body_declared_too_long_is_rejected_before_it_arrives(declared: bytes, status: int) -> None:
    sender = Sender()
    sender.request.scope["headers"] = [(b"content-length", declared)]
    assert await rejection(sender.received(Intake(), seconds=0.05)) == (status, None)


class Document:
    """A large object."""


async def test_a_reading_thread_releases_what_it_worked_on() -> None:
    threads, document = ReadingThreads(1, "test"), Document()
    reference = weakref.ref(document)
    assert await threads.run(lambda held=document: held) is document  # type: ignore[misc]
    del document
    async with asyncio.timeout(30):
        while reference() is not None:
            await asyncio.sleep(0.01)
    threads.close()
