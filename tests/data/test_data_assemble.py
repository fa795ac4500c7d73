"""Assembly: gold paragraphs among distractors, wherever chance puts them and nowhere else."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.data.assemble import Corpus, assemble, document_block
from palimpsest.data.record import Record
from palimpsest.errors import DataError
from support.records import CORPUS, record


def blocks(context: str) -> list[str]:
    """Split by hand: numbers must run from 1."""
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", context)
    assert parts[0] == ""
    assert [int(number) for number in parts[1::2]] == list(range(1, len(parts) // 2 + 1))
    return parts[2::2]


@given(st.integers(2, 410), st.integers(0, 5))
def test_a_context_holds_every_gold_and_the_asked_number_of_distinct_documents(documents: int, seed: int) -> None:
    problem = assemble(record(), corpus=CORPUS, documents=documents, seed=seed)
    found = blocks(problem.context or "")
    assert len(found) == len(set(found)) == documents == problem.metadata["num_docs"]
    assert set(record().gold) <= set(found)
    assert set(found) <= set(CORPUS.paragraphs)
    assert [found[at - 1] for at in problem.metadata["evidence_positions"]] == list(record().gold)
    own = set(found) & set(record().paragraphs or ())
    assert len(own) == min(documents, 10)  # own paragraphs before the corpus's


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


def test_the_published_fixed_permutation_would_fail_that_test() -> None:
    positions = []
    for i in range(2000):
        own = list(record(f"p{i}").paragraphs or ())
        documents = own + random.Random(i).sample(CORPUS.paragraphs, 40)
        random.Random(4).shuffle(documents)
        positions.append(documents.index(own[0]))
    assert len(set(positions)) == 1
    assert chi_square(Counter(at // 5 for at in positions), 10) > 100 * LIMIT_9


def test_distractors_are_drawn_uniformly_from_the_corpus_without_the_questions_own() -> None:
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


def test_without_named_gold_all_own_paragraphs_are_kept() -> None:
    problem = assemble(record(gold=()), corpus=CORPUS, documents=12)
    assert set(record().paragraphs or ()) <= set(blocks(problem.context or ""))
    assert problem.metadata["evidence"] == ()


def test_counts_that_cannot_be_met_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"problem q: data.documents=411 needs 401 distractors.* only 400 outside"):
        assemble(record(), corpus=CORPUS, documents=411)
    with pytest.raises(DataError, match=r"problem q: 2 gold paragraphs exceed data.documents=1"):
        assemble(record(), corpus=CORPUS, documents=1)


def test_a_finished_context_keeps_its_documents() -> None:
    fixed = Record("q", "Who?", ("A",), context="C", metadata={"num_docs": 50})
    assert assemble(fixed).context == assemble(fixed, documents=50).context == "C"
    with pytest.raises(DataError, match=r"data.documents=200.*num_docs=50"):
        assemble(fixed, documents=200)
    with pytest.raises(DataError, match="has no context"):
        assemble(Record("q", "Who?", ("A",)), documents=200)
