"""The retrieval server: MemAct's and Search-R1's interface over an index, opened from a folder.

    POST /retrieve      {"queries": ["..."], "topk": 3, "return_scores": true}
                        -> {"result": [[{"document": {...}, "score": 4.2}, ...], ...]}
    GET  /queue_status  /cache_status  /metrics (Prometheus text)       POST /cache_clear

Guaranteed: a wrong request gets 4xx and {"error": one line}, a full queue 503; heads are bounded before the token
check, and bodies, queries, their number and length and topk after it; searching never blocks the event loop; one call
searches the queries of all waiting requests (retrieval/search.py), equal ones once; without a token only loopback is
served, with a token every path requires it; SIGTERM, SIGINT and SIGHUP let running requests finish, a second one ends
the process immediately.
Not covered: TLS and slow clients (put a proxy in front); limits per client; browser pages on the same machine, which
can send requests to a server without a token.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from palimpsest.engines.open import open_encoder
from palimpsest.errors import ConfigError, nearest
from palimpsest.progress.reporter import Progress, Tick
from palimpsest.retrieval.dense import DenseIndex
from palimpsest.retrieval.search import Bm25Index, Coalescer, Hit, Index
from palimpsest.servers.http_service import (
    Intake,
    ReadingThreads,
    Refused,
    RequestGuard,
    Server,
    bound,
    check_host,
    json_response,
    shown,
)

# ---- Answers kept as bytes -----------------------------------------------------------------------------------


_ENTRY_BYTES = 150  # of the table, per entry


class BytesCache:
    """The answers used last, bounded by number and by size, keys included. For one event loop.

    >>> cache = BytesCache(entries=2, size=2000)
    >>> cache.put("a", b"1"), cache.put("b", b"2"), cache.get("a"), cache.put("c", b"3")
    (None, None, b'1', None)
    >>> cache.get("b") is None, cache.status()["entries"]
    (True, 2)
    """

    def __init__(self, entries: int, size: int) -> None:
        self._limits = (entries, size)
        self._entries: OrderedDict[Hashable, bytes] = OrderedDict()
        self.size = self.hits = self.misses = 0

    def get(self, key: Hashable) -> bytes | None:
        value = self._entries.get(key)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return value

    def put(self, key: Hashable, answer: bytes) -> None:
        if (old := self._entries.pop(key, None)) is not None:
            self.size -= _held(key, old)
        self._entries[key] = answer
        self.size += _held(key, answer)
        while len(self._entries) > self._limits[0] or self.size > self._limits[1]:
            self.size -= _held(*self._entries.popitem(last=False))

    def clear(self) -> int:
        """Remove all entries; returns their number."""
        count = len(self._entries)
        self._entries.clear()
        self.size = 0
        return count

    def status(self) -> dict[str, int]:
        entries, size = self._limits
        return {
            "entries": len(self._entries),
            "bytes": self.size,
            "max_entries": entries,
            "max_bytes": size,
            "hits": self.hits,
            "misses": self.misses,
        }


def _held(key: Hashable, answer: bytes) -> int:
    parts = key if isinstance(key, tuple) else ()
    return _ENTRY_BYTES + sum(map(sys.getsizeof, (key, answer, *parts)))


# ---- The retrieval server ------------------------------------------------------------------------------------


BODY_BYTES, BODY_SECONDS = 1 << 20, 30.0
BODIES_BYTES = 64 << 20  # of all incomplete bodies
QUERIES, QUERY_CHARACTERS, TOPK = 128, 4096, 100
USUAL_TOPK = 5  # without one in the request
WAITING = 256  # requests searching or waiting
THREADS = 1  # a second one would compete with it and with the event loop for the interpreter
TOGETHER = 16  # queries of waiting requests in one search
CACHE_ENTRIES, CACHE_BYTES = 20_000, 64 << 20


class RetrieveRequest(BaseModel):
    """Body of /retrieve. Unknown keys are ignored, as in the original."""

    model_config = ConfigDict(strict=True)

    queries: Annotated[list[str], FailFast()] = Field(min_length=1)
    topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False


class RetrievalService:
    """The routes and their state. For one event loop."""

    def __init__(self, index: Index, *, token: str | None = None) -> None:
        self.cache = BytesCache(CACHE_ENTRIES, CACHE_BYTES)
        self._index = index
        self._guard = RequestGuard(token)
        self._intake = Intake(BODIES_BYTES)
        self._threads = ReadingThreads(THREADS, "search")
        self._searches = Coalescer(self._run_search, running=THREADS, together=TOGETHER)
        self._waiting = 0
        self._queries, self._seconds = 0, 0.0

    def app(self) -> Starlette:
        return self._guard.app(
            (
                ("/retrieve", "POST", self._retrieve),
                ("/queue_status", "GET", self._queue_status),
                ("/cache_status", "GET", lambda _: json_response(self.cache.status())),
                ("/cache_clear", "POST", lambda _: json_response({"cleared": self.cache.clear()})),
                ("/metrics", "GET", self._metrics),
            )
        )

    def close(self) -> None:
        self._threads.close()

    async def _retrieve(self, request: Request) -> Response:
        began = time.perf_counter()
        body = await self._intake.body(
            request,
            most=BODY_BYTES,
            seconds=BODY_SECONDS,
            advice="send fewer queries at a time",
        )
        ask = self._parse(body)
        topk = ask.topk or USUAL_TOPK
        answers = {query: self.cache.get((query, topk, ask.return_scores)) for query in ask.queries}
        missing = [query for query, answer in answers.items() if answer is None]
        if missing:
            results = await self._search(missing, topk, ask.return_scores)
            for query, answer in zip(missing, results, strict=True):
                answers[query] = answer
                self.cache.put((query, topk, ask.return_scores), answer)
        self._queries += len(ask.queries)
        self._seconds += time.perf_counter() - began
        joined = b",".join(answers[query] or b"[]" for query in ask.queries)
        return Response(b'{"result":[' + joined + b"]}", media_type="application/json")

    async def _search(self, queries: list[str], topk: int, scores: bool) -> list[bytes]:
        if self._waiting >= WAITING:
            raise Refused(503, f"{self._waiting} requests are waiting already; try again later")
        self._waiting += 1
        try:
            return [pair[not scores] for pair in await self._searches.ask(queries, topk)]
        finally:
            self._waiting -= 1

    async def _run_search(self, queries: Sequence[str], topk: int) -> list[tuple[bytes, bytes]]:
        return await self._threads.run(lambda: _answers(self._index, queries, topk))

    def _parse(self, body: bytes) -> RetrieveRequest:
        try:
            ask = RetrieveRequest.model_validate(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON ({error})") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the body"
            raise Refused(400, f"{field}: {first['msg']}, is {shown(first['input'])}") from None
        longest = max(map(len, ask.queries))
        for name, value, most in (
            ("queries", len(ask.queries), QUERIES),
            ("the longest query's characters", longest, QUERY_CHARACTERS),
            ("topk", ask.topk or 1, TOPK),
        ):
            if value > most:
                raise Refused(400, f"{name}: at most {most}, is {value}")
        return ask

    def _queue_status(self, _: Request) -> Response:
        waiting = self._searches.waiting
        status = {"running": self._waiting - waiting, "waiting": waiting, "max_waiting": WAITING}
        return json_response(status)

    def _metrics(self, _: Request) -> Response:
        lines = [f'retrieval_requests_total{{status="{code}"}} {n}' for code, n in sorted(self._guard.statuses.items())]
        lines += [
            f"retrieval_queries_total {self._queries}",
            f"retrieval_searches_total {self._searches.calls}",
            f"retrieval_seconds_total {self._seconds:.6f}",
            f"retrieval_in_flight {self._waiting}",
            *(f"retrieval_cache_{name} {value}" for name, value in self.cache.status().items()),
        ]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def serve(service: RetrievalService, taken: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; calls `ready` with the address once the server answers. Raises ConfigError."""
    server = Server(service.app(), taken)
    ready(server.url)
    try:
        server.run()
    finally:
        service.close()


def _answers(index: Index, queries: Sequence[str], topk: int) -> list[tuple[bytes, bytes]]:
    """JSON of each query's hits, with scores and without."""
    different = list(dict.fromkeys(queries))
    by_query = {query: _answer(hits) for query, hits in zip(different, index.search(different, topk), strict=True)}
    return [by_query[query] for query in queries]


def _answer(hits: Sequence[Hit]) -> tuple[bytes, bytes]:
    scored = [{"document": hit.document, "score": hit.score} for hit in hits]
    return orjson.dumps(scored), orjson.dumps([{"document": hit.document} for hit in hits])


# ---- Search over a corpus as a service -----------------------------------------------------------------------


BACKENDS = ("bm25", "dense")


@dataclass(frozen=True, slots=True)
class Dense:
    """Command-line options of the dense backend."""

    encoder: str | None
    preset: str
    device: str
    changes: dict[str, Any]
    """Fields of `engines.embedded.encoder.EncoderPreset`; None means the preset's value."""
    vectors: Path | None = None
    """Existing vectors of the corpus; None: encode it."""


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address and token."""

    host: str
    port: int
    token: str | None


def serve_corpus(
    corpus: Path,
    folder: Path | None,
    backend: str,
    dense: Dense,
    address: Address,
    *,
    progress: Progress,
    on_ready: Callable[[str], None],
) -> None:
    """Bind the address, build or open the index, serve; `on_ready` gets the number of passages and the URL."""
    check_host(address.host, address.token)
    _check(backend, dense)
    with ExitStack() as stack:
        taken = stack.enter_context(bound(address.host, address.port))
        index = _opened(corpus, folder, backend, dense, progress)

        def ready(url: str) -> None:
            on_ready(f"{len(index)} passages at {url}/retrieve")

        serve(RetrievalService(index, token=address.token), taken, ready)


def build_index(corpus: Path, folder: Path, backend: str, dense: Dense, *, progress: Progress) -> int:
    """Build the index of a corpus in `folder` unless it is there; returns its number of passages."""
    _check(backend, dense)
    return len(_opened(corpus, folder, backend, dense, progress))


def _check(backend: str, dense: Dense) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"--backend {backend}: choose {' or '.join(BACKENDS)}{nearest(backend, BACKENDS)}")
    if backend == "dense" and not dense.encoder:
        raise ConfigError("--backend dense: name the encoder with --encoder FOLDER or a hub id")
    if backend == "bm25" and dense.encoder:
        raise ConfigError(f"--encoder {dense.encoder}: used with --backend dense only")
    if backend == "bm25" and dense.vectors:
        raise ConfigError(f"--vectors {dense.vectors}: add --backend dense and --encoder, which encodes the queries")
    if dense.changes["pooling"] not in (None, "mean", "first"):
        raise ConfigError(f"--pooling {dense.changes['pooling']}: choose mean or first")


def _opened(
    corpus: Path, folder: Path | None, backend: str, dense: Dense, progress: Progress
) -> Bm25Index | DenseIndex:
    if folder is None:  # an open index is mapped and needs no names, so a kill of the server leaves no files
        with tempfile.TemporaryDirectory(prefix="palimpsest-") as temporary:
            return _opened(corpus, Path(temporary) / "index", backend, dense, progress)
    return Bm25Index.of_corpus(corpus, folder) if backend == "bm25" else _dense(corpus, folder, dense, progress)


def _dense(corpus: Path, folder: Path, dense: Dense, progress: Progress) -> DenseIndex:
    assert dense.encoder
    encoder = open_encoder(dense.encoder, dense.preset, dense.changes, device=dense.device)
    with ExitStack() as stack:
        ticks: list[Tick] = []
        before = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal before
            if not ticks:
                ticks.append(stack.enter_context(progress.count("passages encoded", total)))
            ticks[0](done - before)
            before = done

        return DenseIndex.of_corpus(corpus, folder, encoder, on_progress=on_progress, vectors=dense.vectors)
