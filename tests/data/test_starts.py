"""Problems that begin with a memory: what memory and document say together, and that evaluation has none."""

from __future__ import annotations

from collections import Counter

import pytest

from palimpsest.config.data import StartsConfig, SyntheticConfig
from palimpsest.data.synthetic.documents import IN_MEMORY, SyntheticSource
from palimpsest.data.synthetic.world import read_fact
from palimpsest.types import Problem
from support.facts import answer_by_reading, read_facts


def drawn(starts: StartsConfig, *, hops: int = 1, count: int = 200, split: str = "train") -> list[Problem]:
    config = SyntheticConfig.model_validate({"hops": hops, "starts": starts, "distractor_facts": (0, 4)})
    return SyntheticSource(config, seed=5, split=split).problems(step=0, count=count)


@pytest.mark.parametrize("hops", [1, 2])
def test_memory_and_document_together_give_the_answer_and_nothing_contradicts_them(hops: int) -> None:
    for kind in ("evidence", "other"):
        for problem in drawn(StartsConfig.model_validate({kind: 1.0}), hops=hops):
            values: dict[tuple[str, str], set[str]] = {}
            for subject, relation, value in read_facts(f"{problem.context}\n-{problem.memory}"):
                values.setdefault((subject, relation), set()).add(value)
            assert all(len(each) == 1 for each in values.values()), problem
            assert answer_by_reading(problem.question, values) == problem.answers[0]


def test_evidence_in_the_memory_is_gone_from_the_document() -> None:
    for problem in drawn(StartsConfig(evidence=1.0)):
        (text,) = problem.metadata["evidence"]
        assert problem.context is not None
        assert f" {text}" in problem.memory
        assert text not in problem.context
        assert problem.metadata["evidence_chunks"] == [IN_MEMORY]
        assert [line.count(".") for line in problem.context.splitlines()] == [5] * 4


def test_shares_are_those_that_were_asked_for_and_the_others_begin_with_nothing() -> None:
    kinds = Counter[str]()
    for problem in drawn(StartsConfig(evidence=0.3, other=0.1), count=2000):
        fact, said = read_fact(problem.metadata["evidence"][0]), problem.memory
        assert fact is not None
        told = {(s, r): v for s, r, v in read_facts(f"-{said}")}
        value = told.get((fact.subject, fact.relation))
        kinds["none" if not said else "other" if value is None else str(value == fact.value)] += 1
    shares = {kind: round(count / 2000, 1) for kind, count in kinds.items()}
    assert {kind: shares.get(kind) for kind in ("False", "True")} == {"False": None, "True": 0.3}
    assert (shares["other"], shares["none"]) == (0.1, 0.6)


def test_the_same_step_draws_the_same_starts_and_evaluation_draws_none() -> None:
    starts = StartsConfig(other=0.5, evidence=0.5)
    assert drawn(starts) == drawn(starts)
    plain = SyntheticSource(SyntheticConfig(distractor_facts=(4,)), seed=5, split="eval").problems(step=0, count=50)
    assert drawn(starts, split="eval", count=50) == plain


def test_of_several_numbers_of_near_misses_a_training_document_draws_one() -> None:
    config = SyntheticConfig.model_validate({"distractor_facts": [0, 12], "chunks": 20})
    counts = Counter[bool]()
    for problem in SyntheticSource(config, seed=0).problems(step=0, count=200):
        fact = read_fact(problem.metadata["evidence"][0])
        assert fact is not None
        assert problem.context is not None
        same = sum(fact.subject == s or fact.relation == r for s, r, _ in read_facts(problem.context))
        counts[same > 14] += 1
    assert 60 < counts[True] < 140


@pytest.mark.parametrize("numbers", [[], [-1], [4, 1001], -1])
def test_numbers_of_near_misses_out_of_bounds_or_none_are_refused(numbers: int | list[int]) -> None:
    with pytest.raises(
        ValueError, match=r"data\.synthetic\.distractor_facts=\[.*\]: use numbers from 0 to 1000, e\.g\. 4"
    ):
        SyntheticConfig.model_validate({"distractor_facts": numbers})


def test_of_several_shares_of_rivals_a_training_document_draws_one_and_evaluation_has_the_last() -> None:
    config = SyntheticConfig.model_validate({"competing_facts": [1.0, 0.0], "distractor_facts": 0, "chunks": 20})

    def share(problem: Problem) -> float:
        evidence = read_fact(problem.metadata["evidence"][0])
        assert evidence is not None
        assert problem.context is not None
        facts = read_facts(problem.context)
        return sum(relation == evidence.relation for _, relation, _ in facts) / len(facts)

    trained = [share(problem) for problem in SyntheticSource(config, seed=0).problems(step=0, count=100)]
    assert 30 < sum(each == 1 for each in trained) < 70
    assert all(each == 1 or each < 0.3 for each in trained)
    held_out = SyntheticSource(config, seed=0, split="eval").problems(step=0, count=20)
    assert max(map(share, held_out)) < 0.3


@pytest.mark.parametrize("shares", [[], [-0.1], [0.5, 1.1], 2])
def test_shares_of_rivals_out_of_bounds_or_none_are_refused(shares: float | list[float]) -> None:
    with pytest.raises(
        ValueError, match=r"data\.synthetic\.competing_facts=\[.*\]: use shares from 0 to 1, e\.g\. 0\.25"
    ):
        SyntheticConfig.model_validate({"competing_facts": shares})


def test_shares_beyond_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.synthetic\.starts: .* with sum 1\.1: lower it to at most 1"):
        StartsConfig(other=0.6, evidence=0.5)
