"""Search as an agent meets it: queries in, ranked passages out, whatever is behind it.

LocalSearch    an index in this process (retrieval/bm25.py), asked in a thread
DirectSearch   one so small that it is asked in place
RemoteSearch   a retrieval server (retrieval/client.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palimpsest.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage found."""

    document: dict[str, Any]
    """The passage, the caller's own copy."""
    score: float
    """Larger is better; comparable within one query only."""


class Search(Protocol):
    """What a search tool asks."""

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first. Raises SearchError where the service can't answer."""
        ...


class Index(Protocol):
    """A backend in this process."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]: ...


class LocalSearch:
    """An index of this process behind the interface of a server; the event loop goes on while it is asked."""

    def __init__(self, index: Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return await asyncio.to_thread(self.index.search, tuple(queries), topk)


class DirectSearch:
    """A small index of this process behind the interface of a server; whoever asks has the answer without a wait."""

    def __init__(self, index: Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return self.index.search(queries, topk)


def check_token(token: str | None, key: str) -> None:
    """Refuse a server's token, the value of `key`, that would not arrive as it is. Raises ConfigError."""
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{key}: no client can send this one in a header; use ASCII letters, digits and signs")
