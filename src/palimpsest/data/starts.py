"""Synthetic problems that begin in the middle: the memory that an agent has when it comes to these sections.

Every short document begins with an empty memory, of a long one only the first section does. What an agent has made up
before it met the evidence, or has kept for hundreds of sections, it meets in training only if episodes begin so
(`data.synthetic.starts`):

    invention   memory: the evidence with another value      document: as it was, the evidence in it
    evidence    memory: the evidence                         document: the evidence replaced by another fact
    other       memory: another fact, of the same person     document: as it was
                or of somebody else

In each case with probability .3 the memory says it twice, with probability .3 it holds another fact too, in either
order. Of a question of two hops one of the two pieces is meant.

Guaranteed: a pure function of problem, shares and generator; no other sentence of memory or document has subject and
relation of a piece of evidence; the answer is what it was, and memory and document together give it.
Not covered: memories of agents that don't write facts one after the other, as `overwrite` with short prompts does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from palimpsest.config.data import StartsConfig
from palimpsest.data.world import PEOPLE, RELATIONS, Fact, read_fact
from palimpsest.types import Problem

IN_MEMORY = -1
"""In `evidence_chunks`: where evidence stands that the memory has."""
SAME_PERSON = 0.5
TWICE = 0.3
TWO_FACTS = 0.3


def started(problem: Problem, shares: StartsConfig, rng: random.Random) -> Problem:
    """The problem, with a memory to begin with if `rng` says so."""
    drawn = rng.random()
    if drawn < shares.invention:
        return _with_memory(problem, _invention(_piece(problem, rng)[1], rng), rng)
    if drawn < shares.invention + shares.evidence:
        return _remembered(problem, rng)
    if drawn < shares.invention + shares.evidence + shares.other:
        return _with_memory(problem, _other(problem, rng), rng)
    return problem


def _piece(problem: Problem, rng: random.Random) -> tuple[int, Fact]:
    """One of the pieces of evidence: its place among them, what it says."""
    place = rng.randrange(len(problem.metadata["evidence"]))
    fact = read_fact(problem.metadata["evidence"][place])
    assert fact is not None
    return place, fact


def _invention(fact: Fact, rng: random.Random) -> str:
    relation = next(each for each in RELATIONS if each.name == fact.relation)
    value = rng.choice([value for value in relation.values if value not in (fact.value, fact.subject)])
    return rng.choice(relation.statements).format(s=fact.subject, v=value)


def _remembered(problem: Problem, rng: random.Random) -> Problem:
    """The problem whose memory has a piece of the evidence that its document had."""
    place, _ = _piece(problem, rng)
    assert problem.context is not None
    text = problem.metadata["evidence"][place]
    chunks = list(problem.metadata["evidence_chunks"])
    chunks[place] = IN_MEMORY
    without = replace(
        problem,
        context=problem.context.replace(text, _other(problem, rng)),
        metadata={**problem.metadata, "evidence_chunks": chunks},
    )
    return _with_memory(without, text, rng)


def _other(problem: Problem, rng: random.Random) -> str:
    """A fact that neither evidence nor document say anything of: of a person of the evidence, or of anybody."""
    _, piece = _piece(problem, rng)
    known = {fact[:2] for fact in _facts(problem)}
    while True:
        subject = piece.subject if rng.random() < SAME_PERSON else rng.choice(PEOPLE)
        relation = rng.choice(RELATIONS)
        value = rng.choice([value for value in relation.values if value != subject])
        if (subject, relation.name) not in known:
            return rng.choice(relation.statements).format(s=subject, v=value)


def _facts(problem: Problem) -> Iterator[Fact]:
    """Those of document and evidence."""
    lines = (line.removeprefix("- ") for line in (problem.context or "").splitlines())
    for text in (*problem.metadata["evidence"], *lines):
        for sentence in text.split(". "):
            if (fact := read_fact(sentence.removesuffix(".") + ".")) is not None:
                yield fact


def _with_memory(problem: Problem, first: str, rng: random.Random) -> Problem:
    drawn = rng.random()
    facts = [first]
    if drawn < TWICE:
        facts = [first, first]
    elif drawn < TWICE + TWO_FACTS:
        facts = [first, _other(problem, rng)]
        rng.shuffle(facts)
    return replace(problem, memory="".join(f" {fact}" for fact in facts))
