"""HTTP connections to a service with aiohttp: under concurrency a request costs a third of its time in httpx2.

Guaranteed: replies are streamed and never exceed the limit, neither as sent nor decompressed; no cookies, no redirects;
a token is only in a header; a failure is a `RetryableError` of http_services.py; a request is sent again only if the
service closed a reused connection before it replied.
Not covered: encodings other than gzip and deflate, which are rejected.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import ssl
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
import certifi
import orjson

from palimpsest.http_services import Down, HttpReply, RetryableError

ERROR_BYTES = 1 << 16
"""Bytes read of a reply with a status other than 200."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FULL_S = 0.1  # between attempts to open a file
_SCARCE_S = 60.0  # without idle connections after a lack of file descriptors
_KEPT_S = 4.0
"""Idle time of a connection, below the 5 s of common servers."""


class Unanswered(Down):
    """No connection, or an incomplete reply after the time limit or a broken connection. One line."""


class BadReply(RetryableError):
    """An unusable reply: too long or wrongly encoded. One line."""


class Connections:
    """To one service or several. For one event loop; `close` them."""

    _scarce_until: ClassVar[float] = 0.0
    """While a lack of file descriptors is recent no connection stays idle: other services need its descriptor."""

    def __init__(self, *, token: str | None = None, proxies_for: str | None = None, socket: Path | None = None) -> None:
        """`proxies_for`: the service's address, reached through the environment's proxies unless it is on this machine;
        `socket`: a Unix socket that replaces every address."""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
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
            raise Unanswered(f"no answer within {timeout_s or 0:g} s" if until.expired() else _line(error)) from None

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


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


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
        raise BadReply(f"the reply has the unexpected encoding {encoding!r:.40}")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: a header of gzip or of zlib
    try:
        body = inflate.decompress(raw, limit + 1)
    except zlib.error as error:
        raise BadReply(f"the reply is not valid {encoding} ({error})") from None
    if len(body) > limit and ok:
        raise BadReply(f"the reply exceeds {limit} bytes when decompressed")
    return body[:limit]
