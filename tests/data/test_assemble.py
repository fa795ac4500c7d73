"""Contexts assembled from gold paragraphs and distractors, uniformly or in a given order and distance."""

import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.load import parse_config
from palimpsest.data.assemble import Corpus, Placing, assemble, document_block
from palimpsest.data.record import Record
from palimpsest.errors import ConfigError, DataError
from support.records import CORPUS, record


def blocks(context: str) -> list[str]:
    """Documents of a context, whose numbers must run from 1."""
    pieces = re.split(r"(?:^|\n\n)Document (\d+):\n", context)
    assert pieces[0] == ""
    assert [int(number) for number in pieces[1::2]] == list(range(1, len(pieces) // 2 + 1))
    return pieces[2::2]


@settings(max_examples=50)
@given(st.integers(2, 410), st.integers(0, 5))
def test_a_context_has_the_gold_and_distinct_documents(documents: int, seed: int) -> None:
    problem = assemble(record(), corpus=CORPUS, documents=documents, seed=seed)
    result = blocks(problem.context or "")
    assert len(result) == len(set(result)) == documents == problem.metadata["num_docs"]
    assert set(record().gold) <= set(result)
    assert set(result) <= set(CORPUS.paragraphs)
    assert [result[at - 1] for at in problem.metadata["evidence_positions"]] == list(record().gold)
    related = set(result) & set(record().paragraphs or ())
    assert len(related) == min(documents, 10)  # own paragraphs before the corpus's


def test_the_layout_by_hand() -> None:
    assert document_block(["A\na.", "B\nb."]) == "Document 1:\nA\na.\n\nDocument 2:\nB\nb."
    two = Record("q", "Who?", ("A",), paragraphs=("A\na.", "B\nb."), gold=("B\nb.",))
    problem = assemble(two)
    assert problem.context == "Document 1:\nA\na.\n\nDocument 2:\nB\nb."
    assert problem.metadata == {"num_docs": 2, "evidence": ("B\nb.",), "evidence_positions": (2,)}


def chi_square(counts: Counter[int], cells: int) -> float:
    expected = counts.total() / cells
    return sum((counts[cell] - expected) ** 2 / expected for cell in range(cells))


LIMIT_9 = 33.7
"""Chi-square with 9 degrees of freedom exceeds it once in 10,000."""


def test_evidence_positions_are_uniform_and_independent_between_problems() -> None:
    positions = [
        assemble(record(f"p{i}"), corpus=CORPUS, documents=50).metadata["evidence_positions"] for i in range(2000)
    ]
    for piece in (0, 1):
        assert chi_square(Counter((at[piece] - 1) // 5 for at in positions), 10) < LIMIT_9
    gaps = Counter((a[0] - b[0]) % 50 // 5 for a, b in zip(positions[::2], positions[1::2], strict=True))
    assert chi_square(gaps, 10) < LIMIT_9


def test_distractors_are_drawn_uniformly_from_other_paragraphs() -> None:
    corpus = Corpus.of([[f"d{i}" for i in range(10)] + ["own a", "own b"]])
    drawn = Counter(
        int(text[1:])
        for i in range(2000)
        for text in corpus.draw(3, frozenset({"own a", "own b", "absent"}), random.Random(i))
    )
    assert drawn.total() == 6000
    assert chi_square(drawn, 10) < LIMIT_9


def test_the_same_key_gives_the_same_bytes_and_another_seed_another_order() -> None:
    contexts = [assemble(record(), corpus=CORPUS, documents=30, seed=seed).context for seed in (0, 0, 1)]
    assert contexts[0] == contexts[1]
    assert contexts[0] != contexts[2]


def test_without_gold_all_paragraphs_of_the_question_are_used() -> None:
    problem = assemble(record(gold=()), corpus=CORPUS, documents=12)
    assert set(record().paragraphs or ()) <= set(blocks(problem.context or ""))
    assert problem.metadata["evidence"] == ()


@pytest.mark.parametrize(
    ("gold", "documents", "placing", "reason"),
    [
        ((0, 7), 411, Placing(), "data.documents=411 needs 401 distractors.* only 400 outside"),
        ((0, 7), 1, Placing(), "2 gold paragraphs exceed data.documents=1"),
        ((0, 7), 20, Placing("reverse", 30), "2 gold paragraphs 30 documents apart need 31 .*, but data.documents=20"),
        ((), 20, Placing("reverse"), "marks no gold paragraphs"),
    ],
)
def test_impossible_counts_and_distances_are_rejected(
    gold: tuple[int, ...], documents: int, placing: Placing, reason: str
) -> None:
    with pytest.raises(DataError, match=f"problem q: .*{reason}"):
        assemble(record(gold=gold), corpus=CORPUS, documents=documents, placing=placing)


@settings(max_examples=50)
@given(st.integers(20, 60), st.integers(1, 15), st.sampled_from(["forward", "reverse", "any"]), st.integers(0, 5))
def test_gold_is_placed_in_order_and_at_its_distance(documents: int, distance: int, order: Any, seed: int) -> None:
    problem = assemble(record(), corpus=CORPUS, documents=documents, seed=seed, placing=Placing(order, distance))
    plain = assemble(record(), corpus=CORPUS, documents=documents, seed=seed)
    first, second = problem.metadata["evidence_positions"]
    assert abs(first - second) >= distance
    assert order == "any" or (first < second) == (order == "forward")
    result = blocks(problem.context or "")
    assert [result[first - 1], result[second - 1]] == list(record().gold)
    assert sorted(result) == sorted(blocks(plain.context or ""))


@pytest.mark.parametrize("data", ["{order: reverse}", "{train_files: a.json, min_distance: 3}"])
def test_order_and_distance_need_documents(data: str) -> None:
    with pytest.raises(ConfigError, match=r"data.order and data.min_distance place the gold paragraphs"):
        parse_config(f"data: {data}")


def test_a_finished_context_keeps_its_documents() -> None:
    fixed = Record("q", "Who?", ("A",), context="C", metadata={"num_docs": 50})
    assert assemble(fixed).context == assemble(fixed, documents=50).context == "C"
    with pytest.raises(DataError, match=r"data.documents=200.*num_docs=50"):
        assemble(fixed, documents=200)
    with pytest.raises(DataError, match="has no context"):
        assemble(Record("q", "Who?", ("A",)), documents=200)
