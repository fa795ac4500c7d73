"""Synthetic documents: answerable, unambiguous, and without a tell in position."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from palimpsest.config.data import SyntheticConfig
from palimpsest.data.synthetic.documents import SyntheticSource, make_problem
from palimpsest.data.synthetic.world import ATTRIBUTES, PEOPLE
from palimpsest.errors import DataError
from support.facts import answer_by_reading, read_facts


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("chunks", [1, 4, 40])
def test_the_document_alone_gives_the_answer_and_nothing_contradicts_it(hops: int, chunks: int) -> None:
    for index in range(30):
        problem = make_problem(3, "eval", index, chunks=chunks, hops=hops)
        assert problem.context is not None
        facts = read_facts(problem.context)
        values: dict[tuple[str, str], set[str]] = {}
        for subject, relation, value in facts:
            values.setdefault((subject, relation), set()).add(value)
        assert all(len(v) == 1 for v in values.values()), "a person has one value per relation"
        assert answer_by_reading(problem.question, values) == problem.answers[0]
        for statement in problem.metadata["evidence"]:
            assert problem.context.count(statement) == 1


def test_evidence_is_uniform_over_the_document() -> None:
    chunks, count = 8, 1600
    seen = Counter(make_problem(0, "eval", i, chunks=chunks).metadata["evidence_chunks"][0] for i in range(count))
    expected = count / chunks
    chi_square = sum((seen[c] - expected) ** 2 / expected for c in range(chunks))
    assert chi_square < 24.3  # 7 degrees of freedom, p = 0.001


@pytest.mark.parametrize("distractor_facts", [0, 3])
def test_near_misses_share_the_subject_or_the_relation_and_are_as_many_as_said(distractor_facts: int) -> None:
    counts = []
    for index in range(200):
        problem = make_problem(0, "eval", index, chunks=4, distractor_facts=distractor_facts)
        (statement,) = problem.metadata["evidence"]
        ((subject, relation, _value),) = read_facts("- " + statement)
        assert problem.context is not None
        others = [f for f in read_facts(problem.context) if f[:2] != (subject, relation)]
        counts.append((sum(f[0] == subject for f in others), sum(f[1] == relation for f in others)))
    same_subject, same_relation = (sum(column) / len(counts) for column in zip(*counts, strict=True))
    # by chance: 19 sentences, 400 people, 15 relations
    assert distractor_facts * 0.5 <= same_subject + 0.3 <= distractor_facts * 0.5 + 0.7
    assert distractor_facts * 0.5 + 0.8 <= same_relation <= distractor_facts * 0.5 + 1.7


def test_the_same_key_gives_the_same_document_and_length_does_not_change_the_question() -> None:
    assert make_problem(1, "train", 7, chunks=5) == make_problem(1, "train", 7, chunks=5)
    short, long = make_problem(1, "train", 7, chunks=1), make_problem(1, "train", 7, chunks=300)
    assert (short.question, short.answers) == (long.question, long.answers)


def test_training_never_repeats_and_never_meets_the_held_out_problems() -> None:
    source = SyntheticSource(SyntheticConfig(), 0, "train")
    ids = [p.id for step in range(20) for r in (0, 1) for p in source.problems(step=step, count=8, round=r)]
    held_out = SyntheticSource(SyntheticConfig(), 0, "eval").problems(step=0, count=64)
    assert len(set(ids)) == len(ids)
    assert not {p.context for p in held_out} & {p.context for p in source.problems(step=0, count=64)}
    assert source.problems(step=3, count=8, size=9)[0].metadata["chunks"] == 9


def test_a_hundred_thousand_chunks_are_made_and_hold_their_evidence() -> None:
    problem = make_problem(0, "eval", 1, chunks=100_000, facts_per_chunk=1)
    assert problem.context is not None
    assert problem.context.count("\n") == 99_999
    assert problem.metadata["evidence"][0] in problem.context


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({}, 0, "synthetic documents of 0 chunks: use 1 to 100,000"),
        ({}, 10**9, "1,000,000,000 chunks"),
        ({"hops": 2, "facts_per_chunk": 1}, 1, "raise data.synthetic.facts_per_chunk"),
    ],
)
def test_a_size_that_no_document_has_is_refused(options: dict[str, Any], size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SyntheticSource(SyntheticConfig(**options), seed=0).problems(step=0, count=1, size=size)


def test_values_tell_their_relation() -> None:
    values = [value for relation in ATTRIBUTES for value in relation.values]
    assert len(values) == len(set(values))
    assert not set(values) & set(PEOPLE)
