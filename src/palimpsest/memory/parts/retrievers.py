"""Retrieval of an earlier memory, or a passage of a document, by words: four rules over one inverted index.

For a query q and the memories m of an episode; words are compared whole and without case (`drink` is not `drinks`):

    words    |words(q) & words(m)| / |words(q)|                   ReMemR1 (arXiv 2509.23040), its definition of recall
    jaccard  |words(q) & words(m)| / |words(q) | words(m)|        the look-up of its MemAgent baseline
    tfidf    cosine of tf * (ln((1 + N) / (1 + df)) + 1)          its code's rule (scikit-learn's smoothed idf)
    bm25     Okapi BM25, k1 = 1.5, b = 0.75, idf ln(1 + (N - df + 0.5) / (df + 0.5))

Guaranteed: ties go to the memory that was added first; adding costs the words of the memory; a query costs the
memories that share a word with it, `tfidf` all words of the episode's memories once more (its weights change with
every memory); results are deterministic, without fitting.
Not covered: meaning (synonyms, inflection); the subword tokens that the published code splits into.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from palimpsest.text.sentences import words


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """The best memory for a query."""

    place: int
    """0-based, in the order of addition."""
    similarity: float


@dataclass
class MemoryIndex(ABC):
    """Memories of one episode, oldest first."""

    size: int = 0
    postings: dict[str, tuple[array[int], array[int]]] = field(default_factory=dict)
    """Word to the positions of the memories that contain it, ascending, and its count in each."""

    def add(self, text: str) -> None:
        counts = Counter(words(text))
        for word, count in counts.items():
            places, times = self.postings.setdefault(word, (array("l"), array("l")))
            places.append(self.size)
            times.append(count)
        self.size += 1
        self._added(counts)

    def best(self, query: str) -> MemoryHit | None:
        """The memory most similar to `query`, at any similarity; the first of equals. None without any memory."""
        if not self.size:
            return None
        scores = self._scores(Counter(words(query)))
        if not scores:
            return MemoryHit(0, 0.0)
        index = min(scores, key=lambda index: (-scores[index], index))
        return MemoryHit(index, scores[index]) if scores[index] > 0 else MemoryHit(0, 0.0)

    def ranked(self, query: str) -> list[int]:
        """Positions of all texts, most similar to `query` first; among equals, the earliest first.

        >>> index = Bm25()
        >>> for text in ("Ann likes tea.", "Bob likes tea.", "It rains."):
        ...     index.add(text)
        >>> index.ranked("What does Bob like? Tea?")
        [1, 0, 2]
        """
        scores = self._scores(Counter(words(query))) if self.size else {}
        return sorted(range(self.size), key=lambda index: (-scores.get(index, 0.0), index))

    def _added(self, counts: Counter[str]) -> None:  # noqa: B027  most rules store nothing else
        """Index the words of a new memory."""

    @abstractmethod
    def _scores(self, query: Counter[str]) -> dict[int, float]:
        """Similarity of every memory that shares a word with the query."""

    def _shared(self, query: Counter[str]) -> Counter[int]:
        return Counter(index for word in query if word in self.postings for index in self.postings[word][0])


@dataclass
class WordRecall(MemoryIndex):
    def _scores(self, query: Counter[str]) -> dict[int, float]:
        return {index: shared / len(query) for index, shared in self._shared(query).items()}


@dataclass
class Jaccard(MemoryIndex):
    lengths: list[int] = field(default_factory=list)

    def _added(self, counts: Counter[str]) -> None:
        self.lengths.append(len(counts))

    def _scores(self, query: Counter[str]) -> dict[int, float]:
        shared = self._shared(query)
        return {index: both / (len(query) + self.lengths[index] - both) for index, both in shared.items()}


@dataclass
class TfIdf(MemoryIndex):
    def _scores(self, query: Counter[str]) -> dict[int, float]:
        """Cosines, without those of 0: of memories without a word of the query."""
        weights = {word: math.log((1 + self.size) / (1 + len(p[0]))) + 1 for word, p in self.postings.items()}
        weighted = {word: count * weights[word] for word, count in query.items() if word in weights}
        if not weighted:
            return {}
        dot, squares = np.zeros(self.size), np.zeros(self.size)
        for word, (places, times) in self.postings.items():
            at, values = np.frombuffer(places, "l"), np.frombuffer(times, "l") * weights[word]
            squares[at] += values**2
            if word in weighted:
                dot[at] += values * weighted[word]
        length = math.sqrt(sum(weight**2 for weight in weighted.values()))  # unknown words don't count here either
        cosine = dot / (np.sqrt(squares) * length + (squares == 0))
        return {int(index): float(cosine[index]) for index in np.flatnonzero(dot)}


@dataclass
class Bm25(MemoryIndex):
    lengths: list[int] = field(default_factory=list)
    total: int = 0
    k1: float = 1.5
    b: float = 0.75

    def _added(self, counts: Counter[str]) -> None:
        self.lengths.append(counts.total())
        self.total += counts.total()

    def _scores(self, query: Counter[str]) -> dict[int, float]:
        scores: dict[int, float] = {}
        mean = self.total / self.size
        for word in query:
            places, times = self.postings.get(word, ((), ()))
            idf = math.log(1 + (self.size - len(places) + 0.5) / (len(places) + 0.5))
            for index, count in zip(places, times, strict=True):
                damped = count + self.k1 * (1 - self.b + self.b * self.lengths[index] / mean)
                scores[index] = scores.get(index, 0.0) + idf * count * (self.k1 + 1) / damped
        return scores


Retriever = Literal["words", "jaccard", "tfidf", "bm25"]
RETRIEVERS: dict[Retriever, type[MemoryIndex]] = {"words": WordRecall, "jaccard": Jaccard, "tfidf": TfIdf, "bm25": Bm25}


@dataclass
class MemoryHistory:
    """The memories an agent wrote in one episode: an ordered list with step ids, duplicates included."""

    index: MemoryIndex
    minimum: float | None
    """A hit must be more similar than this; None takes the top one at any similarity, 0 included."""
    steps: list[int] = field(default_factory=list)
    memories: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, step: int, ids: list[int], text: str) -> None:
        self.index.add(text)
        self.steps.append(step)
        self.memories.append(ids)
        self.texts.append(text)

    def look_up(self, query: str) -> MemoryHit | None:
        """The best memory for `query` if it is similar enough."""
        hit = self.index.best(query)
        if hit is None or (self.minimum is not None and hit.similarity <= self.minimum):
            return None
        return hit
