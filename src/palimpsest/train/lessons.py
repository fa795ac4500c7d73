"""Lessons for a cold start: the form of a policy's replies, and nothing about what to keep or to look for.

For a reading policy that brings `templates(codec)` and `reply(codec, memory, query)`, without end:

    read     given question, memory, section and, where the policy has one in its prompt, a recalled memory: write
             facts drawn uniformly from what is in sight, or from the section alone; where the policy can ask, ask for a
             name drawn uniformly from what is in sight, or for none
    answer   given question, memory and perhaps a recalled memory: answer if they hold all evidence between them, else
             say "unknown"

A lesson is a trajectory of one turn. The same (seed, index) draws the same world, facts and question for every policy,
so that agents with different replies start from equal lessons.

Guaranteed: what is written and what is asked for don't depend on the question; no lesson spans more than one section.
Not covered: policies without these two methods (full_context, sliding_window, one's own): they are refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.config.schema import SyntheticConfig
from palimpsest.data.synthetic import Evidence, World, distractor, draw_question, near_miss, rival
from palimpsest.data.world import FILLER, PEOPLE
from palimpsest.errors import ConfigError
from palimpsest.memory.prompts import prompt_set
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template
from palimpsest.train.skills import UNKNOWN
from palimpsest.types import Completion, Outcome, StopReason, Trajectory, Turn

ANSWERS = 0.6  # share of answer lessons, evidence and all
SECTION_ALONE = 0.6  # share of replies that write what the section says and nothing older
FULL = 0.6  # share of replies that write as much as fits
ASKS = 0.8  # share of replies with a query, where the policy can ask
LAST = 0.25  # share of sections that end their document
KNOWN = 0.75  # share of answer lessons whose evidence is in sight

_PEOPLE = frozenset(PEOPLE)


@dataclass(frozen=True, slots=True)
class ReadScene:
    """What there is to read, whoever reads it."""

    question: str
    memory: tuple[str, ...]
    """Facts; none: the empty memory."""
    recalled: tuple[str, ...]
    section: tuple[str, ...]
    last: bool
    """Whether the section ends its document, and so in no line break."""


@dataclass(frozen=True, slots=True)
class AnswerScene:
    """What is known, wherever it stands."""

    question: str
    evidence: tuple[str, ...]
    """Those pieces that are in sight."""
    others: tuple[str, ...]
    answer: str
    """If all of `evidence` finds room."""


class Lessons:
    """Draws lessons for one policy and one codec."""

    def __init__(self, policy: Any, codec: Codec, data: SyntheticConfig, seed: int) -> None:
        """Raises ConfigError for a policy that can't be taught so."""
        if not (hasattr(policy, "templates") and hasattr(policy, "reply")):
            raise ConfigError(
                f"cold_start teaches the replies of reading policies; {type(policy).__name__} has no templates and "
                "reply: set cold_start=null, or begin with palimpsest sft on records of your own"
            )
        self.policy, self.codec, self.data, self.seed = policy, codec, data, seed
        self.read: Template
        self.answer: Template
        self.read, self.answer = policy.templates(codec)
        self.prompts = prompt_set(policy.prompts)

    def trajectories(self, count: int) -> list[Trajectory]:
        """The first `count` lessons."""
        return [self.draw(index) for index in range(count)]

    def draw(self, index: int) -> Trajectory:
        """Lesson number `index`."""
        rng = keyed_random(self.seed, "lesson", index)
        world = World(random.Random(rng.random()))
        evidence = draw_question(world, self.data.hops, rng)
        own = keyed_random(self.seed, "reply", index)  # what differs between policies draws from a generator apart
        most = self._most_facts(world, evidence, rng)
        if rng.random() < ANSWERS:
            prompt, reply = self._answering(self._answer_scene(world, evidence, rng, most), most, own)
            return self._lesson(index, "answer", prompt, reply)
        prompt, reply = self._reading(self._read_scene(world, evidence, rng, most), own)
        return self._lesson(index, "read", prompt, reply)

    def _read_scene(self, world: World, evidence: Evidence, rng: random.Random, most: int) -> ReadScene:
        def facts(count: int) -> tuple[str, ...]:
            return tuple(self._fact(world, evidence, rng) for _ in range(count))

        memory = facts(rng.randint(0, most))
        recalled = facts(rng.randint(1, most)) if rng.random() < 0.5 else ()
        section = facts(self.data.facts_per_chunk)
        return ReadScene(evidence.question, memory, recalled, section, last=rng.random() < LAST)

    def _answer_scene(self, world: World, evidence: Evidence, rng: random.Random, most: int) -> AnswerScene:
        statements = [world.sentence(subject, relation, rng) for subject, relation in evidence.chain]
        known = rng.random() < KNOWN
        held = statements if known else rng.sample(statements, rng.randint(0, len(statements) - 1))
        others = tuple(self._other(world, evidence, rng) for _ in range(2 * most))
        return AnswerScene(evidence.question, tuple(held), others, evidence.answer if known else UNKNOWN)

    def _fact(self, world: World, evidence: Evidence, rng: random.Random) -> str:
        """A fact as documents have them, evidence now and then."""
        if rng.random() < 0.15:
            return world.sentence(*rng.choice(evidence.chain), rng)
        return self._other(world, evidence, rng)

    def _other(self, world: World, evidence: Evidence, rng: random.Random) -> str:
        """A fact that is not evidence, as documents have them."""
        while True:
            draw = rival if rng.random() < self.data.rivals else rng.choice((near_miss, distractor))
            if (sentence := draw(world, evidence, rng)) not in FILLER:
                return sentence

    def _most_facts(self, world: World, evidence: Evidence, rng: random.Random) -> int:
        """Facts that a memory has room for."""
        length = len(self.codec.encode(" " + world.sentence(*evidence.chain[0], rng)))
        return max(1, self.policy.memory_tokens // length)

    def _reading(self, scene: ReadScene, rng: random.Random) -> tuple[list[int], list[int]]:
        """Prompt and reply."""
        looks_back = "recalled" in self.read.slots
        sight = [*(scene.recalled if looks_back else ()), *scene.memory, *scene.section]
        facts = list(dict.fromkeys(sight))
        pool = list(dict.fromkeys(scene.section)) if rng.random() < SECTION_ALONE else facts
        most = min(len(pool), self._room(pool))
        count = most if rng.random() < FULL else rng.randint(1, most)
        written = sorted(rng.sample(pool, count), key=facts.index)
        names = sorted({name for text in (scene.question, *sight) for name in _words(text) if name in _PEOPLE})
        query = self.codec.encode(f" {rng.choice(names)}") if looks_back and rng.random() < ASKS else None
        section = self.codec.encode("- " + " ".join(scene.section) + ("" if scene.last else "\n"))
        slots = self._slots(scene.question, scene.memory, scene.recalled)
        return self.read.fill({**slots, "section": section}), self.policy.reply(self.codec, self._facts(written), query)

    def _answering(self, scene: AnswerScene, most: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """Prompt and reply: the evidence dealt out over the slots that the policy has, other facts in what is left."""
        slots: list[list[str]] = [[], []] if "recalled" in self.answer.slots else [[]]
        held = _deal(scene.evidence, slots, most, rng)
        room = sum(most - len(slot) for slot in slots)
        wanted = room if rng.random() < FULL else rng.randint(0, room)
        _deal(scene.others[:wanted], slots, most, rng)
        for slot in slots:
            rng.shuffle(slot)
        answer = scene.answer if held else UNKNOWN
        prompt = self.answer.fill(self._slots(scene.question, slots[0], slots[-1]))
        return prompt, self.codec.encode(f"\\boxed{{{answer}}}")

    def _slots(self, question: str, memory: Sequence[str], recalled: Sequence[str]) -> dict[str, Sequence[int]]:
        return {
            "question": self.codec.encode(question),
            "memory": self._facts(memory) or self.codec.encode(self.prompts.empty_memory),
            "recalled": self._facts(recalled) or self.codec.encode(self.prompts.nothing_recalled),
        }

    def _facts(self, facts: Sequence[str]) -> list[int]:
        return [i for fact in facts for i in self.codec.encode(" " + fact)]

    def _room(self, facts: Sequence[str]) -> int:
        """How many of `facts` fit into a memory, the longest first."""
        lengths = sorted((len(self.codec.encode(" " + fact)) for fact in facts), reverse=True)
        return max(1, sum(1 for end in range(1, len(lengths) + 1) if sum(lengths[:end]) <= self.policy.memory_tokens))

    def _lesson(self, index: int, name: str, prompt: Sequence[int], reply: Sequence[int]) -> Trajectory:
        ids = (*reply, self.codec.tokenizer.eos_token_id)
        completion = Completion(ids, (0.0,) * len(ids), StopReason.STOP)
        turn = Turn(tuple(prompt), completion, 0, name)
        return Trajectory(f"lesson-{index}", f"lesson-{index}", 0, (turn,), Outcome.ANSWERED)


def _deal(pieces: Sequence[str], slots: Sequence[list[str]], most: int, rng: random.Random) -> bool:
    """Append each piece to a slot with fewer than `most`, drawn uniformly; False if some found no room."""
    for piece in pieces:
        open_slots = [slot for slot in slots if len(slot) < most]
        if not open_slots:
            return False
        rng.choice(open_slots).append(piece)
    return True


def _words(text: str) -> Iterator[str]:
    yield from text.replace(".", " ").replace("?", " ").split()
