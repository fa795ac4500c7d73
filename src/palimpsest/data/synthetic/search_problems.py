"""Synthetic search problems: questions about people, with a small corpus of passages per problem.

Every problem has its own world. Its corpus has one passage per person, titled by name, with a few facts of different
relations; a question needs one of them:

    passage   Alice       Alice owns cats. Alice trusts Bob. Alice studied law.
    passage   Bob         Bob drinks tea. Bob visited Rome. Bob speaks Greek.
    question  Which animals does Alice own?               search Alice

`metadata` contains `passages` (the corpus), `steps` (the searches, in order) and `evidence` (the sentence that each
finds). `plan` returns the steps for a scripted agent.

Guaranteed: a pure function of (seed, split, index, sizes); training and evaluation use different keys; objectives of a
problem are about different people; every named person has a passage with a unique title; each question has one answer
in its corpus.
Not covered: consistency between problems, so facts can't be memorised; equal questions of both splits, in different
worlds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.config.data import SearchDataConfig
from palimpsest.data.record import search_problem
from palimpsest.data.synthetic.families import World
from palimpsest.data.synthetic.world import PEOPLE, RELATIONS, TIES, Relation
from palimpsest.errors import DataError
from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.types import Problem, Question

SOURCE = "synthetic_search"


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One search of a plan."""

    objective: str
    """Q1, Q2...; Q1 if the problem has one question."""
    query: str
    """A name."""
    passage: str
    """Id of the needed passage."""
    fact: str
    """The needed sentence of the passage."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Searches and answer of a problem."""

    steps: tuple[SearchStep, ...]
    """In the order of the objectives."""
    answer: str
    """Text after the answer marker: the answer, or a JSON object of several."""


def plan(problem: Problem) -> SearchPlan:
    """The searches and the answer of a problem of this source. Raises DataError for other problems.

    >>> problem = make_search_problem(0, "train", 0, objectives=2, people=8)
    >>> [(step.objective, step.fact in problem.metadata["evidence"]) for step in plan(problem).steps]
    [('Q1', True), ('Q2', True)]
    """
    steps = problem.metadata.get("steps")
    if steps is None:
        raise DataError(
            f"problem {problem.id}: no steps in its metadata; only problems of data.train_files={SOURCE} have a plan"
        )
    return SearchPlan(tuple(SearchStep(**step) for step in steps), problem.answers[0])


def make_search_problem(
    seed: int,
    split: str,
    index: int,
    *,
    objectives: int = 1,
    people: int = 24,
    facts_per_passage: int = 3,
) -> Problem:
    """Problem `index` of a split. `people` must be at least `objectives` and 2; DataError otherwise.

    >>> problem = make_search_problem(0, "train", 0, people=8)
    >>> len(problem.metadata["passages"]), problem.context
    (8, None)
    """
    if people < (needed := max(2, objectives)):
        raise DataError(f"people={people}: {objectives} objectives need at least {needed}")
    rng = keyed_random(seed, SOURCE, split, index, objectives, people, facts_per_passage, 1)
    names = rng.sample(PEOPLE, people)
    world = World(random.Random(rng.random()))
    _tie_together(world, names, rng)
    wanted = {name: rng.choice(RELATIONS) for name in names[:objectives]}
    passages, sentences = _corpus(world, rng.sample(names, people), wanted, facts_per_passage, rng)
    places = {passage["title"]: passage["id"] for passage in passages}
    steps = [
        {"objective": f"Q{number}", "query": subject, "passage": places[subject], "fact": sentences[subject]}
        for number, subject in enumerate(wanted, 1)
    ]
    questions = [
        Question(relation.question.format(s=subject), (world.value(subject, relation),))
        for subject, relation in wanted.items()
    ]
    metadata = {
        "passages": passages,
        "steps": tuple(steps),
        "evidence": tuple(step["fact"] for step in steps),
    }
    return search_problem(f"search-{split}-{seed}-{objectives}x1hop-{index}", questions, metadata)


def _tie_together(world: World, names: Sequence[str], rng: random.Random) -> None:
    """Draw ties only between people of this corpus, so that every name has a passage."""
    for name in names:
        for tie in TIES:
            other = rng.choice(names)
            while other == name:
                other = rng.choice(names)
            world.facts[name, tie.name] = other


def _corpus(
    world: World, names: Sequence[str], wanted: Mapping[str, Relation], facts: int, rng: random.Random
) -> tuple[tuple[dict[str, str], ...], dict[str, str]]:
    passages, sentences = [], {}
    for number, name in enumerate(names):
        required = [wanted[name]] if name in wanted else []
        rest = [relation for relation in RELATIONS if relation not in required]
        relations = required + rng.sample(rest, min(facts, len(RELATIONS)) - len(required))
        statements = {relation.name: world.sentence(name, relation, rng) for relation in relations}
        if required:
            sentences[name] = statements[required[0].name]
        texts = list(statements.values())
        rng.shuffle(texts)
        passages.append({"id": str(number), "title": name, "text": " ".join(texts)})
    return tuple(passages), sentences


@dataclass(frozen=True, slots=True)
class SyntheticSearchSource:
    """Endless search problems: every step of a run gets new ones."""

    config: SearchDataConfig
    seed: int
    split: str = "train"

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems for (step, round); `size` objectives each instead of a random number."""
        start = derive_seed(self.seed, SOURCE, self.split, step, round) if self.split == "train" else step * count
        return [self._problem(start + i, size) for i in range(count)]

    def _problem(self, index: int, size: int | None) -> Problem:
        drawn = keyed_random(self.seed, SOURCE, "objectives", self.split, index).choice(self.config.objectives)
        options: dict[str, Any] = self.config.model_dump(exclude={"objectives"})
        return make_search_problem(self.seed, self.split, index, objectives=size or drawn, **options)
