"""JSON client of a service over aiohttp: under concurrency a request costs a third of its time in httpx2.

Guaranteed: replies are streamed and never exceed the limit, neither as sent nor decompressed; no cookies, no redirects;
a token is only in a header; a failure is a `RetryableError` of http_services.py; a request is sent again only if the
service closed a reused connection before it replied, or by `JsonClient` a bounded number of times.
Not covered: encodings other than gzip and deflate, which are rejected.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import ssl
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import aiohttp
import certifi
import orjson

from palimpsest.errors import PalimpsestError
from palimpsest.http_services import (
    BadReply,
    Breaker,
    Busy,
    Down,
    GaveUp,
    HttpReply,
    RetryableError,
    ServiceDown,
    Unanswered,
    redacted,
    retry_after,
)
from palimpsest.seeding import Key, keyed_random

T = TypeVar("T")

LONGEST_PAUSE = 20.0
"""Maximum seconds between two attempts, regardless of the service's request."""
ERROR_BYTES = 1 << 16
"""Bytes read of a reply with a status other than 200."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FULL_S, _SCARCE_S = 0.1, 60.0  # between attempts to open a file; without idle connections after a lack of them
_KEPT_S = 4.0
"""Idle time of a connection, below the 5 s of common servers."""


class Connections:
    """To one service or several. For one event loop; `close` them."""

    _scarce_until: ClassVar[float] = 0.0
    """While a lack of file descriptors is recent no connection stays idle: other services need its descriptor."""

    def __init__(self, *, token: str | None = None, proxies_for: str | None = None, socket: Path | None = None) -> None:
        """`proxies_for`: the service's address, reached through the environment's proxies unless it is on this machine;
        `socket`: a Unix socket that replaces every address."""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._token = token
        self._socket = socket
        self._proxies = proxies_for is not None and urlsplit(proxies_for).hostname not in _LOOPBACK
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        limit: int,
        timeout_s: float | None = None,
    ) -> HttpReply:
        """The reply, at most `limit` bytes within `timeout_s`, to `body` (a mapping: as JSON); waits for a
        file descriptor if this process has none left. Raises Unanswered and BadReply."""
        if self._session is None:
            self._session = self._opened()  # only now, in the loop that uses it
        until = asyncio.timeout(timeout_s)
        try:
            async with until:
                return await self._answered(self._session, method, url, encoded(body), limit)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            line = _line(redacted(str(error), self._token)) or type(error).__name__
            raise Unanswered(f"no answer within {timeout_s or 0:g} s" if until.expired() else line) from None

    async def _answered(
        self, session: aiohttp.ClientSession, method: str, url: str, sent: bytes | None, limit: int
    ) -> HttpReply:
        """The reply. A request is sent again if the service closed the reused connection before it replied."""
        while True:
            attempt, scarce = SimpleNamespace(reused=False), time.monotonic() < Connections._scarce_until
            headers = {"Connection": "close"} if scarce else None
            call = session.request(
                method, url, data=sent, headers=headers, allow_redirects=False, trace_request_ctx=attempt
            )
            try:
                async with call as answer:
                    attempt.reused = False
                    return await _read(answer, limit)
            except (aiohttp.ServerDisconnectedError, OSError) as error:
                if not attempt.reused:
                    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    Connections._scarce_until = time.monotonic() + _SCARCE_S
                    await asyncio.sleep(_FULL_S)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        _raise_file_limit()
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_mark_reused)
        connector: aiohttp.BaseConnector
        if self._socket is not None:
            connector = aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=_KEPT_S)
        else:
            connector = aiohttp.TCPConnector(limit=0, ssl=_certificates(), keepalive_timeout=_KEPT_S)
        return aiohttp.ClientSession(
            connector=connector,
            trace_configs=[tracing],
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **self._headers},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=self._proxies,
        )


@cache
def _raise_file_limit() -> None:
    """Allow this process as many open files as it may have: each request in flight has its own connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports more than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@cache
def _certificates() -> ssl.SSLContext:
    """Cached: loading takes about 20 ms."""
    return ssl.create_default_context(cafile=certifi.where())


async def _mark_reused(_session: aiohttp.ClientSession, traced: SimpleNamespace, _params: object) -> None:
    """Called for a request on the connection of an earlier one."""
    traced.trace_request_ctx.reused = True


def encoded(body: Mapping[str, Any] | bytes | None) -> bytes | None:
    """Bytes of the body of a request."""
    return body if body is None or isinstance(body, bytes) else orjson.dumps(body)


def _line(text: str) -> str:
    return f"{' '.join(text.split()):.300}"


async def _read(answer: aiohttp.ClientResponse, limit: int) -> HttpReply:
    ok = answer.status == 200
    limit = limit if ok else ERROR_BYTES
    chunks, size = list[bytes](), 0
    async for chunk in answer.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            if ok:
                raise BadReply(f"the reply exceeds {limit} bytes")
            break
    headers = {name.lower(): value for name, value in answer.headers.items()}
    encoding = headers.get("content-encoding", "identity").lower()
    return HttpReply(answer.status, headers, _decompressed(b"".join(chunks), encoding, limit, ok=ok))


def _decompressed(raw: bytes, encoding: str, limit: int, *, ok: bool) -> bytes:
    if encoding == "identity":
        return raw
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadReply("the reply has an unexpected encoding: use identity, gzip or deflate")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: a header of gzip or of zlib
    try:
        body = inflate.decompress(raw, limit + 1)
    except zlib.error as error:
        raise BadReply(f"the reply is not valid {encoding} ({error})") from None
    if len(body) > limit and ok:
        raise BadReply(f"the reply exceeds {limit} bytes when decompressed")
    return body[:limit]


# ---- Client --------------------------------------------------------------------------------------------------


class JsonClient:
    """JSON requests to one service, with retries; subclasses name errors and limits. `close` it."""

    error: ClassVar[type[PalimpsestError]]
    """Raised for a failed request, on one line with the address."""
    expected: ClassVar[str]
    """The usual reply, for messages."""
    reply_bytes: ClassVar[int]
    retries_bad_replies: ClassVar[bool] = True
    pause: float = 0.5
    """Seconds before the second attempt; then it doubles."""

    def __init__(
        self, url: str, token: str | None, timeout_s: float, attempts: int, places: int, breaker: Breaker | None = None
    ) -> None:
        """`timeout_s`: of each of the `attempts`; `places`: concurrent requests."""
        self.url, self.token = url, token
        self._timeout_s, self._attempts = timeout_s, attempts
        self._places = asyncio.Semaphore(places)
        self._breaker: AbstractContextManager[None] = breaker or nullcontext()
        self._connections = Connections(token=token, proxies_for=url)

    async def close(self) -> None:
        await self._connections.close()

    async def post(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], *, key: Sequence[Key], attempts: int = 0
    ) -> T:
        """Post `body` to `{url}{path}` and return `read` of the JSON reply. `read` may raise RetryableError, and
        LookupError, TypeError, ValueError or AttributeError for a reply of another shape.

        A longer pause that the service requests wins. `key` draws the exact pauses between the `attempts` (0: the
        client's), so that requests that failed together don't return together.
        """
        count, last = attempts or self._attempts, RetryableError("no attempt yet")
        for attempt in range(count):
            try:
                async with self._places:
                    with self._breaker:  # checked last: it may have opened while this request waited
                        return self._parsed(await self.sent("POST", f"{self.url}{path}", body), read)
            except RetryableError as again:
                if isinstance(again, BadReply) and not self.retries_bad_replies:
                    raise self.error(f"{self.url}: {again}") from None
                last = again
            except ServiceDown as down:
                raise self.gave_up(down) from None
            if attempt + 1 < count:
                delay = self.pause * 2.0 ** min(attempt, 30) * keyed_random("pause", *key, attempt).uniform(0.5, 1.0)
                await asyncio.sleep(min(max(delay, last.pause or 0.0), LONGEST_PAUSE))
        raise self.gave_up(GaveUp(f"gave up after {count} attempts: {last}", last))

    async def sent(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> HttpReply:
        """Reply of status 200 to one attempt. Raises RetryableError, and what `failure` returns."""
        reply = await self._connections.ask(method, url, body, limit=self.reply_bytes, timeout_s=self._timeout_s)
        if reply.status != 200:
            raise self.failure(reply, f"status {reply.status}: {reply.quoted(300, self.token)}")
        return reply

    def failure(self, reply: HttpReply, message: str) -> Exception:
        """The error for a reply of another status: a RetryableError, or one that no retry can fix."""
        if reply.status in (408, 429):
            return Busy(message, retry_after(reply.headers))
        down = reply.status >= 500
        return Down(message, retry_after(reply.headers)) if down else self.error(f"{self.url}: {message}")

    def gave_up(self, end: GaveUp) -> PalimpsestError:
        """The error after the last attempt."""
        return self.error(f"{self.url}: {end}")

    def _parsed(self, reply: HttpReply, read: Callable[[Any], T]) -> T:
        try:
            return read(reply.json())
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            raise BadReply(f"not {self.expected}: {reply.quoted(100, self.token)}") from None
