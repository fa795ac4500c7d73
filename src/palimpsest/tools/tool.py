"""Tool interface, the shipped search tool, and construction of the configured tools.

    tools: {search: {topk: 3}}                  a shipped tool with its options
    tools: {"my_module:MyTool": {size: 2}}      a custom tool, MyTool(size=2), importable from the current folder

Guaranteed: passages in memory and on disk are ranked alike (retrieval/search.py); an index on disk or a server never
blocks the event loop; a failed service is only a ToolError for the model; invalid options (checked by the constructor's
annotations), duplicate names and schemas that text/tool_calls.py can't check raise ConfigError before any episode.
Passages and documents of a problem are searched on the event loop: a thread's timing varies between runs and would
change the last bits of log-probabilities in the next turn.
Not covered: for that reason, byte-identical runs with an index on disk or a server; reporting a failed service to the
reward (the episode's events have it); a tool that blocks the event loop (use `asyncio.to_thread` inside it).
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest import plugins
from palimpsest.data.formats.corpus import document_passages, searched_text, text_of
from palimpsest.errors import ConfigError, DataError, SearchError
from palimpsest.retrieval.search import Bm25Index, DirectSearch, Hit, LocalSearch, Search, indexed, ranked
from palimpsest.text.tool_schema import Schema, check_schema
from palimpsest.types import Problem

if TYPE_CHECKING:
    from palimpsest.retrieval.search_client import RemoteSearch


# ---- Tool interface ------------------------------------------------------------------------------------------


class ToolError(Exception):
    """Failed call; the message is one line for the model."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Description of a tool for the model."""

    name: str
    description: str
    parameters: Schema

    def function(self) -> dict[str, Any]:
        """OpenAI's function-calling form, which chat templates expect."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}


class Tool(ABC):
    """One tool object serves many episodes concurrently.

    A custom class need not inherit this; missing members default to these.
    """

    __slots__ = ()

    spec: ToolSpec

    def admit(self, problem: Problem) -> None:  # noqa: B027  most tools accept every problem
        """Raise DataError at load for a problem that the tool can't serve."""

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], problem: Problem) -> str:
        """The result's text. `arguments` match the schema. Raises ToolError with a line for the model."""


# ---- Search tool ---------------------------------------------------------------------------------------------


_MAX_WORLDS = 256
_NOTHING = "No results."
DOCUMENT = "document"
"""The `source` that searches the problem's document."""


class PassageIndex:
    """BM25 over passages in memory, with the ranking of an index on disk.

    >>> index = PassageIndex([{"text": "Ann lives in Oslo."}, {"text": "Bob lives in Rome."}])
    >>> [hit.document["text"] for hit in index.search(["Who lives in Rome?"], 1)[0]]
    ['Bob lives in Rome.']
    """

    def __init__(self, passages: Sequence[Mapping[str, Any]]) -> None:
        self._passages = passages
        self._scores = indexed(searched_text(passage) for passage in passages)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        return [
            [Hit(dict(self._passages[at]), score) for at, score in ranked(self._scores, query, topk)]
            for query in queries
        ]


class SearchTool(Tool):
    """Search over a problem's passages, its document, an index or a server."""

    def __init__(
        self,
        source: str = "problem",
        topk: int = 5,
        max_topk: int = 20,
        titles: bool = True,
        token_env: str | None = None,
        attempts: int = 3,
        timeout_s: float = 8.0,
        passage_chars: int = 1000,
    ) -> None:
        """`source`: `problem` (its metadata's `passages`), `document` (its context), an index folder, or
        http://host:port.

        `topk`: default of a call; `max_topk`: its maximum; `titles`: put "title: " before a passage. For a server:
        `token_env`, the environment variable of its token; `attempts`; `timeout_s`, seconds per attempt. For a
        document: `passage_chars`, maximum characters of a passage.
        """
        if not 1 <= topk <= max_topk:
            raise ConfigError(f"must be from 1 to max_topk={max_topk}", key=f"{_KEY}.search.topk", value=topk)
        if passage_chars < 1:
            raise ConfigError("must be at least 1", key=f"{_KEY}.search.passage_chars", value=passage_chars)
        if attempts < 1:
            raise ConfigError("must be at least 1", key=f"{_KEY}.search.attempts", value=attempts)
        if not timeout_s > 0:
            raise ConfigError("must be above 0 seconds", key=f"{_KEY}.search.timeout_s", value=timeout_s)
        self.source, self.topk, self.max_topk, self.titles = source, topk, max_topk, titles
        self.passage_chars = passage_chars
        self._worlds: OrderedDict[str, tuple[Any, PassageIndex]] = OrderedDict()
        self._clients: dict[asyncio.AbstractEventLoop, tuple[RemoteSearch, AsyncGenerator[RemoteSearch]]] = {}
        self._index: Search | None = None
        if source.startswith(("http://", "https://")):
            self._connect = _connector(source, token_env, attempts, timeout_s)
        elif source not in ("problem", DOCUMENT):
            self._index = LocalSearch(Bm25Index.open(Path(source)))
        self.spec = _spec(topk)

    def admit(self, problem: Problem) -> None:
        """Raise DataError at load for a problem without the searched text, or with malformed passages."""
        if self.source == DOCUMENT and not (problem.context or "").strip():
            raise DataError(
                f"problem {problem.id}: no document for policy.options.tools.search.source=document; unset it, or use "
                "data with documents and unset data.search"
            )
        if self.source != "problem":
            return
        passages = problem.metadata.get("passages")
        if not passages:
            raise DataError(
                f"problem {problem.id}: no passages to search; "
                "set policy.options.tools.search.source to document, to the folder of an index, or to http://host:port"
            )
        for at, passage in enumerate(passages):
            try:
                text_of(passage)
            except DataError as error:
                raise DataError(f"problem {problem.id}: metadata.passages[{at}]: {error}") from None

    async def call(self, arguments: Mapping[str, Any], problem: Problem) -> str:
        """The passages found, one per line."""
        query, topk = str(arguments["query"]), int(arguments.get("topk", self.topk))
        if not query.strip():
            raise ToolError('query="" is empty: say what to look for')
        if not 1 <= topk <= self.max_topk:
            raise ToolError(f"topk={topk} is out of range: give 1 to {self.max_topk}")
        try:
            (hits,) = await (await self._search(problem)).search([query], topk)
            return "\n".join(self._shown(hit.document) for hit in hits) or _NOTHING
        except (SearchError, DataError) as error:
            raise ToolError(f"the search service failed: {error}") from error

    def _shown(self, document: Mapping[str, Any]) -> str:
        body, title = text_of(document), document.get("title")
        return f"{title}: {body}" if self.titles and title else body

    async def _search(self, problem: Problem) -> Search:
        if self.source in ("problem", DOCUMENT):
            return DirectSearch(self._world(problem))
        return self._index or await self._client()

    def _world(self, problem: Problem) -> PassageIndex:
        searched = problem.context if self.source == DOCUMENT else problem.metadata.get("passages")
        if not searched:
            raise ToolError("there are no passages to search")
        entry = self._worlds.get(problem.id)
        if entry is None or entry[0] is not searched:
            entry = searched, PassageIndex(self._passages(searched))
            self._worlds[problem.id] = entry
        self._worlds.move_to_end(problem.id)
        while len(self._worlds) > _MAX_WORLDS:
            self._worlds.popitem(last=False)
        return entry[1]

    def _passages(self, searched: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return document_passages(searched, self.passage_chars) if isinstance(searched, str) else searched

    async def _client(self) -> Search:
        """The client of this event loop, closed when the loop ends: loops can't share connections."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {other: client for other, client in self._clients.items() if not other.is_closed()}
            lent = _lent(self._connect())
            self._clients[loop] = await anext(lent), lent
        return self._clients[loop][0]


async def _lent(client: RemoteSearch) -> AsyncGenerator[RemoteSearch]:
    """Yield the client once. `asyncio.run` closes open generators when its loop ends, which closes the client."""
    async with client:
        yield client


def _spec(topk: int) -> ToolSpec:
    return ToolSpec(
        name="search",
        description="Search a collection of passages and return the ones that match the query best.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for, in a few words"},
                "topk": {"type": "integer", "description": f"how many passages; {topk} unless given"},
            },
            "required": ["query"],
        },
    )


def _connector(source: str, token_env: str | None, attempts: int, timeout_s: float) -> Callable[[], RemoteSearch]:
    from palimpsest.http_services import check_address, token_from  # aiohttp is slow to import, servers are rare
    from palimpsest.retrieval.search_client import RemoteSearch

    check_address(source, "policy.options.tools.search.source")
    token = token_from(token_env, "policy.options.tools.search.token_env")
    return partial(RemoteSearch, source, token=token, attempts=attempts, timeout=timeout_s)


# ---- Building the configured tools ---------------------------------------------------------------------------


_KEY = "policy.options.tools"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def build_tools(config: Mapping[str, Mapping[str, Any] | None]) -> tuple[Tool, ...]:
    """The configured tools, in order. Raises ConfigError."""
    tools = tuple(_build(name, options or {}) for name, options in config.items())
    names = [tool.spec.name for tool in tools]
    for tool in tools:
        name = tool.spec.name
        if not _NAME.fullmatch(name):
            raise ConfigError(f"tool name {name!r}: letters, digits and _ . - only, at most 64, a letter first")
        if names.count(name) > 1:
            raise ConfigError(f"has two tools with the name {name}; rename one", key=_KEY)
        check_schema(tool.spec.parameters, name)
    return tools


def _build(name: str, options: Mapping[str, Any]) -> Tool:
    tool: Tool = plugins.build("tool", name, options, options_key=f"{_KEY}.{name}")
    if not isinstance(getattr(tool, "spec", None), ToolSpec):
        raise ConfigError("needs `spec`, a ToolSpec", key=_KEY, value=name)
    return tool
