"""Task families of synthetic documents: what a question asks, and the sentences that answer it.

    needle           one fact                                        its value
    two_hops         a fact about a person whom another fact names   its value
    updates          one fact, stated two or three times             the value of the last statement
    list             two or three values of one relation             all values, in any order
    count            one to four values of one relation              their number
    several          two or three questions, of different people     a value each
    contradiction    one fact, stated twice                          yes if both statements agree, otherwise no

The families after `two_hops` end their question with what is asked for (`ASKS`), so that a mixture is answerable.

Guaranteed: the values of one question differ; no sentence that is not evidence states a relation that the question asks
of the same person.
Not covered: time in the text: an update is later because it comes later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from palimpsest.config.data import Task
from palimpsest.data.synthetic.world import ATTRIBUTES, FILLER, PEOPLE, RELATIONS, TIES, Relation
from palimpsest.types import Question

FILLER_SHARE = 0.08


@dataclass(slots=True)
class World:
    """The facts of one document: values are drawn on demand and fixed afterwards."""

    rng: random.Random
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def value(self, subject: str, relation: Relation) -> str:
        key = (subject, relation.name)
        if key not in self.facts:
            value = self.rng.choice(relation.values)
            while value == subject:
                value = self.rng.choice(relation.values)
            self.facts[key] = value
        return self.facts[key]

    def sentence(self, subject: str, relation: Relation, rng: random.Random) -> str:
        return rng.choice(relation.statements).format(s=subject, v=self.value(subject, relation))

    def sentences(self, subject: str, relation: Relation) -> list[str]:
        """All statements of the fact."""
        return [statement.format(s=subject, v=self.value(subject, relation)) for statement in relation.statements]


@dataclass(frozen=True, slots=True)
class EvidenceChain:
    """The question of a document, its golds, and the sentences that answer it."""

    chain: tuple[tuple[str, Relation], ...]
    """(subject, relation) of the evidence, in reasoning order; no other sentence states these."""
    question: str
    answers: tuple[str, ...]
    statements: tuple[str, ...] = ()
    """Sentences to place; of `updates`, in the order of the document."""
    outdated: int = 0
    """Number of first statements that a later one replaces: not evidence."""
    every_gold: bool = False
    """All golds are needed, not any."""
    questions: tuple[Question, ...] = ()
    """Two or more, each about one statement; empty for one question."""


def draw_question(world: World, hops: int, rng: random.Random) -> EvidenceChain:
    """A random question with its chain of one or two facts, in reasoning order, without statements."""
    subject = rng.choice(PEOPLE)
    if hops == 1:
        relation = rng.choice(RELATIONS)
        return EvidenceChain(
            ((subject, relation),), relation.question.format(s=subject), (world.value(subject, relation),)
        )
    tie, attribute = rng.choice(TIES), rng.choice(ATTRIBUTES)
    bridge = world.value(subject, tie)
    assert tie.of is not None
    question = attribute.question.format(s=tie.of.format(s=subject))
    return EvidenceChain(((subject, tie), (bridge, attribute)), question, (world.value(bridge, attribute),))


# ---- Families ------------------------------------------------------------------------------------------------


HOPS = {"needle": 1, "two_hops": 2}
"""Families of one chain, and its length."""
ASKS = {
    "updates": "Use the last one.",
    "list": "Name all.",
    "count": "How many?",
    "contradiction": "Do all agree?",
}
"""End of a question of the other families, after that of one fact."""
EVERY_GOLD = frozenset({"list"})
"""Families whose answer is a list of all golds."""
NUMBERS = {"updates": (2, 3), "list": (2, 3), "count": (1, 2, 3, 4), "contradiction": (1, 2), "several": (2, 3)}
"""Different values that a question asks about; of `several`, its questions."""
MOST_STATEMENTS = HOPS | {task: max(numbers) for task, numbers in NUMBERS.items()}
"""Most sentences of a document that a family fixes."""


def draw_evidence(task: Task, world: World, rng: random.Random) -> EvidenceChain:
    """A random question of a family, with its statements.

    >>> drawn = draw_evidence("list", World(random.Random(0)), random.Random(3))
    >>> drawn.question, drawn.answers, drawn.statements
    ('What does Enzo sell? Name all.', ('jars', 'maps'), ('Enzo makes jars.', 'Enzo sells maps.'))
    """
    if task in HOPS:
        evidence = draw_question(world, HOPS[task], rng)
        return replace(evidence, statements=tuple(world.sentence(*fact, rng) for fact in evidence.chain))
    if task == "several":
        return _several(world, rng)
    subject, relation = rng.choice(PEOPLE), rng.choice(ATTRIBUTES)
    values = rng.sample(relation.values, rng.choice(NUMBERS[task]))
    verbs = rng.sample(relation.statements, 2) if task == "contradiction" else rng.choices(relation.statements, k=4)
    stated = (values * 2)[:2] if task == "contradiction" else values
    asked = ask(task, relation.question.format(s=subject), stated)
    return EvidenceChain(
        ((subject, relation),),
        asked.text,
        asked.answers,
        tuple(verb.format(s=subject, v=value) for verb, value in zip(verbs, stated, strict=False)),
        outdated=len(values) - 1 if task == "updates" else 0,
        every_gold=task in EVERY_GOLD,
    )


def ask(task: Task, question: str, stated: Sequence[str]) -> Question:
    """The question of a family about one relation, with its golds.

    >>> ask("count", "What does Enzo sell?", ["jars", "maps"])
    Question(text='What does Enzo sell? How many?', answers=('2',))
    """
    return Question(f"{question} {ASKS[task]}" if task in ASKS else question, golds_of(task, stated))


def golds_of(task: Task, stated: Sequence[str]) -> tuple[str, ...]:
    """Golds of a question about one relation, from its values in the order of their statements.

    >>> [golds_of(task, ["tea", "rum"]) for task in ("needle", "updates", "list", "count", "contradiction")]
    [('tea',), ('rum',), ('tea', 'rum'), ('2',), ('no',)]
    """
    if task == "list":
        return tuple(stated)
    one = {"updates": stated[-1], "count": str(len(stated)), "contradiction": ("no", "yes")[len(set(stated)) == 1]}
    return (one.get(task, stated[0]),)


def _several(world: World, rng: random.Random) -> EvidenceChain:
    people = rng.sample(PEOPLE, rng.choice(NUMBERS["several"]))
    chain = tuple((person, rng.choice(RELATIONS)) for person in people)
    questions = tuple(
        Question(relation.question.format(s=one), (world.value(one, relation),)) for one, relation in chain
    )
    return EvidenceChain(
        chain, "", (), statements=tuple(world.sentence(*fact, rng) for fact in chain), questions=questions
    )


# ---- Other sentences -----------------------------------------------------------------------------------------


def distractor(world: World, evidence: EvidenceChain, rng: random.Random) -> str:
    """A sentence that is not evidence: filler, or any other fact."""
    if rng.random() < FILLER_SHARE:
        return rng.choice(FILLER)
    return _other_fact(world, evidence, rng, lambda: (rng.choice(PEOPLE), rng.choice(RELATIONS)))


def near_miss(world: World, evidence: EvidenceChain, rng: random.Random) -> str:
    """A fact with the subject or the relation of a piece of evidence."""
    subject, relation = rng.choice(evidence.chain)
    if rng.random() < 0.5:
        return _other_fact(world, evidence, rng, lambda: (subject, rng.choice(RELATIONS)))
    return _other_fact(world, evidence, rng, lambda: (rng.choice(PEOPLE), relation))


def rival(world: World, evidence: EvidenceChain, rng: random.Random) -> str:
    """The last hop's relation, of another person."""
    _, relation = evidence.chain[-1]
    return _other_fact(world, evidence, rng, lambda: (rng.choice(PEOPLE), relation))


def _other_fact(
    world: World, evidence: EvidenceChain, rng: random.Random, draw: Callable[[], tuple[str, Relation]]
) -> str:
    evidence_keys = {(subject, relation.name) for subject, relation in evidence.chain}
    while True:
        subject, relation = draw()
        if (subject, relation.name) not in evidence_keys:
            return world.sentence(subject, relation, rng)
