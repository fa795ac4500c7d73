"""Shared parts of the servers: access, request limits, errors, start and shutdown, threads that end with the process.

Guaranteed: with a token every path except the open ones requires it, also unknown paths. Without a token only loopback
is served, and if `pages` is False, Host and Origin reject pages of other sites or ports in a browser on this machine. A
request with two Host headers is rejected. Every error of a route is JSON in the server's form. SIGTERM, SIGINT and
SIGHUP let running requests finish; a second one ends the process immediately. Heads, bodies, the sum of bodies, and
waiting requests per connection are bounded. The servers ignore offers of another protocol. Neither `close` nor the end
of the process waits for work on `ReadingThreads`, which must not write; closing drops queued work.
Not covered: TLS, clients that send or read slowly, the number of connections, fair shares between clients (put a proxy
in front).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, TypeVar

import httptools
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.http_services import check_token
from palimpsest.runs.signals import SIGNALS, end_at_once

GRACE_SECONDS = 10
"""Time for running requests after a signal."""
KEEP_ALIVE_SECONDS = 65
"""Idle time of a connection: longer than the limits of clients and proxies (httpx 5 s, aiohttp 15 s, nginx 60 s), so
that no client sends a request on a closing connection."""
SWITCH_SECONDS = 0.0005
"""Time after which a computing thread yields to the event loop. Python's default of 5 ms would delay every request,
once per computing thread and per call that releases the interpreter."""


class Refused(Exception):
    """A request that the server rejects."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`code` and `param`: machine-readable parts, if the form of errors has them."""
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})


def shown(value: object) -> str:
    """A value in an error: short however large or deep it is.

    >>> shown("a" * 999)[:9], shown([[1]]), shown(None)
    ("'aaaaaaaa", 'a list of 1', 'None')
    """
    if isinstance(value, str | bytes):
        return f"{value[:60]!r:.60}"
    if isinstance(value, dict | list | tuple):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return f"{value!r:.60}"


ErrorForm = Callable[[Refused], object]
"""The JSON of an error."""


def plain_error(refused: Refused) -> object:
    return {"error": str(refused)}


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, dict(headers or {}), media_type="application/json")


Handler = Callable[[Request], Any]
"""Returns a Response or a coroutine of one."""


class RequestGuard:
    """Guard of every route: checks the token, turns rejections into JSON, counts statuses."""

    def __init__(
        self,
        token: str | None,
        *,
        form: ErrorForm = plain_error,
        pages: bool = True,
        basic: bool = False,
        open_paths: Collection[str] = (),
        origins: Collection[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`pages`: browser pages may send requests if the server has no token; `basic`: browsers may send the token as
        a password (RFC 7617), under any name; `open_paths` need no token; pages of `origins` may send requests to a
        server without a token; `headers` are in every response."""
        self._token, self._form, self._pages, self._basic = token, form, pages, basic
        self._open, self._origins, self._headers = frozenset(open_paths), frozenset(origins), dict(headers or {})
        self.statuses: Counter[int] = Counter()

    def app(self, routes: Sequence[tuple[str, str, Handler]]) -> Starlette:
        """An application for (path, method, handler) routes."""
        app = Starlette(
            routes=[Route(path, self.guarded(run), methods=[method]) for path, method, run in routes],
            exception_handlers={HTTPException: self._no_route, Exception: self._failed},
        )
        app.router.redirect_slashes = False
        return app

    def guarded(self, run: Handler) -> Callable[[Request], Awaitable[Response]]:

        async def handle(request: Request) -> Response:
            try:
                self._check(request)
                answer = run(request)
                response = await answer if asyncio.iscoroutine(answer) else answer
                assert isinstance(response, Response)
            except Refused as refused:
                response = json_response(self._form(refused), refused.status, refused.headers)
            except PalimpsestError as error:  # an impossible request
                response = json_response(self._form(Refused(400, str(error))), 400)
            except ClientDisconnect:
                response = Response(status_code=499)  # only for the counter
            self.statuses[response.status_code] += 1
            response.headers.update(self._headers)
            return response

        return handle

    async def _no_route(self, request: Request, error: Exception) -> Response:
        def refuse(_: Request) -> Response:
            assert isinstance(error, HTTPException)
            detail = f"allowed: {error.headers['Allow']}" if error.headers else "no such path"
            raise Refused(error.status_code, f"{request.method} {shown(request.scope['path'])}: {detail}")

        return await self.guarded(refuse)(request)

    async def _failed(self, _: Request, error: Exception) -> Response:
        """A defect, or a full disk, in the form of every error; starlette raises it again, so the log has it."""
        message = f"the server failed ({type(error).__name__}); its log says why"
        return json_response(self._form(Refused(500, message)), 500, self._headers)

    def _check(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        if len(hosts) > 1:
            raise Refused(400, f"Host: {len(hosts)} headers ({shown(', '.join(hosts))}); send one")
        if self._token:
            if request.scope["path"] not in self._open:
                self._check_token(self._token, request.headers.get("authorization", ""))
        elif not self._pages:
            origin = request.headers.get("origin")
            _check_page("".join(hosts), None if origin in self._origins else origin)

    def _check_token(self, token: str, header: str) -> None:
        if self._basic:
            header = _without_name(header)
        if hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
            return
        challenge = {"WWW-Authenticate": 'Basic realm="palimpsest", charset="UTF-8"'} if self._basic else {}
        advice = "send the token of this server as 'Authorization: Bearer TOKEN'"
        if header:
            raise Refused(401, f"unknown token; {advice}", code="invalid_api_key", headers=challenge)
        raise Refused(401, f"missing token; {advice}", headers=challenge)


def _without_name(header: str) -> str:
    """A browser's password as a bearer token; other headers unchanged."""
    kind, _, coded = header.partition(" ")
    if kind.lower() != "basic":
        return header
    try:
        return f"Bearer {base64.b64decode(coded, validate=True).decode().partition(':')[2]}"
    except ValueError:
        return ""


_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::([0-9]{1,5}))?")
_PORTS = {"http": "80", "https": "443"}


def _check_page(host: str, origin: str | None) -> None:
    """Reject requests from pages of other sites: under another host name (DNS rebinding), or from another origin."""
    at = _loopback(host)
    if at is None:
        raise Refused(403, f"Host {shown(host)}: without a key this server answers only localhost and 127.0.0.1")
    if origin is None:
        return
    scheme, _, authority = origin.partition("://")
    page, port = _loopback(authority), _PORTS.get(scheme)
    if page is None or port is None or (page or port) != (at or port):
        raise Refused(403, f"Origin {shown(origin)}: without a key this server rejects pages of other sites")


def _loopback(authority: str) -> str | None:
    """The port of a loopback address, "" without a port; None for other or malformed addresses.

    >>> _loopback("[::1]:8400"), _loopback("localhost"), _loopback("evil.com@127.0.0.1"), _loopback("[::1].evil.com")
    ('8400', '', None, None)
    """
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not is_loopback(match[1].strip("[]").lower()):
        return None
    return match[2] or ""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, token: str | None) -> None:
    """Reject an address that others can reach without a token, and an unusable token. Raises ConfigError."""
    if not is_loopback(host) and not token:
        raise ConfigError(f"--host {host}: others can reach this address; set --server-key-env NAME, or use 127.0.0.1")
    check_token(token, "--server-key-env")


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket before long work starts; no one can connect yet. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name, or asyncio doesn't have answers sent at once: one in two pieces, head and body, then takes 40 ms more
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _refused_address(host, port):
            taken.bind((host, port))
        yield taken


class Server(uvicorn.Server):
    """uvicorn on a bound socket; returns at the end instead of raising the signal again."""

    def __init__(
        self,
        app: Starlette,
        taken: socket.socket,
        *,
        grace_seconds: int = GRACE_SECONDS,
    ) -> None:
        """Raises ConfigError for an address in use."""
        host, port = taken.getsockname()[:2]
        with _refused_address(host, port):
            taken.listen(1024)
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._taken = taken
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",  # no app has one, and a signal before the start would print its traceback
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket until a signal; `run` does so on a new event loop."""
        sys.setswitchinterval(SWITCH_SECONDS)
        await super().serve([self._taken])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets running requests finish, the second ends the process immediately."""
        if self.should_exit:
            end_at_once(sig)
        self.should_exit = True


@contextlib.contextmanager
def _refused_address(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: can't listen there ({error.strerror}); free it or use another"
        ) from None


# ---- Connections and bodies while they are received ----------------------------------------------------------


HEAD_BYTES = 16 << 10
"""Maximum size of a request's head, and of other data outside the content: trailers, chunk framing."""
_WAITING = 16
"""Waiting requests of a connection; one piece of `_PIECE` bytes may exceed it."""
_PIECE = 1 << 10
"""Bytes parsed between two checks of the waiting requests: at most 57 requests of 18 bytes."""


class _Flow(FlowControl):
    """Pauses reading while the buffer contains unparsed bytes."""

    def __init__(self, transport: asyncio.Transport, unparsed: bytearray) -> None:
        super().__init__(transport)
        self._unparsed = unparsed

    def resume_reading(self) -> None:
        if not self._unparsed:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Reading pauses while too many of its requests wait. It ignores an offer of another
    protocol (h2c, WebSocket)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unparsed = bytearray()
        self.flow = _Flow(transport, self._unparsed)
        self._head = 0  # bytes since the last piece of a body or the end of a request

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Let the running request finish, unless its client stops reading."""
        super().shutdown()
        self.loop.call_later((self.config.timeout_graceful_shutdown or 0) / 2, self._abort_unread)

    def _abort_unread(self) -> None:
        if self.flow.write_paused:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse the buffered bytes until too many requests wait."""
        while self._unparsed and len(self.pipeline) < _WAITING and not self.transport.is_closing():
            piece = bytes(self._unparsed[:_PIECE])
            del self._unparsed[:_PIECE]
            self._head += len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._without_offer(piece[upgrade.args[0] :])
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
            if self._head > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head of the request exceeds {HEAD_BYTES} bytes.")
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            self.flow.pause_reading()

    def _should_upgrade(self) -> bool:
        """Skip the head of a request with an offer: `_without_offer` has it parsed again."""
        return True

    def _without_offer(self, rest: bytes) -> None:
        """Parse a request again without its header Upgrade. `rest` follows its head: the body, and later requests."""
        request = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        if request.startswith(b"CONNECT "):
            return self.send_400_response("CONNECT is not supported.")
        headers = [b"%s:%s" % header for header in self.headers if header[0] != b"upgrade"]
        self._unparsed[:0] = b"\r\n".join([request, *headers, b"", rest])
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed and not self.pipeline:
            self._unset_keepalive_if_required()
            self._parse()
            self.flow.resume_reading()


class Intake:
    """Receives all bodies of a server. For one event loop."""

    def __init__(self, together: int = 512 << 20) -> None:
        """`together`: maximum bytes of all incomplete bodies in memory."""
        self._together, self._held = together, 0

    async def body(self, request: Request, *, most: int, seconds: float, advice: str) -> bytes:
        """The complete body. Raises Refused for more than `most` bytes, or after `seconds`."""
        body = bytearray()
        if int(request.headers.get("content-length", 0)) > most:
            raise Refused(413, f"the body exceeds {most} bytes; {advice}")
        try:
            async with asyncio.timeout(seconds):
                async for piece in request.stream():
                    if len(body) + len(piece) > most:
                        raise Refused(413, f"the body exceeds {most} bytes; {advice}")
                    if self._held + len(piece) > self._together:
                        message = f"incomplete bodies have {self._held} bytes, the limit is {self._together}"
                        raise Refused(503, message, code="too_many_bodies", headers={"Retry-After": "2"})
                    body += piece
                    self._held += len(piece)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {seconds:g} s; send it again, faster") from None
        finally:
            self._held -= len(body)
        return bytes(body)


# ---- Threads that end with the process -----------------------------------------------------------------------


T = TypeVar("T")


class ReadingThreads:
    """A few daemon threads for blocking work."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Future for the result of `work` on a free thread."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """Await the result of `work`."""
        return await asyncio.wrap_future(self.begin(work))

    def close(self) -> None:
        """End the threads after their current work."""
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001  raised again at the await
                    future.set_exception(error)
            del job, future, work  # free them, e.g. a document, before waiting for the next job
