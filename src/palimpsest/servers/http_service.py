"""What the servers share: who may ask, how much may be sent, errors, start and end, threads that end with the process.

Guaranteed: with a token every path but the open ones asks for it, unknown ones too; without one only loopback is
served, and, where `Guard.pages` is False, a page of another site, or of another port, that a browser on this machine
shows is rejected by Host and Origin; so is a request with two Host headers; every error is JSON, in the form of the
server that tells it; SIGTERM, SIGINT and SIGHUP let running requests finish, but for clients that don't read their
answer, and a second one ends at once.
Not covered: TLS (put a proxy before it); limits per client.

Bodies while they are received: how many at once, how many bytes together, how slowly.

Guaranteed: bodies that are not complete take at most `places` of a server's connections, so that requests without one
are answered; those held in memory have at most `together` bytes; after `GRACE_SECONDS` a body arrives at `RATE` on
average or its request is rejected with 408.
Not covered: shares of the places between clients; what is kept of a body once it is complete.

Threads that end with the process: reading a file that takes long, or never ends, holds up no end of a server.

Guaranteed: nothing waits for work under way, neither `close` nor the end of the process, which only work that writes
nothing may use; work that hasn't begun when the threads are closed is left.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.runs.signals import SIGNALS, end_at_once
from palimpsest.servers.connection_limits import BACKLOG, AcceptErrors, BoundedProtocol, ConnectionLimits, with_limits
from palimpsest.servers.request_log import note

GRACE_SECONDS = 10
"""For running requests, once a signal came."""
KEEP_ALIVE_SECONDS = 65
"""Between two requests on a connection: longer than clients and proxies keep theirs (httpx 5 s, aiohttp 15 s, nginx
60 s), so that no request is sent on a connection that is being closed."""
SWITCH_SECONDS = 0.0005
"""After so long a computing thread lets the event loop run; Python's own 5 ms would be added to every request, once for
each thread that computes and each call that gives the interpreter up."""


class Refused(Exception):
    """A request that can't be answered."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`code` and `param`: what a program is to know of it, where the form of errors has a place for them."""
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
    """One line under `error`."""
    return {"error": str(refused)}


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, dict(headers or {}), media_type="application/json")


Handler = Callable[[Request], Any]
"""Gives a Response, or awaits one."""


class Guard:
    """Stands before every route: asks for the token, turns what is refused into JSON, counts."""

    def __init__(
        self,
        token: str | None,
        *,
        form: ErrorForm = plain_error,
        pages: bool = True,
        basic: bool = False,
        open_paths: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        """`pages`: whether pages in a browser may ask where there is no token; `basic`: whether a browser is asked for
        the token as a password (RFC 7617), under any name; `open_paths` are answered without the token; pages of
        `origins` may ask where there is none."""
        self._token, self._form, self._pages, self._basic = token, form, pages, basic
        self._open, self._origins = frozenset(open_paths), frozenset(origins)
        self.statuses: Counter[int] = Counter()

    def app(self, routes: Sequence[tuple[str, str, Handler]]) -> Starlette:
        """Of (path, method, handler)."""
        app = Starlette(
            routes=[Route(path, self.guarded(run, path), methods=[method]) for path, method, run in routes],
            exception_handlers={HTTPException: self._no_route, Exception: self._failed},
        )
        app.router.redirect_slashes = False
        return app

    def guarded(self, run: Handler, route: str = "") -> Callable[[Request], Awaitable[Response]]:
        """`run`, which answers `route`, behind the guard."""

        async def handle(request: Request) -> Response:
            note(request, route=route)
            try:
                self._check(request)
                answer = run(request)
                response = await answer if asyncio.iscoroutine(answer) else answer
                assert isinstance(response, Response)
            except Refused as refused:
                response = json_response(self._form(refused), refused.status, refused.headers)
            except PalimpsestError as error:  # what was asked for can't be done
                response = json_response(self._form(Refused(400, str(error))), 400)
            except ClientDisconnect:
                response = Response(status_code=499)  # no one reads it; it is counted
            self.statuses[response.status_code] += 1
            return response

        return handle

    async def _no_route(self, request: Request, error: Exception) -> Response:
        def refuse(_: Request) -> Response:
            assert isinstance(error, HTTPException)
            said = f"allowed: {error.headers['Allow']}" if error.headers else "no such path"
            raise Refused(error.status_code, f"{request.method} {shown(request.scope['path'])}: {said}")

        return await self.guarded(refuse)(request)

    async def _failed(self, _: Request, error: Exception) -> Response:
        """A defect, or a full disk: in the form of every error; starlette raises it again, so that it is logged."""
        said = f"the server failed ({type(error).__name__}); its log says why"
        return json_response(self._form(Refused(500, said)), 500)

    def _check(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        if len(hosts) > 1:
            raise Refused(400, f"Host: {len(hosts)} are given ({shown(', '.join(hosts))}); send one")
        if self._token:
            if request.scope["path"] not in self._open:
                self._check_token(self._token, request.headers.get("authorization", ""))
        elif not self._pages:
            origin = request.headers.get("origin")
            _check_page("".join(hosts), None if origin in self._origins else origin)

    def _check_token(self, token: str, given: str) -> None:
        if self._basic:
            given = _without_name(given)
        if hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return
        asked = {"WWW-Authenticate": 'Basic realm="palimpsest", charset="UTF-8"'} if self._basic else {}
        advice = "send the token of this server as 'Authorization: Bearer TOKEN'"
        if given:
            raise Refused(401, f"not the token of this server; {advice}", code="invalid_api_key", headers=asked)
        raise Refused(401, f"no token is given; {advice}", headers=asked)


def _without_name(given: str) -> str:
    """The password that a browser sends, as a bearer's token; anything else as it is."""
    kind, _, coded = given.partition(" ")
    if kind.lower() != "basic":
        return given
    try:
        return f"Bearer {base64.b64decode(coded, validate=True).decode().partition(':')[2]}"
    except ValueError:
        return ""


_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::([0-9]{1,5}))?")
_PORTS = {"http": "80", "https": "443"}


def _check_page(host: str, origin: str | None) -> None:
    """Refuse what a page of another site sends: it asks under a name of its own (DNS rebinding), or from elsewhere."""
    at = _loopback(host)
    if at is None:
        raise Refused(403, f"Host {shown(host)}: without a key this server answers to localhost and 127.0.0.1 alone")
    if origin is None:
        return
    scheme, _, authority = origin.partition("://")
    page, port = _loopback(authority), _PORTS.get(scheme)
    if page is None or port is None or (page or port) != (at or port):
        raise Refused(403, f"Origin {shown(origin)}: without a key this server answers no pages of other sites")


def _loopback(authority: str) -> str | None:
    """The port of this machine's address, "" where none is named; None for other or malformed addresses.

    >>> _loopback("[::1]:8400"), _loopback("localhost"), _loopback("evil.com@127.0.0.1"), _loopback("[::1].evil.com")
    ('8400', '', None, None)
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None or not is_loopback(found[1].strip("[]").lower()):
        return None
    return found[2] or ""


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, token: str | None, option: str = "--token") -> None:
    """Refuse an address that others can reach unless a token is asked for. Raises ConfigError."""
    if not is_loopback(host) and not token:
        raise ConfigError(f"--host {host}: others can reach this address; give {option}, or serve 127.0.0.1")


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket of that address, to have it before long work begins; no one can connect yet. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name, or asyncio doesn't have answers sent at once: one in two pieces, head and body, then takes 40 ms more
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _refused_address(host, port):
            taken.bind((host, port))
        yield taken


class Server(uvicorn.Server):
    """uvicorn on a socket that is taken already; ends by returning where uvicorn's own would raise the signal again."""

    def __init__(
        self,
        app: Starlette,
        taken: socket.socket,
        limits: ConnectionLimits,
        *,
        form: ErrorForm = plain_error,
        grace_seconds: int = GRACE_SECONDS,
        on_exit: Callable[[], None] | None = None,
    ) -> None:
        """`on_exit` is called when the first signal comes. Raises ConfigError for an address that is in use."""
        host, port = taken.getsockname()[:2]
        with _refused_address(host, port):
            taken.listen(1024)
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._taken, self._on_exit = taken, on_exit
        config = uvicorn.Config(
            app,
            http=with_limits(limits, lambda status, said: form(Refused(status, said))),
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        super().__init__(config)

    def run_here(self) -> None:
        """Serve until a signal, on an event loop of its own."""
        self.run(sockets=[self._taken])

    async def serve_here(self) -> None:
        """Serve until a signal, on the running event loop."""
        await self.serve(sockets=[self._taken])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's. Clients that don't read are given up shortly before the grace ends: it would cancel what
        answers them, and log that as a failure of the application."""
        grace = self.config.timeout_graceful_shutdown or GRACE_SECONDS
        giving_up = asyncio.get_running_loop().call_later(max(0.0, grace - 0.4), self._give_up_unread)
        await super().shutdown(sockets)
        giving_up.cancel()

    def _give_up_unread(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol) and connection.transport.get_write_buffer_size():
                connection.transport.abort()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first lets running requests finish, the second ends the process at once."""
        if self.should_exit:
            end_at_once(sig)
        self.should_exit = True
        if self._on_exit is not None:
            self._on_exit()


@contextlib.contextmanager
def _refused_address(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: can't listen there ({error.strerror}); free it or give another"
        ) from None


# ---- Bodies while they are received --------------------------------------------------------------------------


RATE = 4 << 10
"""Bytes per second, on average from the body's start."""
INTAKE_GRACE_SECONDS = 10.0
_RETRY = {"Retry-After": "2"}


class Intake:
    """All bodies of one server. For one event loop."""

    def __init__(self, connections: ConnectionLimits, *, together: int = 512 << 20) -> None:
        """Half of the connections may be sending a body; `together`: bytes of incomplete bodies held in memory."""
        self._places, self._together = connections.within_descriptors().connections // 2, together
        self._open = self._held = 0

    async def body(self, request: Request, *, most: int, seconds: float, advice: str) -> bytes:
        """The whole body. Raises Refused for one of more than `most` bytes, or slower than `seconds`."""
        body, mine = bytearray(), 0
        try:
            with self.place():
                async for piece in self.pieces(request, seconds=seconds):
                    if len(body) + len(piece) > most:
                        raise Refused(413, f"the body exceeds {most} bytes; {advice}")
                    if self._held + len(piece) > self._together:
                        said = f"bodies being received hold {self._held} bytes, at most {self._together}"
                        raise Refused(503, f"{said}; try again later", code="too_many_bodies", headers=_RETRY)
                    body += piece
                    self._held += len(piece)
                    mine += len(piece)
        finally:
            self._held -= mine
        return bytes(body)

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of the places for bodies that are not complete. Raises Refused where none is left."""
        if self._open >= self._places:
            said = f"{self._open} bodies are being received, at most {self._places}; try again later"
            raise Refused(503, said, code="too_many_bodies", headers=_RETRY)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def pieces(
        self, request: Request, *, seconds: float | None = None, silence: float | None = None
    ) -> AsyncIterator[bytes]:
        """Pieces of a body as they arrive. Raises Refused for one that takes longer than `seconds`, or `silence`
        between two pieces, or is slower than `RATE`."""
        loop, stream, received = asyncio.get_running_loop(), request.stream().__aiter__(), 0
        began = loop.time()
        while True:
            until = {f"the body arrives at less than {RATE} bytes/s": began + INTAKE_GRACE_SECONDS + received / RATE}
            if seconds is not None:
                until[f"the body did not arrive within {seconds:g} s"] = began + seconds
            if silence is not None:
                until[f"nothing of the file came for {silence:g} s"] = loop.time() + silence
            said = min(until, key=until.__getitem__)
            try:
                async with asyncio.timeout_at(until[said]):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise Refused(408, f"{said}; send it again, faster") from None
            received += len(piece)
            yield piece


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
        """What `work` will give or raise, once a thread is free for it."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """The same, awaited."""
        return await asyncio.wrap_future(self.begin(work))

    def close(self) -> None:
        """Have the threads end after what they are at."""
        while not self._queue.empty():
            self._queue.get()
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            future, work = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001  it is raised again where it is awaited
                    future.set_exception(error)
            del asked, future, work  # what they hold, a document say, isn't kept until there is more to do
