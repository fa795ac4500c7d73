"""The retrieval server: MemAct's and Search-R1's interface over an index of this process.

    POST /retrieve      {"queries": ["..."], "topk": 3, "return_scores": true}
                        -> {"result": [[{"document": {...}, "score": 4.2}, ...], ...]}
    GET  /queue_status  /cache_status  /metrics (Prometheus text)       POST /cache_clear

Guaranteed: a wrong request is answered with 4xx and {"error": one line}, a full queue with 503; URLs, headers, the time
they take and the number of connections are bounded before a token is looked at (bounded.py), and bodies, queries, their
number and length and topk after it; searching never blocks the event loop; queries of requests that wait are
searched in one call (retrieval/coalesce.py), equal ones once; without a token only loopback is served,
with one every path asks for it; SIGTERM, SIGINT and SIGHUP let running requests finish, a second one ends at once.
Not covered: TLS (put a proxy before it); limits per client; pages of a browser on the same machine, which can send
requests to a server without a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType

import orjson
import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from palimpsest.errors import ConfigError
from palimpsest.retrieval.coalesce import Coalescer
from palimpsest.retrieval.search import Hit, Index
from palimpsest.runs.signals import SIGNALS, end_at_once
from palimpsest.serve.bounded import BACKLOG, AcceptErrors, ConnectionLimits, with_limits
from palimpsest.serve.cache import BytesCache

SWITCH_SECONDS = 0.0005
"""After so long a searching thread lets the event loop run; Python's own 5 ms would be added to every request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes at most."""

    body_bytes: int = 1 << 20
    body_seconds: float = 30.0
    """For a body to arrive whole."""
    queries: int = 128
    query_characters: int = 4096
    topk: int = 100
    waiting: int = 256
    """Requests searching or waiting."""
    threads: int = 1
    """Searches at a time. A second thread would compete with the first and with the event loop for the interpreter."""
    together: int = 16
    """Queries in one search, of requests that wait."""
    cache_entries: int = 20_000
    cache_bytes: int = 64 << 20
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class Ask(BaseModel):
    """The body of /retrieve. Keys it does not know are ignored, as the original does."""

    model_config = ConfigDict(strict=True)

    queries: list[str] = Field(min_length=1)
    topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False


class Refused(Exception):
    """A request that can't be answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RetrievalService:
    """The routes and what they share. One event loop."""

    def __init__(self, index: Index, *, token: str | None = None, limits: Limits | None = None, topk: int = 5) -> None:
        self.limits = limits or Limits()
        self.cache = BytesCache(self.limits.cache_entries, self.limits.cache_bytes)
        self._index, self._token, self._topk = index, token, topk
        self._threads = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="search")
        self._searches = Coalescer(self._found, running=self.limits.threads, together=self.limits.together)
        self._waiting = 0
        self._statuses: Counter[int] = Counter()
        self._queries, self._seconds = 0, 0.0

    def app(self) -> Starlette:
        routes = (
            ("/retrieve", "POST", self._retrieve),
            ("/queue_status", "GET", self._queue_status),
            ("/cache_status", "GET", lambda _: _json(self.cache.status())),
            ("/cache_clear", "POST", lambda _: _json({"cleared": self.cache.clear()})),
            ("/metrics", "GET", self._metrics),
        )
        app = Starlette(
            routes=[Route(path, self._guarded(run), methods=[method]) for path, method, run in routes],
            exception_handlers={HTTPException: self._no_route},
        )
        app.router.redirect_slashes = False
        return app

    async def _no_route(self, request: Request, error: Exception) -> Response:
        def refuse(_: Request) -> Response:
            assert isinstance(error, HTTPException)
            said = f"allowed: {error.headers['Allow']}" if error.headers else "no such path"
            raise Refused(error.status_code, f"{request.method} {request.scope['path']!r:.60}: {said}")

        return await self._guarded(refuse)(request)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _guarded(self, run: Callable[[Request], object]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                self._check_token(request)
                answer = run(request)
                response = await answer if asyncio.iscoroutine(answer) else answer
                assert isinstance(response, Response)
            except Refused as refused:
                response = _json({"error": str(refused)}, refused.status)
            except ClientDisconnect:
                response = Response(status_code=499)  # no one reads it; it is counted
            self._statuses[response.status_code] += 1
            return response

        return handle

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self._token and not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise Refused(401, "send the token of this server as 'Authorization: Bearer TOKEN'")

    async def _retrieve(self, request: Request) -> Response:
        began = time.perf_counter()
        ask = self._parse(await self._body(request))
        topk = ask.topk or min(self._topk, self.limits.topk)
        answers = {query: self.cache.get((query, topk, ask.return_scores)) for query in ask.queries}
        missing = [query for query, answer in answers.items() if answer is None]
        if missing:
            found = await self._search(missing, topk, ask.return_scores)
            for query, answer in zip(missing, found, strict=True):
                answers[query] = answer
                self.cache.put((query, topk, ask.return_scores), answer)
        self._queries += len(ask.queries)
        self._seconds += time.perf_counter() - began
        whole = b",".join(answers[query] or b"[]" for query in ask.queries)
        return Response(b'{"result":[' + whole + b"]}", media_type="application/json")

    async def _search(self, queries: list[str], topk: int, scores: bool) -> list[bytes]:
        """The hits of each query as JSON."""
        if self._waiting >= self.limits.waiting:
            raise Refused(503, f"{self._waiting} requests are waiting already; try again later")
        self._waiting += 1
        try:
            return [found[not scores] for found in await self._searches.ask(queries, topk)]
        finally:
            self._waiting -= 1

    async def _found(self, queries: Sequence[str], topk: int) -> list[tuple[bytes, bytes]]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _answers, self._index, queries, topk)

    async def _body(self, request: Request) -> bytes:
        limit, body = self.limits.body_bytes, bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise Refused(413, f"the body exceeds {limit} bytes; send fewer queries at a time")
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.body_seconds:g} s") from None
        return bytes(body)

    def _parse(self, body: bytes) -> Ask:
        try:
            ask = Ask.model_validate(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON ({error})") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise Refused(400, f"{place}: {first['msg']}, is {first['input']!r:.60}") from None
        limits = self.limits
        longest = max(map(len, ask.queries))
        for name, value, most in (
            ("queries", len(ask.queries), limits.queries),
            ("the longest query's characters", longest, limits.query_characters),
            ("topk", ask.topk or 1, limits.topk),
        ):
            if value > most:
                raise Refused(400, f"{name}: at most {most}, is {value}")
        return ask

    def _queue_status(self, _: Request) -> Response:
        waiting = self._searches.waiting
        status = {"running": self._waiting - waiting, "waiting": waiting, "max_waiting": self.limits.waiting}
        return _json(status)

    def _metrics(self, _: Request) -> Response:
        lines = [f'retrieval_requests_total{{status="{code}"}} {n}' for code, n in sorted(self._statuses.items())]
        lines += [
            f"retrieval_queries_total {self._queries}",
            f"retrieval_searches_total {self._searches.calls}",
            f"retrieval_seconds_total {self._seconds:.6f}",
            f"retrieval_in_flight {self._waiting}",
            *(f"retrieval_cache_{name} {value}" for name, value in self.cache.status().items()),
        ]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def check_host(host: str, token: str | None) -> None:
    """Refuse an address that others can reach unless a token is asked for. Raises ConfigError."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not token:
        raise ConfigError(f"--host {host}: others can reach this address; give --token, or serve 127.0.0.1")


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket of that address, to have it before the index is built; no one can connect yet. Raises ConfigError."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _refused_address(host, port):
            taken.bind((host, port))
        yield taken


def serve(service: RetrievalService, taken: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address once requests are answered. Raises ConfigError."""
    host, port = taken.getsockname()[:2]
    with _refused_address(host, port):
        taken.listen(1024)
    config = uvicorn.Config(
        service.app(),
        http=with_limits(service.limits.connection),
        ws="none",
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=10,
    )
    server = _Server(config)
    sys.setswitchinterval(SWITCH_SECONDS)
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    try:
        server.run(sockets=[taken])
    finally:
        service.close()


@contextlib.contextmanager
def _refused_address(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: can't listen there ({error.strerror}); free it or give another"
        ) from None


class _Server(uvicorn.Server):
    """Ends by returning where uvicorn's own would raise the signal again."""

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


def _answers(index: Index, queries: Sequence[str], topk: int) -> list[tuple[bytes, bytes]]:
    """JSON of each query's hits, with scores and without."""
    different = list(dict.fromkeys(queries))
    found = {query: _answer(hits) for query, hits in zip(different, index.search(different, topk), strict=True)}
    return [found[query] for query in queries]


def _answer(hits: Sequence[Hit]) -> tuple[bytes, bytes]:
    scored = [{"document": hit.document, "score": hit.score} for hit in hits]
    return orjson.dumps(scored), orjson.dumps([{"document": hit.document} for hit in hits])


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
