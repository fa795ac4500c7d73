"""BM25 over a static corpus, on disk: bm25s for the scores, one file of passages, both mapped and not read.

Lucene's variant: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), k1 = 1.5, b = 0.75. Words are runs of letters and digits,
casefolded; no stemming, no stop words ("The Who" is a query). A word said twice in a query counts twice.

Guaranteed: the same corpus gives the same files; ranking is by score, then by place in the corpus; a passage without a
word of the query is no hit, so an empty query and one of unknown words have none; each hit is the caller's own copy.
Safe to ask from several threads.
Not covered: adding passages (build anew); corpora whose words do not fit in memory while building.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import bm25s

from palimpsest.data.formats.corpus import read_corpus, searched_text
from palimpsest.errors import DataError
from palimpsest.retrieval import index_folder
from palimpsest.retrieval.index_folder import PassageStore, top, written
from palimpsest.retrieval.search import Hit

KIND = "bm25/1"
"""Written to the manifest; an index of another kind or version is built anew."""

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """
    >>> words("Polish-Russian War (Film)")
    ['polish', 'russian', 'war', 'film']
    """
    return _WORD.findall(text.casefold())


def indexed(texts: Iterable[str]) -> bm25s.BM25:
    """The scores of texts, in memory; its vocabulary is empty where they hold no word."""
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in texts]
    # the backends are named: with "auto" the files would depend on what else is installed
    scores = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy", csc_backend="numpy")
    scores.vocab_dict = vocabulary
    if vocabulary:
        scores.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    return scores


def ranked(scores: bm25s.BM25, query: str, topk: int) -> list[tuple[int, float]]:
    """(place, score) of at most `topk` texts, best first; of equal ones the first. None without a word of the query."""
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
        """The index of a corpus file in `folder`, built there unless it is there already. Raises DataError."""
        made_of = {"sha256": index_folder.sha256(corpus)}
        return cls.open(
            index_folder.ensure(folder, KIND, made_of, lambda aside: _write(read_corpus(corpus), aside, corpus))
        )

    @classmethod
    def build(cls, passages: Iterable[dict[str, Any]], folder: Path) -> Bm25Index:
        """An index of passages at hand, each with text or contents, replacing an older one. Raises DataError."""
        return cls.open(index_folder.ensure(folder, KIND, None, lambda aside: _write(passages, aside, folder)))

    @classmethod
    def open(cls, folder: Path) -> Bm25Index:
        """The index in `folder`, every file verified. Raises DataError."""
        index_folder.checked(folder, KIND)
        return cls(folder, bm25s.BM25.load(folder, mmap=True, show_progress=False), PassageStore(folder))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        return [
            [Hit(self._passages[at], score) for at, score in ranked(self._scores, query, topk)] for query in queries
        ]


def _write(passages: Iterable[dict[str, Any]], folder: Path, source: Path) -> None:
    """Every file of the index but its manifest."""
    scores = indexed(searched_text(passage) for passage in written(passages, folder))
    if not scores.vocab_dict:
        raise DataError(f"{source}: holds no passage with a word in it; there is nothing to search")
    scores.save(folder, show_progress=False)
