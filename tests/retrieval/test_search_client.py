"""The client with servers that answer, stall, fail and send wrong replies; on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from palimpsest.errors import ConfigError, SearchError
from palimpsest.retrieval.search import Hit
from palimpsest.retrieval.search_client import RemoteSearch
from support.clock import leap

GOOD = json.dumps({"result": [[{"document": {"id": "1"}, "score": 2.5}]]})


@asynccontextmanager
async def server(
    *replies: tuple[int, str] | None, held: asyncio.Event | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Sends one reply per request, the last one repeatedly; None: a minute without a reply, once `held` is set."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split()[1]
        )
        requests.append(head + await reader.readexactly(length))
        reply = replies[min(len(requests), len(replies)) - 1]
        if reply is None:
            if held is not None:
                await held.wait()
            leap(60)
            await reader.read()  # until the client leaves
        else:
            status, body = reply
            head_out = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write((head_out + body).encode())
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", requests
    finally:
        listening.close()


async def test_hits_come_back_and_the_token_is_sent() -> None:
    async with server((200, GOOD)) as (url, requests), RemoteSearch(url, token="secret") as client:
        assert await client.search(["q"], 3) == [[Hit({"id": "1"}, 2.5)]]
        assert await client.search([], 3) == []
    (request,) = requests
    assert b"authorization: bearer secret" in request.lower()
    assert json.loads(request.partition(b"\r\n\r\n")[2]) == {"queries": ["q"], "topk": 3, "return_scores": True}


async def test_hits_are_at_most_as_many_as_wanted_and_their_scores_finite() -> None:
    many = json.dumps({"result": [[{"document": {"id": str(n)}, "score": 2.5} for n in range(9)]]})
    async with server((200, many)) as (url, _), RemoteSearch(url) as client:
        assert [[hit.document["id"] for hit in hits] for hits in await client.search(["q"], 3)] == [["0", "1", "2"]]
    async with server((200, GOOD.replace("2.5", '"nan"'))) as (url, _), RemoteSearch(url) as client:
        with pytest.raises(SearchError, match="not finite"):
            await client.search(["q"], 3)


async def test_a_busy_failing_or_stalling_server_gets_another_request() -> None:
    replies = ((503, "full"), (500, "oops"), (429, "slow down"), None, (200, GOOD))
    async with server(*replies) as (url, requests), RemoteSearch(url, pause=0.01, timeout=30) as client:
        assert await client.search(["q"], 1) == [[Hit({"id": "1"}, 2.5)]]
    assert len(requests) == len(replies)


async def test_the_client_gives_up_after_its_attempts() -> None:
    async with server((503, "full")) as (url, requests), RemoteSearch(url, attempts=3, pause=0.01) as client:
        with pytest.raises(SearchError, match="gave up after 3 attempts: status 503"):
            await client.search(["q"], 1)
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((400, "bad query"), "status 400: 'bad query'"),
        ((401, "token"), "status 401"),
        ((200, "<html>"), "not the answer of a retrieval server"),
        ((200, '{"result": [[{"document": {}}]]}'), "not the answer"),
        ((200, '{"result": 3}'), "not the answer"),
        ((200, '{"result": []}'), "0 results for 1 queries"),
        ((200, '{"result": ' + "[" * 200_000), "not the answer"),
        ((200, '{"result":' * 100_000), "not the answer"),
        ((200, '{"result": [[{"document": {}, "score": 1e999}]]}'), "not the answer"),
    ],
)
async def test_an_error_that_persists_is_not_retried(reply: tuple[int, str], reason: str) -> None:
    async with server(reply) as (url, requests), RemoteSearch(url) as client:
        with pytest.raises(SearchError, match=reason) as caught:
            await client.search(["q"], 1)
    assert len(requests) == 1
    assert "\n" not in str(caught.value)


async def test_an_answer_that_cannot_be_decoded_is_an_error_at_once() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\nConnection: close\r\n\r\nno gzip!"
        )
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, RemoteSearch(url, pause=60) as client:
        with pytest.raises(SearchError, match=f"{url}/retrieve: the reply is not valid gzip"):
            await client.search(["q"], 1)


@pytest.mark.parametrize(
    "packed", ["gzip", *(pytest.param(how, marks=pytest.mark.slow) for how in ("deflate", "identity"))]
)
async def test_a_reply_is_read_up_to_a_limit_in_any_encoding(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palimpsest.retrieval.search_client.RemoteSearch.reply_bytes", 2_000_000)
    zeros = b"0" * 1_000_000
    pack = zlib.compressobj(9, wbits=31 if packed == "gzip" else 15)
    bomb = b"".join([pack.compress(zeros) for _ in range(300)]) + pack.flush()
    sent = [0]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = bomb if packed != "identity" else None
        writer.write(f"HTTP/1.1 200 x\r\nContent-Encoding: {packed}\r\nConnection: close\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for piece in [body] if body else [zeros] * 300:
                writer.write(piece)
                await writer.drain()
                sent[0] += len(piece)
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with listening, RemoteSearch(url, attempts=1) as client:
        with pytest.raises(SearchError, match="the reply exceeds 2000000 bytes"):
            await client.search(["q"], 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB; whole it would be 300,000
    assert sent[0] < 100_000_000


@pytest.mark.parametrize(
    "reply",
    [
        (400, "you sent Bearer ECHO"),
        (503, "ECHO " * 50),
        (200, '{"result": "ECHO"}'),
        (200, '{"result": [[{"document": {}, "score": "ECHO"}]]}'),
    ],
)
@pytest.mark.parametrize("echo", ["t0k/en", r"t0k\/en", r"\u00740k/en", "t0k%2fen"])
async def test_a_token_that_a_server_echoes_is_in_no_message(reply: tuple[int, str], echo: str) -> None:
    async with (
        server((reply[0], reply[1].replace("ECHO", echo))) as (url, _),
        RemoteSearch(url, token="t0k/en", attempts=1) as client,
    ):
        with pytest.raises(SearchError) as caught:
            await client.search(["q"], 1)
    assert "0k" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://user:pw@127.0.0.1:1", "http://user@127.0.0.1:1", "http://user:pw@host:port", "http://user:p/w@h"]
)
def test_an_address_with_a_password_is_rejected_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"use http://host:port") as error:
        RemoteSearch(url)
    assert "pw" not in str(error.value)
    assert "user@" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "127.0.0.1:8000", "http://", "http://host:port", "ftp://host", "", "http://a\nb"]
)
def test_an_invalid_address_is_rejected_with_the_fix(url: str) -> None:
    with pytest.raises(ConfigError, match="use http://host:port") as error:
        RemoteSearch(url)
    assert repr(url) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("token", ["ä", "two words", "a\nb"])
def test_a_token_that_no_header_can_contain_is_rejected(token: str) -> None:
    with pytest.raises(ConfigError, match="token: no client can send this token in a header; use ASCII letters"):
        RemoteSearch("http://127.0.0.1:9", token=token)


async def test_waiting_searches_share_a_request_and_a_rejected_one_fails_alone() -> None:
    replies = (None, (400, "a query is too long"), (200, GOOD), (400, "too long"), (200, GOOD))
    held = asyncio.Event()
    async with (
        server(*replies, held=held) as (url, requests),
        RemoteSearch(url, connections=1, timeout=30, attempts=1) as client,
    ):
        searches = [asyncio.create_task(client.search(["first"], 1))]
        while not requests:
            await asyncio.sleep(0.01)
        searches += [asyncio.create_task(client.search([query], 1)) for query in ("a", "long", "b")]
        asyncio.get_running_loop().call_soon(held.set)  # when the three have started
        answers = await asyncio.gather(*searches, return_exceptions=True)
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2])["queries"] for request in requests]
    assert bodies == [["first"], ["a", "long", "b"], ["a"], ["long"], ["b"]]
    assert [isinstance(answer, SearchError) for answer in answers] == [True, False, True, False]


async def test_the_event_loop_is_not_blocked_by_a_stalling_server() -> None:
    held = asyncio.Event()
    async with server(None, held=held) as (url, requests), RemoteSearch(url, attempts=2, timeout=30) as client:
        waiting = asyncio.create_task(client.search(["q"], 1))
        while not requests:  # the server runs in this loop
            await asyncio.sleep(0.001)
        assert not waiting.done()
        held.set()
        with pytest.raises(SearchError, match="no answer within 30 s"):
            await waiting
    assert len(requests) == 2
