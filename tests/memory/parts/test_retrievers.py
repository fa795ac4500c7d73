"""Look-up of earlier memories: similarities by hand, ties, the minimum, and the cost of a recall."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from palimpsest.memory.parts.retrievers import RETRIEVERS, MemoryHistory, MemoryHit, MemoryIndex
from palimpsest.text.sentences import words
from support.work import calls_of

MEMORIES = ["Bob drinks tea.", "Ann trusts Bob. Bob eats figs.", "Ann drinks wine."]


def filled(name: Any, memories: list[str] = MEMORIES) -> MemoryIndex:
    index = RETRIEVERS[name]()
    for memory in memories:
        index.add(memory)
    return index


def idf(df: int) -> float:
    return math.log(4 / (1 + df)) + 1


def norm(*weights: float) -> float:
    return math.sqrt(sum(w * w for w in weights))


BY_HAND = {
    # query "Bob's tea": the words bob, s, tea
    "words": [2 / 3, 1 / 3, 0.0],
    "jaccard": [2 / 4, 1 / 7, 0.0],  # of 3 + 3 and 3 + 5 words, 2 and 1 in common
    "tfidf": [
        norm(idf(2), idf(1)) ** 2 / (norm(idf(2), idf(1)) * norm(idf(2), idf(2), idf(1))),
        2 * idf(2) ** 2 / (norm(idf(2), idf(1)) * norm(idf(2), idf(1), 2 * idf(2), idf(1), idf(1))),
        0.0,
    ],
    "bm25": [
        (math.log(1 + 1.5 / 2.5) + math.log(1 + 2.5 / 1.5)) * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 3 / 4)),
        math.log(1 + 1.5 / 2.5) * 2 * 2.5 / (2 + 1.5 * (0.25 + 0.75 * 6 / 4)),
        0.0,
    ],
}


@pytest.mark.parametrize("name", RETRIEVERS)
def test_similarities_by_hand(name: Any) -> None:
    scores = filled(name)._scores(Counter(words("Bob's tea")))
    assert [scores.get(index, 0.0) for index in range(3)] == pytest.approx(BY_HAND[name])


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_tie_goes_to_the_earliest_and_duplicates_stay(name: Any) -> None:
    """ReMemR1 keeps its memories in a set: ties fall by hash, duplicates and steps are lost."""
    history = MemoryHistory(RETRIEVERS[name](), 0.0)
    for step, text in enumerate(["It rained.", "Bob drinks tea.", "Ann ran.", "Bob drinks tea."]):
        history.add(step, [step], text)
    hit = history.look_up("Bob")
    assert hit is not None
    assert (history.steps[hit.place], history.memories[hit.place]) == (1, [1])
    assert history.texts == ["It rained.", "Bob drinks tea.", "Ann ran.", "Bob drinks tea."]


@pytest.mark.parametrize("name", RETRIEVERS)
def test_nothing_is_recalled_where_nothing_is_similar(name: Any) -> None:
    """ReMemR1 returns its top hit even at similarity 0."""
    history = MemoryHistory(RETRIEVERS[name](), 0.0)
    assert history.look_up("Bob") is None
    history.add(0, [], "Ann drinks wine.")
    assert [history.look_up(query) for query in ("Bob", "...", "")] == [None] * 3
    history.minimum = None  # the published behaviour, as an option
    assert history.look_up("Bob") == MemoryHit(0, 0.0)


def test_a_similarity_must_exceed_the_minimum() -> None:
    history = MemoryHistory(RETRIEVERS["words"](), 0.5)
    history.add(0, [], "Bob drinks tea.")
    assert history.look_up("Bob Ann") is None
    assert history.look_up("Bob drinks wine") == MemoryHit(0, 2 / 3)


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_recall_among_2000_memories_looks_at_each_a_few_times(name: Any) -> None:
    rng = random.Random(0)
    vocabulary = [f"word{i}" for i in range(400)]
    index = filled(name, [" ".join(rng.choices(vocabulary, k=40)) for _ in range(2000)])
    index.add("the needle word1 word2 word3")
    hits: list[MemoryHit | None] = []
    calls = calls_of(lambda: hits.append(index.best("the needle word1 word2 word3")))
    assert calls < 10_000
    assert hits[0] is not None
    assert hits[0].place == 2000
