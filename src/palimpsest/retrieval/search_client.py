"""Asynchronous client of a retrieval server.

Concurrent searches share requests (`Coalescer` in retrieval/search.py).

Guaranteed: a search that the server rejects does not fail others; a server that is down, slow or busy (408, 429, 5xx)
is retried, `attempts` times in all, after a pause that doubles or the longer one that it requests, then SearchError; a
reply of the wrong shape, encoding or size, or another status, is SearchError immediately; messages are one line without
the token.
Not covered: use from several event loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from types import TracebackType
from typing import Any

from palimpsest.errors import PalimpsestError, SearchError
from palimpsest.http_connections import JsonClient
from palimpsest.http_services import GaveUp, HttpReply, check_address, check_token
from palimpsest.retrieval.search import Coalescer, Hit


class _RefusedError(SearchError):
    """Rejected request, which may succeed without another caller's queries."""


class RemoteSearch(JsonClient):
    """Client of `POST /retrieve`. Use it with `async with`, or `close` it."""

    error, expected, retries_bad_replies = SearchError, "the answer of a retrieval server", False
    reply_bytes = 64 << 20  # with the passages of up to `together` queries

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 15.0,
        attempts: int = 10,
        pause: float = 0.5,
        connections: int = 4,
        together: int = 32,
    ) -> None:
        """`url`: http://host:port; `timeout`: seconds per attempt; `pause`: seconds before the second attempt;
        `connections`: concurrent requests; `together`: maximum queries in a shared request. Raises ConfigError."""
        check_address(url, "search server url")
        check_token(token, "search server token")
        super().__init__(f"{url.rstrip('/')}/retrieve", token, timeout, attempts, connections)
        self.pause = pause
        self._requests = Coalescer(self._ask, running=connections, together=together, divide=(_RefusedError,))

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query. Raises SearchError."""
        if not queries:
            return []
        return await self._requests.ask(queries, topk)

    async def _ask(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        def read(answer: Any) -> list[list[Hit]]:
            found = [
                [Hit(dict(hit["document"]), float(hit["score"])) for hit in hits[:topk]] for hits in answer["result"]
            ]
            if not all(isfinite(hit.score) for hits in found for hit in hits):
                raise SearchError(f"{self.url}: a score is not finite")
            if len(found) != len(queries):
                raise SearchError(f"{self.url}: {len(found)} results for {len(queries)} queries")
            return found

        body = {"queries": list(queries), "topk": topk, "return_scores": True}
        return await self.post("", body, read, key=tuple(queries))

    def failure(self, reply: HttpReply, message: str) -> Exception:
        failure = super().failure(reply, message)
        return _RefusedError(str(failure)) if isinstance(failure, SearchError) else failure

    def gave_up(self, end: GaveUp) -> PalimpsestError:
        return SearchError(f"{self.url}: {end}; is the server running?")

    async def close(self) -> None:
        await self._requests.close()
        await super().close()

    async def __aenter__(self) -> RemoteSearch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
