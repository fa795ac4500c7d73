"""Synthetic documents: answerable, unambiguous, evidence where requested; problems that start with a memory."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.data import StartsConfig, SyntheticConfig, Task
from palimpsest.data.synthetic import documents
from palimpsest.data.synthetic.documents import IN_MEMORY, SyntheticSource, make_problem
from palimpsest.data.synthetic.families import ASKS
from palimpsest.data.synthetic.world import ATTRIBUTES, PEOPLE, RELATIONS, Fact, read_fact
from palimpsest.errors import DataError
from palimpsest.types import Problem
from support.facts import GOLDS, answer_by_reading, read_facts, values_of


def check_answerable(problem: Problem) -> None:
    """Document and memory give each person one value per relation, and with them the answer."""
    values: dict[tuple[str, str], set[str]] = {}
    for subject, relation, value in read_facts(f"{problem.context}\n-{problem.memory}"):
        values.setdefault((subject, relation), set()).add(value)
    assert all(len(item) == 1 for item in values.values()), problem
    assert answer_by_reading(problem.question, values) == problem.answers[0]


def evidence_of(problem: Problem) -> Fact:
    fact = read_fact(problem.metadata["evidence"][0])
    assert fact is not None
    return fact


@pytest.mark.parametrize(("task", "hops"), [("needle", 1), ("two_hops", 2)])
@pytest.mark.parametrize("chunks", [1, 4, 40])
def test_the_document_alone_gives_the_answer(task: Task, hops: int, chunks: int) -> None:
    for index in range(30):
        problem = make_problem(3, "eval", index, chunks=chunks, task=task)
        check_answerable(problem)
        assert [str(problem.context).count(text) for text in problem.metadata["evidence"]] == [1] * hops


def test_evidence_is_uniform_over_the_document() -> None:
    chunks, count = 8, 1600
    counted = Counter(make_problem(0, "eval", i, chunks=chunks).metadata["evidence_chunks"][0] for i in range(count))
    chi_square = sum((counted[c] - count / chunks) ** 2 / (count / chunks) for c in range(chunks))
    assert chi_square < 24.3  # 7 degrees of freedom, p = 0.001


@pytest.mark.parametrize("distractor_facts", [0, 3])
def test_near_misses_share_the_subject_or_the_relation_and_have_the_requested_number(distractor_facts: int) -> None:
    counts = []
    for index in range(200):
        problem = make_problem(0, "eval", index, chunks=4, distractor_facts=distractor_facts)
        ((subject, relation, _),) = read_facts("- " + problem.metadata["evidence"][0])
        rest = [f for f in read_facts(str(problem.context)) if f[:2] != (subject, relation)]
        counts.append((sum(f[0] == subject for f in rest), sum(f[1] == relation for f in rest)))
    same_subject, same_relation = (sum(column) / len(counts) for column in zip(*counts, strict=True))
    # by chance: 19 sentences, 400 people, 15 relations
    assert distractor_facts * 0.5 <= same_subject + 0.3 <= distractor_facts * 0.5 + 0.7
    assert distractor_facts * 0.5 + 0.8 <= same_relation <= distractor_facts * 0.5 + 1.7


def test_documents_are_reproducible_and_their_length_does_not_change_the_question() -> None:
    plain = make_problem(1, "train", 7, chunks=5, task="two_hops")
    assert make_problem(1, "train", 7, chunks=5, task="two_hops", order="any", min_distance=0, rivals=0.0) == plain
    short, long = make_problem(1, "train", 7, chunks=1), make_problem(1, "train", 7, chunks=300)
    assert (short.question, short.answers) == (long.question, long.answers)


def test_training_problems_are_distinct_and_none_is_held_out() -> None:
    source = SyntheticSource(SyntheticConfig(), 0, "train")
    ids = [p.id for step in range(20) for r in (0, 1) for p in source.problems(step=step, count=8, round=r)]
    held_out = SyntheticSource(SyntheticConfig(), 0, "eval").problems(step=0, count=64)
    assert len(set(ids)) == len(ids)
    assert not {p.context for p in held_out} & {p.context for p in source.problems(step=0, count=64)}
    assert source.problems(step=3, count=8, size=9)[0].metadata["chunks"] == 9


def test_a_document_may_have_a_hundred_thousand_chunks() -> None:
    problem = make_problem(0, "eval", 1, chunks=100_000, facts_per_chunk=1)
    assert str(problem.context).count("\n") == 99_999
    assert problem.metadata["evidence"][0] in str(problem.context)


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({}, 0, "synthetic documents of 0 chunks: use 1 to 100,000"),
        ({}, 10**9, "1,000,000,000 chunks"),
        ({"task": "two_hops", "facts_per_chunk": 1}, 1, "raise data.synthetic.facts_per_chunk"),
    ],
)
def test_impossible_sizes_are_rejected(options: dict[str, Any], size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SyntheticSource(SyntheticConfig(**options), seed=0).problems(step=0, count=1, size=size)


# ---- families ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", GOLDS)
@pytest.mark.parametrize("where", [{}, {"order": "reverse", "min_distance": 3}])
@pytest.mark.parametrize("chunks", [1, 20])
def test_a_reader_of_the_whole_document_finds_the_golds_of_a_family(task: Any, where: Any, chunks: int) -> None:
    counted, golds = Counter[int](), Counter[str]()
    for index in range(60):
        problem = make_problem(3, "eval", index, chunks=chunks, task=task, distractor_facts=8, **where)
        asked = problem.question.removesuffix(f" {ASKS[task]}")
        stated = values_of(str(problem.context), asked)
        found = GOLDS[task](stated)
        assert (sorted(problem.answers) if task == "list" else list(problem.answers)) == found
        assert problem.metadata["evidence"][-1].split()[-1].removesuffix(".") in stated
        assert ("every_gold" in problem.grading) == (task == "list")
        assert make_problem(3, "eval", index, chunks=7, task=task).question == problem.question
        counted[len(stated)] += 1
        golds[found[0]] += 1
    assert set(counted) == {"updates": {2, 3}, "list": {2, 3}, "count": {1, 2, 3, 4}, "contradiction": {2}}[task]
    assert task != "contradiction" or 18 < golds["yes"] < 42


def test_several_questions_are_about_different_people_and_in_the_order_of_their_evidence() -> None:
    for index in range(40):
        options: dict[str, Any] = {"chunks": 30, "task": "several", "order": "forward", "min_distance": 4}
        problem = make_problem(3, "eval", index, **options)
        assert 2 <= len(problem.questions) <= 3
        assert [values_of(str(problem.context), one.text) for one in problem.questions] == [
            list(q.answers) for q in problem.questions
        ]
        chunks = problem.metadata["evidence_chunks"]
        assert all(b - a >= 4 for a, b in itertools.pairwise(chunks))


def test_training_draws_its_families_and_evaluation_asks_of_each_of_its_own_in_turn() -> None:
    config = SyntheticConfig.model_validate({"task": ["needle", "two_hops"], "val_task": ["two_hops", "list"]})
    drawn = Counter(one.metadata["task"] for one in SyntheticSource(config, 0).problems(step=0, count=200))
    assert 70 < drawn["needle"] < 130
    assert drawn.total() == drawn["needle"] + drawn["two_hops"]
    evaluated = SyntheticSource(config, 0, "eval").problems(step=0, count=20)
    assert [one.metadata["task"] for one in evaluated] == ["two_hops", "list"] * 10
    alone = SyntheticSource(SyntheticConfig(task=("list",)), 0, "eval").problems(step=0, count=20)
    assert evaluated[1::2] == alone[1::2]


def test_an_update_is_never_moved_into_a_memory() -> None:
    assert {problem.memory for problem in drawn(StartsConfig(evidence=1.0), task="updates")} == {""}


# ---- order and distance of the evidence ----------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(0, 50), st.integers(2, 40), st.integers(0, 20), st.sampled_from(["forward", "reverse"]))
def test_evidence_is_in_order_and_at_its_distance(index: int, chunks: int, distance: int, order: Any) -> None:
    options: dict[str, Any] = {"facts_per_chunk": 2, "task": "two_hops", "order": order, "min_distance": distance}
    problem = make_problem(0, "train", index, chunks=chunks, **options)
    text = str(problem.context)
    lines = text.split("\n")
    assert len(lines) == chunks
    places = [next(i for i, line in enumerate(lines) if text in line) for text in problem.metadata["evidence"]]
    assert places == problem.metadata["evidence_chunks"]
    step = places[1] - places[0] if order == "forward" else places[0] - places[1]
    assert step >= min(distance, chunks - 1)
    first, second = (text.find(piece) for piece in problem.metadata["evidence"])
    assert distance > 0 or (first < second) == (order == "forward")


def test_places_are_uniform_over_those_that_order_and_distance_admit() -> None:
    options: dict[str, Any] = {"facts_per_chunk": 2, "task": "two_hops", "order": "reverse", "min_distance": 2}
    problems = (make_problem(0, "t", i, chunks=4, **options) for i in range(1200))
    counts = Counter(tuple(problem.metadata["evidence_chunks"]) for problem in problems)
    assert set(counts) == {(2, 0), (3, 0), (3, 1)}
    assert all(abs(count - 400) < 80 for count in counts.values())


def test_rivals_state_the_relation_of_the_last_hop_for_other_people() -> None:
    options: dict[str, Any] = {"facts_per_chunk": 2, "task": "two_hops", "distractor_facts": 0, "rivals": 1.0}
    problem = make_problem(0, "t", 3, chunks=20, order="reverse", min_distance=1, **options)
    bridge, last = problem.metadata["evidence"]
    (relation,) = [r for r in ATTRIBUTES if any(f" {s.split()[1]} " in last for s in r.statements)]
    sentences = re.findall(r"[A-Z]\w+ \w+ \w+\.", str(problem.context))
    rest = [sentence for sentence in sentences if sentence not in (bridge, last)]
    assert len(rest) == 38
    assert {sentence.split()[1] for sentence in rest} <= {said.split()[1] for said in relation.statements}
    assert last.split()[0] not in {sentence.split()[0] for sentence in rest}


# ---- problems that start with a memory -----------------------------------------------------------------------


def drawn(starts: StartsConfig, *, task: Task = "needle", count: int = 200, split: str = "train") -> list[Problem]:
    config = SyntheticConfig.model_validate({"task": task, "starts": starts, "distractor_facts": (0, 4)})
    return SyntheticSource(config, seed=5, split=split).problems(step=0, count=count)


@pytest.mark.parametrize("task", ["needle", "two_hops"])
@pytest.mark.parametrize("kind", ["evidence", "other"])
def test_memory_and_document_together_give_the_answer(task: Task, kind: str) -> None:
    for problem in drawn(StartsConfig.model_validate({kind: 1.0}), task=task):
        check_answerable(problem)


def test_evidence_in_the_memory_is_removed_from_the_document() -> None:
    for problem in drawn(StartsConfig(evidence=1.0)):
        (text,) = problem.metadata["evidence"]
        assert f" {text}" in problem.memory
        assert text not in str(problem.context)
        assert problem.metadata["evidence_chunks"] == [IN_MEMORY]
        assert [line.count(".") for line in str(problem.context).splitlines()] == [5] * 4


def test_starts_have_the_configured_shares() -> None:
    kinds = Counter[str]()
    for problem in drawn(StartsConfig(evidence=0.3, other=0.1), count=2000):
        fact, memory = evidence_of(problem), problem.memory
        value = {(s, r): v for s, r, v in read_facts(f"-{memory}")}.get((fact.subject, fact.relation))
        kinds["none" if not memory else "other" if value is None else str(value == fact.value)] += 1
    assert {kind: round(count / 2000, 1) for kind, count in kinds.items()} == {"True": 0.3, "other": 0.1, "none": 0.6}


def test_starts_of_a_step_are_reproducible_and_evaluation_has_none() -> None:
    starts = StartsConfig(other=0.5, evidence=0.5)
    assert drawn(starts) == drawn(starts)
    plain = SyntheticSource(SyntheticConfig(distractor_facts=(4,)), seed=5, split="eval").problems(step=0, count=50)
    assert drawn(starts, split="eval", count=50) == plain


def test_a_training_document_draws_one_of_several_numbers_of_near_misses() -> None:
    config = SyntheticConfig.model_validate({"distractor_facts": [0, 12], "chunks": 20})
    many = 0
    for problem in SyntheticSource(config, seed=0).problems(step=0, count=200):
        fact = evidence_of(problem)
        facts = read_facts(str(problem.context))
        many += sum(fact.subject == s or fact.relation == r for s, r, _ in facts) > 14
    assert 60 < many < 140


def test_a_training_document_draws_one_of_several_shares_of_rivals_and_evaluation_has_the_last() -> None:
    config = SyntheticConfig.model_validate({"competing_facts": [1.0, 0.0], "distractor_facts": 0, "chunks": 20})

    def share(problem: Problem) -> float:
        facts = read_facts(str(problem.context))
        return sum(relation == evidence_of(problem).relation for _, relation, _ in facts) / len(facts)

    trained = [share(problem) for problem in SyntheticSource(config, seed=0).problems(step=0, count=100)]
    assert 30 < sum(item == 1 for item in trained) < 70
    assert all(item == 1 or item < 0.3 for item in trained)
    held_out = SyntheticSource(config, seed=0, split="eval").problems(step=0, count=20)
    assert max(map(share, held_out)) < 0.3


@pytest.mark.parametrize(
    ("key", "values", "fix"),
    [
        *(("distractor_facts", values, "numbers from 0 to 1000, e.g. 4") for values in ([], [-1], [4, 1001], -1)),
        *(("competing_facts", values, "shares from 0 to 1, e.g. 0.25") for values in ([], [-0.1], [0.5, 1.1], 2)),
    ],
)
def test_numbers_and_shares_out_of_bounds_are_rejected(key: str, values: Any, fix: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.synthetic\.{key}=\[.*\]: use {re.escape(fix)}"):
        SyntheticConfig.model_validate({key: values})


def test_shares_of_starts_above_one_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"data\.synthetic\.starts: .* with sum 1\.1: lower it to at most 1"):
        StartsConfig(other=0.6, evidence=0.5)


def test_starts_need_a_fact_that_the_document_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_facts", lambda _: ((p, r.name, "") for p in PEOPLE for r in RELATIONS))
    with pytest.raises(DataError, match=r"data\.synthetic\.chunks"):
        drawn(StartsConfig(other=1.0), count=1)
