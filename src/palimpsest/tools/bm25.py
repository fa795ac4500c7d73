"""BM25 over a static corpus, on disk: bm25s for the scores, one file of passages, both mapped and not read.

Lucene's variant: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), k1 = 1.5, b = 0.75. Words are runs of letters and digits,
casefolded; no stemming, no stop words ("The Who" is a query). A word said twice in a query counts twice.

Guaranteed: the same corpus gives the same files; ranking is by score, then by place in the corpus; a passage without a
word of the query is no hit, so an empty query and one of unknown words have none; each hit is the caller's own copy.
Safe to ask from several threads.
Not covered: adding passages (build anew); corpora whose words do not fit in memory while building.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import orjson

from palimpsest.data.corpus import read_corpus, searched_text
from palimpsest.errors import DataError
from palimpsest.tools import index_folder
from palimpsest.tools.search import Hit

KIND = "bm25/1"
"""Written to the manifest; an index of another kind or version is built anew."""

_PASSAGES, _STARTS = "passages.jsonl", "starts.npy"
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """
    >>> words("Polish-Russian War (Film)")
    ['polish', 'russian', 'war', 'film']
    """
    return _WORD.findall(text.casefold())


class Bm25Index:
    """An index folder, open for search."""

    def __init__(self, folder: Path, scores: bm25s.BM25, passages: mmap.mmap, starts: np.ndarray) -> None:
        self.folder = folder
        self._scores = scores
        self._passages = passages
        self._starts = starts
        """[N + 1] byte at which each passage begins; the last is the end of the file."""

    def __len__(self) -> int:
        return len(self._starts) - 1

    @classmethod
    def of_corpus(cls, corpus: Path, folder: Path) -> Bm25Index:
        """The index of a corpus file in `folder`, built there unless it is there already. Raises DataError."""
        made_of = {"sha256": index_folder.sha256(corpus)}
        if not _matches(folder, made_of):
            with index_folder.building(folder) as aside:
                if not _matches(folder, made_of):  # another process may have built it while this one waited
                    _write(read_corpus(corpus), aside, corpus)
                    index_folder.publish(aside, folder, {"kind": KIND, "made_of": made_of})
        return cls.open(folder)

    @classmethod
    def build(cls, passages: Iterable[dict[str, Any]], folder: Path) -> Bm25Index:
        """An index of passages at hand, each with text or contents, replacing an older one. Raises DataError."""
        index_folder.read_manifest(folder)  # refuses a folder that is something else
        with index_folder.building(folder) as aside:
            _write(passages, aside, folder)
            index_folder.publish(aside, folder, {"kind": KIND, "made_of": {}})
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Bm25Index:
        """The index in `folder`, every file verified. Raises DataError."""
        manifest = index_folder.read_manifest(folder)
        if manifest is None:
            raise DataError(f"{folder}: no index there; build one from a corpus first")
        if manifest["kind"] != KIND:
            raise DataError(f"{folder}: an index of kind {manifest['kind']!r}, this reads {KIND!r}; build it anew")
        index_folder.verify(folder, manifest)
        scores = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        starts = np.load(folder / _STARTS, mmap_mode="r")
        with (folder / _PASSAGES).open("rb") as file:
            passages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(folder, scores, passages, starts)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first."""
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> list[Hit]:
        vocabulary = self._scores.vocab_dict
        known = [vocabulary[word] for word in words(query) if word in vocabulary]
        if not known or topk < 1:
            return []
        scores_N = self._scores.get_scores_from_ids(known)
        return [Hit(self.passage(int(at)), float(scores_N[at])) for at in best(scores_N, topk)]

    def passage(self, at: int) -> dict[str, Any]:
        """Passage number `at`, a copy of its own."""
        start, end = int(self._starts[at]), int(self._starts[at + 1])
        found: dict[str, Any] = orjson.loads(self._passages[start:end])
        return found


def best(scores_N: np.ndarray, topk: int) -> np.ndarray:
    """Places of the `topk` largest positive scores, largest first, equal ones in order.

    >>> best(np.array([0.0, 2.0, 1.0, 2.0, 1.0]), 3).tolist()
    [1, 3, 2]
    """
    found = np.flatnonzero(scores_N > 0)
    if len(found) > topk:
        scores = scores_N[found]
        least = np.partition(scores, len(found) - topk)[len(found) - topk]
        found = found[scores >= least]
    return found[np.argsort(-scores_N[found], kind="stable")][:topk]


def _matches(folder: Path, made_of: dict[str, str]) -> bool:
    manifest = index_folder.read_manifest(folder)
    return manifest is not None and (manifest["kind"], manifest["made_of"]) == (KIND, made_of)


def _write(passages: Iterable[dict[str, Any]], folder: Path, source: Path) -> None:
    """Every file of the index but its manifest."""
    vocabulary: dict[str, int] = {}
    ids: list[list[int]] = []
    starts = [0]
    with (folder / _PASSAGES).open("wb") as file:
        for passage in passages:
            ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in words(searched_text(passage))])
            starts.append(starts[-1] + file.write(orjson.dumps(passage) + b"\n"))
    if not vocabulary:
        raise DataError(f"{source}: holds no passage with a word in it; there is nothing to search")
    np.save(folder / _STARTS, np.array(starts, dtype=np.int64))
    # the backends are named: with "auto" the files would depend on what else is installed
    scores = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy", csc_backend="numpy")
    scores.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    scores.save(folder, show_progress=False)
