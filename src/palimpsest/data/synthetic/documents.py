"""Synthetic long documents of templated English facts, read from the beginning or from the middle.

A document is `chunks` paragraphs, one per line, of `facts_per_chunk` sentences each. `task` says what its question
needs (families.py): one fact about one person ("What does Alice drink?"), a fact about a person whom another one names
("What does the one Alice trusts drink?"), or several. Around the evidence are distractors and a fixed number of near
misses: other facts about the same person, or the same relation of other people. Long documents contain more of both by
chance. A share of the distractors may be rivals, which state the last hop's relation of other people, so that only the
rest of the chain identifies the evidence. Evidence is in any, reasoning or reverse order, at a minimum distance in
paragraphs.

Episodes may also start in the middle, with a memory (`data.synthetic.starts`). Without this, training shows no memory
that contains its evidence for hundreds of sections:

    evidence    memory: the evidence                         document: the evidence replaced by another fact
    other       memory: another fact, of the same person     document: unchanged
                or of another person

The memory may repeat its fact (`TWICE`) or contain another one (`TWO_FACTS`). The memory has only one of several
pieces of evidence. Problems of `updates` start at the beginning, as the order of their statements decides.

Guaranteed: a pure function of (seed, split, index, length) and, with `starts`, of its shares; each piece of evidence
is in the document exactly once, at a uniformly drawn paragraph and sentence (within order and distance), unless a start
moves it into the memory; no other sentence of the document states the same relation of the same person, and a
person has one value per relation; a start never changes the answer, which memory and document together determine.
Not covered: consistency between documents: a fact of one may be false in another; memories of agents that don't list
facts, as `overwrite` with short prompts does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from palimpsest.config.data import LONGEST, StartsConfig, SyntheticConfig, Task
from palimpsest.data.assemble import Order, ordered, spaced
from palimpsest.data.synthetic.families import HOPS, MOST_STATEMENTS, World, distractor, draw_evidence, near_miss, rival
from palimpsest.data.synthetic.world import PEOPLE, RELATIONS, Fact, read_fact
from palimpsest.errors import DataError
from palimpsest.seeding import derive_seed, keyed_random
from palimpsest.types import Problem

# ---- Problems that start in the middle -----------------------------------------------------------------------


IN_MEMORY = -1
"""Position in `evidence_chunks` of evidence in the memory."""
SAME_PERSON = 0.5
TWICE = 0.3
TWO_FACTS = 0.3


def started(problem: Problem, shares: StartsConfig, rng: random.Random) -> Problem:
    """The problem, with an initial memory in random shares."""
    drawn = rng.random()
    if drawn < shares.evidence:
        return _remembered(problem, rng)
    if drawn < shares.evidence + shares.other:
        return _with_memory(problem, _other(problem, rng), rng)
    return problem


def _piece(problem: Problem, rng: random.Random) -> tuple[int, Fact]:
    index = rng.randrange(len(problem.metadata["evidence"]))
    fact = read_fact(problem.metadata["evidence"][index])
    assert fact is not None
    return index, fact


def _remembered(problem: Problem, rng: random.Random) -> Problem:
    index, _ = _piece(problem, rng)
    assert problem.context is not None
    text = problem.metadata["evidence"][index]
    chunks = list(problem.metadata["evidence_chunks"])
    chunks[index] = IN_MEMORY
    without = replace(
        problem,
        context=problem.context.replace(text, _other(problem, rng)),
        metadata={**problem.metadata, "evidence_chunks": chunks},
    )
    return _with_memory(without, text, rng)


def _other(problem: Problem, rng: random.Random) -> str:
    _, piece = _piece(problem, rng)
    facts = {fact[:2] for fact in _facts(problem)}
    if len(facts) == len(PEOPLE) * len(RELATIONS):
        raise DataError(f"problem {problem.id} states every fact: lower data.synthetic.chunks, or set starts to null")
    while True:
        subject = piece.subject if rng.random() < SAME_PERSON else rng.choice(PEOPLE)
        relation = rng.choice(RELATIONS)
        value = rng.choice([value for value in relation.values if value != subject])
        if (subject, relation.name) not in facts:
            return rng.choice(relation.statements).format(s=subject, v=value)


def _facts(problem: Problem) -> Iterator[Fact]:
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


# ---- Documents of facts --------------------------------------------------------------------------------------


NEAR_MISSES = 4
"""Default number of near misses in a document."""


def make_problem(
    seed: int,
    split: str,
    index: int,
    *,
    chunks: int,
    facts_per_chunk: int = 5,
    task: Task = "needle",
    distractor_facts: int = NEAR_MISSES,
    rivals: float = 0.0,
    order: Order = "any",
    min_distance: int = 0,
) -> Problem:
    """Problem `index` of a split; its question does not depend on the document's length.

    >>> problem = make_problem(0, "train", 0, chunks=3)
    >>> len(problem.context.split("\\n")), problem.metadata["evidence"][0] in problem.context
    (3, True)
    """
    drawn_by = HOPS.get(task, task)
    rng = keyed_random(seed, "question", split, index, drawn_by)
    world = World(random.Random(rng.random()))
    evidence = draw_evidence(task, world, rng)
    rng = keyed_random(seed, "document", split, index, drawn_by, chunks, facts_per_chunk)
    fixed, total = len(evidence.statements), chunks * facts_per_chunk
    distance = min(min_distance, (chunks - 1) // max(1, fixed - 1))
    if order == "any" and distance == 0:
        places = rng.sample(range(total), min(total, fixed + distractor_facts))
    else:
        places = _ordered_places(rng, fixed, chunks, facts_per_chunk, order, distance)
        free = [slot for slot in range(total) if slot not in places]
        places += rng.sample(free, min(len(free), distractor_facts))
    if evidence.outdated:
        places[:fixed] = sorted(places[:fixed])
    chosen = [*evidence.statements, *(near_miss(world, evidence, rng) for _ in places[fixed:])]
    at = dict(zip(places, chosen, strict=True))
    sentences = [
        at.get(i) or (rival if rivals and rng.random() < rivals else distractor)(world, evidence, rng)
        for i in range(total)
    ]
    lines = ["- " + " ".join(sentences[i : i + facts_per_chunk]) for i in range(0, len(sentences), facts_per_chunk)]
    metadata = {
        "task": task,
        "chunks": chunks,
        "evidence": list(evidence.statements[evidence.outdated :]),
        "evidence_chunks": [slot // facts_per_chunk for slot in places[evidence.outdated : fixed]],
        **({"every_gold": True} if evidence.every_gold else {}),
    }
    name = f"synthetic-{split}-{seed}-{f'{HOPS[task]}hop' if task in HOPS else task}-{index}"
    if evidence.questions:
        return Problem.asking(name, evidence.questions, "\n".join(lines), metadata)
    return Problem(name, evidence.question, evidence.answers, "\n".join(lines), metadata)


def _ordered_places(
    rng: random.Random, count: int, chunks: int, facts_per_chunk: int, order: Order, distance: int
) -> list[int]:
    if distance == 0:
        return ordered(rng, sorted(rng.sample(range(chunks * facts_per_chunk), count)), order)
    slots = ordered(rng, spaced(rng, count, chunks, distance), order)
    return [slot * facts_per_chunk + rng.randrange(facts_per_chunk) for slot in slots]


def draw_task(config: SyntheticConfig, *key: int | str) -> Task:
    """The family of one training document, from a separate generator."""
    return keyed_random("hops", *key).choice(config.task)  # the draws of runs with one or two hops


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """Endless problems: every step of a run gets new ones."""

    config: SyntheticConfig
    seed: int
    split: str = "train"

    def problems(self, *, step: int, count: int, round: int = 0, size: int | None = None) -> list[Problem]:
        """`count` problems for (step, round); `size` chunks instead of the configured document length.

        Raises DataError for a size out of range, or too small for the evidence.
        """
        size = self.config.chunks if size is None else size
        if not 1 <= size <= LONGEST:
            raise DataError(f"synthetic documents of {size:,} chunks: use 1 to {LONGEST:,}")
        needed, task = max((MOST_STATEMENTS[task], task) for task in self.tasks)
        if size * self.config.facts_per_chunk < needed:
            raise DataError(
                f"synthetic documents of {size * self.config.facts_per_chunk} sentences are too short for "
                f"data.synthetic.task={task}, which fixes up to {needed}: raise data.synthetic.facts_per_chunk or the "
                "chunks"
            )
        start = derive_seed(self.seed, "synthetic", self.split, step, round) if self.split == "train" else step * count
        return [self._problem(start + i, size) for i in range(count)]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Families of the split."""
        return self.config.task if self.split == "train" else self.config.evaluated

    def _problem(self, index: int, chunks: int) -> Problem:
        config = self.config
        training = self.split == "train"
        rng = keyed_random(self.seed, "variety", self.split, index)
        task = draw_task(config, self.seed, self.split, index) if training else self.tasks[index % len(self.tasks)]
        problem = make_problem(
            self.seed,
            self.split,
            index,
            chunks=chunks,
            facts_per_chunk=config.facts_per_chunk,
            task=task,
            distractor_facts=rng.choice(config.distractor_facts) if training else config.distractor_facts[-1],
            rivals=rng.choice(config.competing_facts) if training else config.competing_facts[-1],
            order=config.order,
            min_distance=config.min_distance,
        )
        return started(problem, config.starts, rng) if training and config.starts and task != "updates" else problem
