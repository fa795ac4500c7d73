"""Search interface of an agent (queries in, ranked passages out, concurrent queries batched), and BM25 on disk.

`Coalescer` answers the queries of many callers in few calls. Queries that arrive while a call runs wait for the next
call, which takes all of them up to a bound. A query that can start immediately never waits.

    running=1    caller A  |--call [a]--|--call [b c d]--|
                 B, C, D      b c d wait

The BM25 index is bm25s for the scores and one file of passages, both memory-mapped. Words are runs of letters and
digits ("The Who" is a query). A repeated query word counts twice.

Guaranteed: each caller gets the answers to its queries, in order; an error reaches all callers of a call, except an
error that one caller may have caused (`divide`): each caller is then queried separately; a cancelled caller does not
affect the others. The same corpus gives the same files; hits are ranked by score, then by corpus order; every hit has a
word of the query; each hit is the caller's own copy. Several threads may search.
Not covered: use from several event loops; adding passages (build again); corpora whose words exceed memory during the
build.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import bm25s

from palimpsest.data.formats.corpus import read_corpus, searched_text
from palimpsest.errors import DataError
from palimpsest.retrieval import index_folder
from palimpsest.retrieval.index_folder import PassageStore, top, written
from palimpsest.text.sentences import words


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage found."""

    document: dict[str, Any]
    """The passage, the caller's own copy."""
    score: float
    """Larger is better; comparable only within one query."""


class Search(Protocol):
    """Backend of a search tool."""

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first. Raises SearchError if the service can't answer."""


class Index(Protocol):
    """A backend in this process."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]: ...


class LocalSearch:
    """An index of this process as a `Search`, queried in a thread so that the event loop is not blocked."""

    def __init__(self, index: Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return await asyncio.to_thread(self.index.search, tuple(queries), topk)


class DirectSearch:
    """A small index of this process as a `Search`, queried on the event loop."""

    def __init__(self, index: Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return self.index.search(queries, topk)


# ---- Batches of the queries of many callers ------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Ask(Generic[T]):
    queries: tuple[str, ...]
    topk: int
    answer: asyncio.Future[list[T]]


class Coalescer(Generic[T]):
    """Batches queries into `call(queries, topk)`, which returns one answer per query; at most `running` calls run."""

    def __init__(
        self,
        call: Callable[[Sequence[str], int], Awaitable[Sequence[T]]],
        *,
        running: int,
        together: int,
        divide: tuple[type[Exception], ...] = (),
    ) -> None:
        """`together`: maximum queries in one call; a caller with more gets a separate call."""
        self._call, self._most, self._together, self._divide = call, running, together, divide
        self._waiting: deque[_Ask[T]] = deque()
        self._running: set[asyncio.Task[Any]] = set()
        self.calls = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def ask(self, queries: Sequence[str], topk: int) -> list[T]:
        """One answer per query. Raises any error of `call`."""
        answer: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
        ask = _Ask(tuple(queries), topk, answer)
        self._waiting.append(ask)
        if len(self._running) < self._most:
            self._running.add(asyncio.create_task(self._work()))
        return await ask.answer

    async def close(self) -> None:
        """Cancel running calls and waiting callers."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ask in self._waiting:
            ask.answer.cancel()

    async def _work(self) -> None:
        try:
            while asks := self._next():
                try:
                    await self._answer(asks)
                finally:
                    for ask in asks:
                        ask.answer.cancel()  # no effect on answered ones
        finally:
            # not in a callback, which runs later: a caller in between would wait for a finished worker
            task = asyncio.current_task()
            assert task
            self._running.discard(task)

    def _next(self) -> list[_Ask[T]]:
        asks: list[_Ask[T]] = []
        count = 0
        while self._waiting:
            first = self._waiting[0]
            if asks and (first.topk != asks[0].topk or count + len(first.queries) > self._together):
                break
            self._waiting.popleft()
            if not first.answer.done():  # its caller may have given up
                asks.append(first)
                count += len(first.queries)
        return asks

    async def _answer(self, asks: Sequence[_Ask[T]]) -> None:
        self.calls += 1
        queries = [query for ask in asks for query in ask.queries]
        try:
            results = await self._call(queries, asks[0].topk)
            if len(results) != len(queries):
                raise ValueError(f"{len(results)} answers to {len(queries)} queries")
        except self._divide as error:
            if len(asks) == 1:
                _fail(asks[0], error)
            else:
                for ask in asks:
                    await self._answer([ask])
        except Exception as error:  # noqa: BLE001  passed to every caller
            for ask in asks:
                _fail(ask, error)
        else:
            rest = iter(results)
            for ask in asks:
                answers = [next(rest) for _ in ask.queries]
                if not ask.answer.done():
                    ask.answer.set_result(answers)


def _fail(ask: _Ask[T], error: Exception) -> None:
    if not ask.answer.done():
        ask.answer.set_exception(error)


# ---- BM25 over a static corpus, on disk ----------------------------------------------------------------------


KIND = "bm25/1"
"""Kind and version in the manifest; others need a new build."""


def indexed(texts: Iterable[str]) -> bm25s.BM25:
    """In-memory scores of texts; the vocabulary is empty if they have no word."""
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in texts]
    # explicit backends: with "auto" the files would depend on installed packages
    scores = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy", csc_backend="numpy")
    scores.vocab_dict = vocabulary
    if vocabulary:
        scores.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    return scores


def ranked(scores: bm25s.BM25, query: str, topk: int) -> list[tuple[int, float]]:
    """(index, score) of at most `topk` texts that have a word of the query, best first, equal ones in order."""
    word_ids = [scores.vocab_dict[word] for word in words(query) if word in scores.vocab_dict]
    if not word_ids or topk < 1:
        return []
    scores_N = scores.get_scores_from_ids(word_ids)
    return [(at, float(scores_N[at])) for at in top(scores_N, topk).tolist() if scores_N[at] > 0]


class Bm25Index:
    """An index folder, open for search."""

    def __init__(self, folder: Path, scores: bm25s.BM25, passages: PassageStore) -> None:
        self.folder = folder
        self._scores = scores
        self._passages = passages

    def __len__(self) -> int:
        return len(self._passages)

    @classmethod
    def of_corpus(cls, corpus: Path, folder: Path) -> Bm25Index:
        """The index of a corpus file in `folder`, built if missing. Raises DataError."""
        made_of = {"sha256": index_folder.sha256(corpus)}
        built = index_folder.ensure(folder, KIND, made_of, lambda aside: _write(read_corpus(corpus), aside, corpus))
        return cls.open(built, made_of)

    @classmethod
    def build(cls, passages: Iterable[dict[str, Any]], folder: Path) -> Bm25Index:
        """Build an index of passages with text or contents, replacing an older one. Raises DataError."""
        return cls.open(index_folder.ensure(folder, KIND, None, lambda aside: _write(passages, aside, folder)))

    @classmethod
    def open(cls, folder: Path, made_of: Mapping[str, Any] | None = None) -> Bm25Index:
        """The verified index in `folder`. Raises DataError, also for one that is not `made_of` that."""
        index_folder.checked(folder, KIND, made_of)
        return cls(folder, bm25s.BM25.load(folder, mmap=True, show_progress=False), PassageStore(folder))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        return [
            [Hit(self._passages[at], score) for at, score in ranked(self._scores, query, topk)] for query in queries
        ]


def _write(passages: Iterable[dict[str, Any]], folder: Path, source: Path) -> None:
    scores = indexed(searched_text(passage) for passage in written(passages, folder))
    if not scores.vocab_dict:
        raise DataError(f"{source}: no passage has a word to search")
    scores.save(folder, show_progress=False)
