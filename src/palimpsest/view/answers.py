"""What the page asks for, as values that JSON can hold: a function of a path and a query, without a server.

The paths stand in `Answers.__init__`; an export asks for them in advance and keeps what they gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from palimpsest.view.run_facts import Facts
from palimpsest.view.sources import Kind, Library, NotThere, Source

Query = Mapping[str, str]
Answer = Callable[..., Any]


class Answers:
    """The API over a library. Threads may share it."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.facts = Facts()
        self._routes: list[tuple[re.Pattern[str], Answer]] = [
            (re.compile(pattern), answer)
            for pattern, answer in (
                (r"/api/runs", self._runs),
                (r"/api/runs/([^/]+)", self._run),
                (r"/api/runs/([^/]+)/metrics", self._metrics),
                (r"/api/runs/([^/]+)/timings", self._timings),
                (r"/api/runs/([^/]+)/events", self._events),
            )
        ]

    def get(self, path: str, query: Query | None = None) -> Any:
        """The answer to a path. Raises NotThere for one that is none, and for what isn't there any more."""
        for pattern, answer in self._routes:
            if match := pattern.fullmatch(path):
                return answer(query or {}, *match.groups())
        raise NotThere(f"{path[:200]!r}: no such path")

    def _runs(self, query: Query) -> Any:
        return {"runs": [self.facts.row(source) for source in self.library.sources()]}

    def _run(self, query: Query, key: str) -> Any:
        return self.facts.all(self.library.source(key))

    def _metrics(self, query: Query, key: str) -> Any:
        keys = query["keys"].split(",") if query.get("keys") else None
        return self.facts.metrics(self._training(key), number(query, "since", -1), keys)

    def _timings(self, query: Query, key: str) -> Any:
        return self.facts.timings(self._training(key), number(query, "since", -1))

    def _events(self, query: Query, key: str) -> Any:
        return self.facts.events(self._training(key), number(query, "since", 0))

    def _training(self, key: str) -> Source:
        source = self.library.source(key)
        if source.kind is not Kind.RUN:
            raise NotThere(f"{key!r} is no run: it has no steps")
        return source


def number(query: Query, name: str, default: int) -> int:
    """A whole number of a query. Raises NotThere for what is none."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"-?\d{1,15}", text):
        raise NotThere(f"{name}={text[:60]!r}: give a whole number")
    return int(text)
