"""Asynchronous client of a retrieval server.

Concurrent searches share requests (`Coalescer` in retrieval/search.py).

Guaranteed: the client never blocks the event loop; a search that the server rejects does not fail others; a server that
is down, slow or busy (429, 5xx) is retried, `attempts` times in all, after a pause that doubles or the longer one that
it requests, then SearchError; a reply of the wrong shape, encoding or size, or another status, is SearchError
immediately; messages are one line without the token.
Not covered: use from several event loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from palimpsest.errors import SearchError
from palimpsest.http_connections import BadReply, Connections
from palimpsest.http_services import (
    GaveUp,
    HttpReply,
    RetryableError,
    attempted,
    check_address,
    check_token,
    redacted,
    retry_after,
)
from palimpsest.retrieval.search import Coalescer, Hit

_LONGEST_PAUSE = 10.0  # seconds
_REPLY_BYTES = 64 << 20
"""Maximum size of a reply, with the passages of up to `together` queries."""


class _RefusedError(SearchError):
    """Rejected request, which may succeed without another caller's queries."""


class RemoteSearch:
    """Client of `POST /retrieve`. Use it with `async with`, or `close` it."""

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
        self.url = f"{url.rstrip('/')}/retrieve"
        self._timeout, self._attempts, self._pause = timeout, attempts, pause
        self._token = token
        self._connections = Connections(token=token, proxies_for=url)
        self._requests = Coalescer(self._ask, running=connections, together=together, divide=(_RefusedError,))

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query. Raises SearchError."""
        if not queries:
            return []
        return await self._requests.ask(queries, topk)

    async def _ask(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Send one request, with retries after temporary failures."""
        body = {"queries": list(queries), "topk": topk, "return_scores": True}

        async def once() -> list[list[Hit]]:
            return self._hits(await self._sent(body), len(queries))

        try:
            return await attempted(
                once, attempts=self._attempts, pause=self._pause, key=tuple(queries), longest=_LONGEST_PAUSE
            )
        except GaveUp as gave_up:
            raise SearchError(f"{self.url}: {gave_up}; is the server running?") from None

    async def _sent(self, body: Mapping[str, Any]) -> HttpReply:
        """A reply with status 200. Raises RetryableError, or SearchError if a retry can't help."""
        try:
            answer = await self._connections.ask("POST", self.url, body, limit=_REPLY_BYTES, timeout_s=self._timeout)
        except BadReply as bad:
            raise SearchError(f"{self.url}: {bad}") from None
        if answer.status == 200:
            return answer
        message = f"status {answer.status}: {answer.quoted(200, self._token)}"
        if answer.status == 429 or answer.status >= 500:
            raise RetryableError(message, retry_after(answer.headers))
        raise _RefusedError(f"{self.url}: {message}")

    def _hits(self, answer: HttpReply, count: int) -> list[list[Hit]]:
        try:
            result: Any = answer.json()["result"]
            results = [[Hit(dict(hit["document"]), float(hit["score"])) for hit in hits] for hits in result]
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            what = redacted(repr(error), self._token)
            raise SearchError(f"{self.url}: not the answer of a retrieval server ({what:.100})") from None
        if len(results) != count:
            raise SearchError(f"{self.url}: {len(results)} results for {count} queries")
        return results

    async def close(self) -> None:
        await self._requests.close()
        await self._connections.close()

    async def __aenter__(self) -> RemoteSearch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
