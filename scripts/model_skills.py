"""Training examples of the shipped base model: skills of a pretrained model, without memory selection.

An example is a shipped policy's prompt (except `about`) and the requested completion. In `read` and `read_or_none` the
written facts are independent of the question (RL has to teach relevance), `about` has no question, and no example spans
more than one section.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from palimpsest.data.synthetic.families import EvidenceChain, World, distractor, draw_question, near_miss
from palimpsest.data.synthetic.world import FILLER, PEOPLE, RELATIONS
from palimpsest.memory import document_baselines, overwrite
from palimpsest.text.codec import Codec
from palimpsest.text.template import user_turn
from palimpsest.training.supervised.lessons import UNKNOWN

ABOUT = (
    "Name:{name}\nMemory:{memory}\nSection:\n{section}\nSay what is known.",
    "Section:\n{section}\nName:{name}\nMemory:{memory}\nSay what is known.",
)
"""Prompts without a policy: they train finding facts about a person, not storing them."""
NEAR_MISS = 0.4  # share of sentences; more than documents have: telling facts apart is a skill


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt [P] and its completion [T]; training uses all of the completion."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    choices: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """[position in the completion] equally right ids at that position; other positions have none."""


class Skills:
    """Draws examples for one codec."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        (self.end,) = codec.encode_trusted("<|im_end|>")
        self.encode = lru_cache(maxsize=200_000)(lambda text: tuple(codec.encode(text)))
        slots = ("question", "memory", "section")
        self.read_templates = [
            user_turn(codec, text, slots) for text in (overwrite.SHORT.read, overwrite.SHORT.read_section_first)
        ]
        self.about_templates = [user_turn(codec, text, ("name", "memory", "section")) for text in ABOUT]
        self.answer_template = user_turn(codec, overwrite.SHORT.answer, ("question", "memory"))
        self.direct_template = user_turn(codec, document_baselines.SHORT.answer, ("question", "document"))
        (newline,) = codec.encode("\n")
        self.newline = newline
        self.words = [i for i in range(codec.vocab_size) if codec.decode([i])[:1] == " " and i not in codec.control_ids]

    def read(self, rng: random.Random, *, in_order: bool = True) -> Example:
        """Write one to three facts of memory and section, independent of the question, in reading order or any."""
        world, evidence = self._scene(rng)
        memory, section, facts = self._in_sight(world, evidence, rng, rng.choice((0, 1, 1, 2, 2, 3)))
        written: list[str]
        if not memory and rng.random() < 0.25:
            written = []
        elif memory and rng.random() < 0.1:
            written = memory
        else:
            written = rng.sample(facts, min(len(facts), rng.choice((1, 1, 2, 2, 3))))
            if in_order:
                written.sort(key=facts.index)
        return self._reading(rng, evidence.question, memory, section, written)

    def read_or_none(self, rng: random.Random) -> Example:
        """Write none to three facts of memory and section; each sentence could be any visible one."""
        world, evidence = self._scene(rng)
        memory, section, facts = self._in_sight(world, evidence, rng, rng.choice((0, 0, 1, 1, 2, 2, 3)))
        written: list[str] = []
        if (roll := rng.random()) >= 0.15:
            if memory and roll < 0.25:
                written = memory
            else:
                written = rng.sample(facts, min(len(facts), rng.choice((1, 1, 2, 2, 3))))
                written.sort(key=facts.index)
        example = self._reading(rng, evidence.question, memory, section, written)
        begins = {self.encode(" " + fact)[0] for fact in facts}
        lawful = frozenset({*begins, self.end, self.encode(overwrite.SHORT.empty_memory)[0]})
        lengths = [len(self.encode(" " + fact)) for fact in written]
        return replace(example, choices={sum(lengths[:number]): lawful for number in range(max(1, len(written)))})

    def about(self, rng: random.Random) -> Example:
        """Write all facts of memory and section about one person, in reading order."""
        world, evidence = self._scene(rng)
        memory, section, facts = self._in_sight(world, evidence, rng, rng.choice((0, 0, 1, 1, 2, 2)))
        there = {fact.split()[0] for fact in facts}
        if there and rng.random() < 0.5:
            name = rng.choice(sorted(there))
        else:
            name = rng.choice([person for person in PEOPLE if person not in there])
        slots = {
            "name": self.encode(" " + name),
            "memory": self._memory(memory),
            "section": self._paragraph(section, last=rng.random() < 0.25),
        }
        said = [fact for fact in facts if fact.split()[0] == name]
        return Example(rng.choice(self.about_templates).fill(slots), (*self._memory(said), self.end))

    def copy(self, rng: random.Random) -> Example:
        """Write all facts of memory and section, shuffled.

        Two to five people and one to three relations fill the page, so that neither the person nor the verb determines
        the value.
        """
        world = World(random.Random(rng.random()))
        people, relations = rng.sample(PEOPLE, rng.randint(2, 5)), rng.sample(RELATIONS, rng.randint(1, 3))
        drawn = [world.sentence(rng.choice(people), rng.choice(relations), rng) for _ in range(24)]
        facts = list(dict.fromkeys(drawn))[: rng.randint(4, 8)]
        kept = rng.randint(0, min(3, len(facts) - 1))
        question = rng.choice(relations).question.format(s=rng.choice(people))
        page = facts[: kept + 5]
        return self._reading(rng, question, page[:kept], page[kept:], rng.sample(page, len(page)))

    def answer_long(self, rng: random.Random) -> Example:
        """Answer from a memory of up to eight facts, as in several joined memories."""
        return self.answer(rng, most=3 if rng.random() < 0.6 else 8)

    def answer(self, rng: random.Random, *, most: int = 3) -> Example:
        """Answer a one- or two-hop question from a memory, "unknown" if the evidence is missing."""
        world, evidence = self._scene(rng)
        known = rng.random() < 0.75
        memory = self._statements(world, evidence, rng) if known else []
        memory = memory + self._facts(world, evidence, rng, rng.randint(0, most - len(memory)), relevant=False)
        rng.shuffle(memory)
        prompt = self.answer_template.fill({"question": self.encode(evidence.question), "memory": self._memory(memory)})
        return Example(prompt, self._boxed(evidence.answers[0] if known else UNKNOWN))

    def direct(self, rng: random.Random, *, most: int = 6) -> Example:
        """Answer from a document of one to `most` paragraphs."""
        world, evidence = self._scene(rng)
        known = rng.random() < 0.75
        count = rng.randint(1, most)
        sentences = [self._sentence(world, evidence, rng) for _ in range(count * 5)]
        if known:
            for place, statement in zip(
                rng.sample(range(len(sentences)), len(evidence.chain)),
                self._statements(world, evidence, rng),
                strict=True,
            ):
                sentences[place] = statement
        document: list[int] = []
        for i in range(0, len(sentences), 5):
            document += self._paragraph(sentences[i : i + 5], last=i + 5 >= len(sentences))
        prompt = self.direct_template.fill({"question": self.encode(evidence.question), "document": document})
        return Example(prompt, self._boxed(evidence.answers[0] if known else UNKNOWN))

    def repeat(self, rng: random.Random, words: Sequence[int] | None = None, *, ambiguous: float = 0.5) -> Example:
        """6 to 24 random words repeated, 64 in all; trained from the second time on.

        With probability `ambiguous` only 5 to 10 different words occur, so that several previous words decide the next.
        """
        words = words or self.words
        if rng.random() < ambiguous:
            words = rng.sample(words, rng.randint(5, 10))
        period = rng.choices(words, k=rng.randint(6, 24))
        tokens = (period * 11)[:64]
        return Example(tokens[: len(period)], tokens[len(period) :])

    def _reading(
        self, rng: random.Random, question: str, memory: Sequence[str], section: Sequence[str], written: Sequence[str]
    ) -> Example:
        prompt = rng.choice(self.read_templates).fill(
            {
                "question": self.encode(question),
                "memory": self._memory(memory),
                "section": self._paragraph(section, last=rng.random() < 0.25),
            }
        )
        return Example(prompt, (*self._memory(written), self.end))

    def _scene(self, rng: random.Random) -> tuple[World, EvidenceChain]:
        world = World(random.Random(rng.random()))
        return world, draw_question(world, rng.choice((1, 1, 2)), rng)

    def _sentence(self, world: World, evidence: EvidenceChain, rng: random.Random) -> str:
        draw = near_miss if rng.random() < NEAR_MISS else distractor
        return draw(world, evidence, rng)

    def _statements(self, world: World, evidence: EvidenceChain, rng: random.Random) -> list[str]:
        return [world.sentence(subject, relation, rng) for subject, relation in evidence.chain]

    def _facts(
        self, world: World, evidence: EvidenceChain, rng: random.Random, count: int, *, relevant: bool = True
    ) -> list[str]:
        facts: list[str] = []
        while len(facts) < count:
            sentence = self._sentence(world, evidence, rng)
            if relevant and rng.random() < 0.2:
                sentence = rng.choice(self._statements(world, evidence, rng))
            if sentence not in FILLER and sentence not in facts:
                facts.append(sentence)
        return facts

    def _in_sight(
        self, world: World, evidence: EvidenceChain, rng: random.Random, held: int
    ) -> tuple[list[str], list[str], list[str]]:
        """A memory of `held` facts, a section, and all facts of both, in reading order."""
        memory = self._facts(world, evidence, rng, held)
        section = self._section(world, evidence, rng, relevant=rng.random() < 0.3)
        return memory, section, list(dict.fromkeys(memory + [said for said in section if said not in FILLER]))

    def _section(self, world: World, evidence: EvidenceChain, rng: random.Random, *, relevant: bool) -> list[str]:
        section = [self._sentence(world, evidence, rng) for _ in range(5)]
        if relevant:
            section[rng.randrange(5)] = rng.choice(self._statements(world, evidence, rng))
        return section

    def _memory(self, facts: Sequence[str]) -> tuple[int, ...]:
        return tuple(i for fact in facts for i in self.encode(" " + fact)) or self.encode(overwrite.SHORT.empty_memory)

    def _paragraph(self, sentences: Sequence[str], *, last: bool) -> list[int]:
        ids = [*self.encode("-"), *(i for sentence in sentences for i in self.encode(" " + sentence))]
        return ids if last else [*ids, self.newline]

    def _boxed(self, answer: str) -> tuple[int, ...]:
        return (*self.encode(f"\\boxed{{{answer}}}"), self.end)
