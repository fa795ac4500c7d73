"""Synthetic search problems, checked by patterns of passages and questions written out here."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from palimpsest.config.data import DataConfig, SearchDataConfig
from palimpsest.config.schema import RunConfig
from palimpsest.data.record import objective_count
from palimpsest.data.sources.file_source import build_source
from palimpsest.data.synthetic.search_problems import SearchPlan, SyntheticSearchSource, make_search_problem, plan
from palimpsest.data.synthetic.world import PEOPLE
from palimpsest.errors import DataError
from palimpsest.retrieval.search import Bm25Index
from palimpsest.types import Problem

# verbs of a statement -> the question for the word after them
QUESTIONS = {
    r"visited|toured": r"Which city did (.+) visit\?",
    r"studied|learned": r"Which science did (.+) study\?",
    r"owns|keeps": r"Which animals does (.+) own\?",
    r"drinks|orders": r"What does (.+) drink\?",
    r"wears|picks": r"Which colour does (.+) wear\?",
    r"plays|practises": r"Which instrument does (.+) play\?",
    r"speaks|knows": r"Which language does (.+) speak\?",
    r"enjoys|prefers": r"Which sport does (.+) enjoy\?",
    r"eats|cooks": r"What does (.+) eat\?",
    r"sells|makes": r"What does (.+) sell\?",
    r"married": r"Whom did (.+) marry\?",
    r"trusts": r"Whom does (.+) trust\?",
    r"admires": r"Whom does (.+) admire\?",
    r"follows": r"Whom does (.+) follow\?",
    r"teaches": r"Whom does (.+) teach\?",
}


def answer_by_reading(question: str, texts: list[str]) -> set[str]:
    """Every answer that the texts give to a question."""
    ((verbs, subject),) = [(v, m[1]) for v, q in QUESTIONS.items() if (m := re.fullmatch(q, question))]
    return set(re.findall(rf"\b{subject} (?:{verbs}) (\w+)\.", " ".join(texts)))


def questions(problem: Problem) -> list[tuple[str, list[str]]]:
    listed = problem.metadata.get("objectives")
    if listed is None:
        return [(problem.question, list(problem.answers))]
    return [(one["question"], one["answers"]) for one in listed]


CASES = [
    make_search_problem(7, "train", index, objectives=n, people=people, facts_per_passage=facts)
    for index in range(25)
    for n, people, facts in [(1, 24, 3), (4, 8, 1), (2, 24, 3), (4, 8, 5), (8, 40, 15)]
]


def test_the_corpus_gives_every_question_exactly_its_gold() -> None:
    for problem in CASES[::5] + CASES[1::5] + CASES[4::25]:
        texts = [passage["text"] for passage in problem.metadata["passages"]]
        for question, golds in questions(problem):
            assert answer_by_reading(question, texts) == set(golds), problem.id


def test_the_facts_of_a_plan_answer_the_questions() -> None:
    for problem in CASES:
        wanted = plan(problem)
        answers = {}
        for number, (question, golds) in enumerate(questions(problem), 1):
            (fact,) = [step.fact for step in wanted.steps if step.objective == f"Q{number}"]
            (answers[f"Q{number}"],) = answer_by_reading(question, [fact])
            assert {answers[f"Q{number}"]} == set(golds)
        assert (wanted.answer if len(answers) == 1 else json.loads(wanted.answer)) == (
            answers if len(answers) > 1 else answers["Q1"]
        )


def test_each_search_of_a_plan_names_its_passage_and_a_person_of_its_question() -> None:
    for problem in CASES:
        passages = {passage["id"]: passage for passage in problem.metadata["passages"]}
        people = set(re.findall(r"\w+", problem.question)) & set(PEOPLE)
        for step in plan(problem).steps:
            assert passages[step.passage]["title"] == step.query
            assert step.fact in passages[step.passage]["text"]
            assert step.query in people


def test_objectives_are_about_different_people_and_every_person_has_a_passage() -> None:
    for problem in CASES:
        queries = [step.query for step in plan(problem).steps]
        assert len(set(queries)) == len(queries) == objective_count(problem)
        titles = [passage["title"] for passage in problem.metadata["passages"]]
        assert len(set(titles)) == len(titles)
        words = {word for p in problem.metadata["passages"] for word in re.findall(r"\w+", p["text"])}
        assert words & set(PEOPLE) <= set(titles)


@pytest.mark.parametrize("problem", CASES[1::25] + CASES[4::50], ids=lambda p: p.id)
def test_a_search_for_a_planned_name_finds_its_passage_first(problem: Problem, tmp_path: Path) -> None:
    index = Bm25Index.build([dict(passage) for passage in problem.metadata["passages"]], tmp_path / "index")
    for step in plan(problem).steps:
        ((hit,),) = index.search([step.query], topk=1)
        assert hit.document["id"] == step.passage


def test_several_objectives_have_the_published_layout_of_question_and_ground_truth() -> None:
    problem = make_search_problem(0, "train", 3, objectives=3)
    listed = problem.metadata["objectives"]
    assert problem.context is None
    assert [one["name"] for one in listed] == ["Q1", "Q2", "Q3"]
    assert problem.question.split("\n") == [f"{one['name']}: {one['question']}" for one in listed]
    assert json.loads(problem.answers[0]) == {one["name"]: one["answers"][0] for one in listed}
    single = make_search_problem(0, "train", 3)
    assert "\n" not in single.question
    assert not single.question.startswith("Q1")
    assert "objectives" not in single.metadata


def test_the_most_frequent_value_is_seldom_the_answer() -> None:
    def guess(problem: Problem) -> str:
        (verbs,) = [v for v, question in QUESTIONS.items() if re.fullmatch(question, problem.question)]
        text = " ".join(passage["text"] for passage in problem.metadata["passages"])
        return str(Counter(re.findall(rf"(?:{verbs}) (\w+)\.", text)).most_common(1)[0][0])

    problems = [make_search_problem(1, "eval", index) for index in range(200)]
    assert sum(guess(problem) == problem.answers[0] for problem in problems) < 80


def test_problems_depend_on_seed_split_step_and_round_alone() -> None:
    source = SyntheticSearchSource(SearchDataConfig(), seed=3)
    later = source.problems(step=5, count=4)
    assert SyntheticSearchSource(SearchDataConfig(), seed=3).problems(step=5, count=2) == later[:2]
    ids = {p.id for s in range(6) for r in range(3) for p in source.problems(step=s, count=4, round=r)}
    assert len(ids) == 6 * 3 * 4
    assert SyntheticSearchSource(SearchDataConfig(), seed=4).problems(step=5, count=4) != later


def test_evaluation_problems_are_none_of_training() -> None:
    def corpora(split: str, steps: int, count: int) -> set[str]:
        source = SyntheticSearchSource(SearchDataConfig(), seed=3, split=split)
        problems = (p for step in range(steps) for p in source.problems(step=step, count=count))
        return {json.dumps(list(p.metadata["passages"])) for p in problems}

    assert not corpora("train", 20, 8) & corpora("eval", 1, 64)


def test_the_number_of_objectives_is_drawn_unless_a_curriculum_sets_it() -> None:
    source = build_source(DataConfig(train_files="synthetic_search"), split="train")
    drawn = Counter(objective_count(problem) for step in range(20) for problem in source.problems(step=step, count=10))
    assert set(drawn) == {1, 2, 4}
    assert min(drawn.values()) > 40
    assert {objective_count(problem) for problem in source.problems(step=0, count=10, size=8)} == {8}


def test_a_plan_survives_a_record_where_tuples_become_lists() -> None:
    problem = make_search_problem(0, "train", 1, objectives=2)
    read = Problem(problem.id, problem.question, problem.answers, None, json.loads(json.dumps(problem.metadata)))
    assert plan(read) == plan(problem)
    assert isinstance(plan(read), SearchPlan)
    with pytest.raises(DataError, match="only problems of data"):
        plan(Problem("x", "Who?", ("Bob",)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"train_files": "synthetic_search", "search": {"objectives": 8, "people": 6}}, "raise it to 8"),
        ({"train_files": "synthetic_search", "search": {"objectives": []}}, "at least 1"),
        ({"train_files": "synthetic", "search": {}}, "data.train_files=synthetic_search"),
        ({"train_files": "synthetic_search", "documents": 3}, "unset them"),
        ({"train_files": "synthetic_search", "curriculum": {"chunks": [1]}}, "data.curriculum=null"),
        ({"train_files": "questions.json", "curriculum": {"chunks": [1]}}, "data.curriculum=null"),
        ({"curriculum": {"chunks": [0]}}, "numbers from 1"),
    ],
)
def test_invalid_sizes_are_rejected_with_the_fix(data: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RunConfig.model_validate({"data": data})


@pytest.mark.parametrize(("people", "objectives", "needed"), [(1, 1, 2), (0, 1, 2), (3, 4, 4)])
def test_a_corpus_of_too_few_people_is_rejected(people: int, objectives: int, needed: int) -> None:
    with pytest.raises(DataError, match=f"people={people}: .* need at least {needed}"):
        make_search_problem(0, "train", 0, people=people, objectives=objectives)
