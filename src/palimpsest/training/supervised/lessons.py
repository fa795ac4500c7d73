"""Cold-start SFT examples from the synthetic world: single replies in a policy's format.

Reading examples have one turn, for a policy whose `teachable()` describes its prompts and replies (memory/policy.py):

    read     given question, memory, section and, if the prompt has one, a recalled memory: write facts drawn
             uniformly from the section, from older sources, or from both; if the policy can query, request a name of
             the section that the question does not name, or none. If a reply can leave the memory unchanged, it does
             so instead of writing only older facts
    answer   given question, memory and perhaps a recalled memory: answer if together they contain all evidence,
             otherwise "unknown"

With `insight` above 0 that share of `read` examples imitates a pretrained model: the reply retains facts in the prompt
that lead to the answer, from the first hop on, and if only the first hop is known, it queries the person of the next
hop. The rest of the memory comes from the section. The policy must still learn which facts to retain before anything
leads to them.

Guaranteed: an example is a pure function of (seed, index) and the policy. The same (seed, index) draws the same world,
facts and question for every reading policy. Without insight, writes and queries do not depend on the answer; no
reading example spans more than one section.
Not covered: policies without `teachable()` (full_context, sliding_window, agents with tools), which are rejected.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from palimpsest.config.data import SyntheticConfig, Task
from palimpsest.data.synthetic.documents import draw_task
from palimpsest.data.synthetic.families import (
    HOPS,
    EvidenceChain,
    World,
    distractor,
    draw_evidence,
    draw_question,
    golds_of,
    near_miss,
    rival,
)
from palimpsest.data.synthetic.world import FILLER, PEOPLE, read_fact
from palimpsest.errors import ConfigError
from palimpsest.memory.policy import MemoryPolicy, Teachable
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template
from palimpsest.types import Completion, Outcome, Prompt, StopReason, Trajectory, Turn

UNKNOWN = "unknown"
ANSWERS = 0.4  # share of answer examples
SECTION_ALONE = 0.45  # share of replies that write only facts of the section
OLDER_ALONE = 0.3  # share of replies that write only older facts
FULL = 0.6  # share of replies that fill the memory
ASKS = 0.8  # share of replies with a query, if the policy can query
LAST = 0.25  # share of sections that end their document
KNOWN = 0.75  # share of answer examples with all evidence in the prompt

EVIDENCE = 0.25  # share of facts that are evidence

_PEOPLE = frozenset(PEOPLE)


@dataclass(frozen=True, slots=True)
class ReadScene:
    """Input of a reading example, independent of the policy."""

    question: str
    memory: tuple[str, ...]
    """Facts; empty: the empty memory."""
    recalled: tuple[str, ...]
    section: tuple[str, ...]
    last: bool
    """True if the section ends its document, and so lacks a line break."""
    evidence: tuple[frozenset[str], ...] = ()
    """Sentences that may state each hop, in the order of reasoning."""
    bridge: str | None = None
    """Person that the first hop leads to, if there are two."""


@dataclass(frozen=True, slots=True)
class AnswerScene:
    """Known facts of an answer example, independent of their slot."""

    question: str
    evidence: tuple[str, ...]
    """Pieces in the prompt."""
    distractors: tuple[str, ...]
    answer: str
    """Answer, if all of `evidence` fits."""
    ordered: bool = False
    """True if the order of `evidence` decides."""


def taught_by(policy: MemoryPolicy) -> Teachable:
    """Raises ConfigError for a policy without `teachable()`."""
    taught = policy.teachable()
    if taught is None:
        raise ConfigError(
            f"no examples can be made for {type(policy).__name__}: its teachable() returns no format of prompts and "
            "replies (docs/how-to/custom-policy.md); set cold_start=null, and start with palimpsest sft --from RUN"
        )
    return taught


class Lessons:
    """Draws SFT examples for one policy and one codec."""

    def __init__(
        self, policy: MemoryPolicy, codec: Codec, data: SyntheticConfig, seed: int, insight: float = 0.0
    ) -> None:
        """`insight`: share of reading examples that retain facts leading to the answer.

        Raises ConfigError for a policy without `teachable()`.
        """
        taught = taught_by(policy)
        self.policy, self.codec, self.data, self.seed, self.insight = taught, codec, data, seed, insight
        self.read: Template
        self.answer: Template
        self.read, self.answer = taught.templates(codec)
        self.texts = taught.texts
        self._nothing = codec.encode(getattr(self.texts, "nothing_recalled", ""))  # only texts with recall have it

    def draw(self, index: int) -> Trajectory:
        rng = keyed_random(self.seed, "lesson", index)
        world = World(random.Random(rng.random()))
        task = draw_task(self.data, self.seed, index)
        fixed = task not in HOPS and task != "several"  # its answers are those of needles
        evidence = draw_evidence(task, world, rng) if fixed else draw_question(world, HOPS.get(task, 1), rng)
        draws = keyed_random(self.seed, "reply", index)  # a separate generator for draws that differ by policy
        most = self._most_facts(world, evidence, rng)
        if rng.random() < ANSWERS:
            drawn = (world, evidence, rng, most)
            scene = self._fixed_scene(task, *drawn) if fixed else self._answer_scene(*drawn)
            prompt, reply = self._answering(scene, most, draws)
            return self._lesson(index, "answer", prompt, reply)
        prompt, reply = self._reading(self._read_scene(world, evidence, rng, most), draws)
        return self._lesson(index, "read", prompt, reply)

    def _read_scene(self, world: World, evidence: EvidenceChain, rng: random.Random, most: int) -> ReadScene:
        def facts(count: int) -> tuple[str, ...]:
            return tuple(self._fact(world, evidence, rng) for _ in range(count))

        memory = facts(rng.randint(0, most))
        recalled = facts(rng.randint(1, most)) if rng.random() < 0.5 else ()
        section = facts(self.data.facts_per_chunk)
        chain = () if evidence.statements else evidence.chain
        statements = tuple(frozenset(world.sentences(*hop)) for hop in chain)
        bridge = world.value(*chain[0]) if len(chain) > 1 else None
        return ReadScene(evidence.question, memory, recalled, section, rng.random() < LAST, statements, bridge)

    def _answer_scene(self, world: World, evidence: EvidenceChain, rng: random.Random, most: int) -> AnswerScene:
        statements = [world.sentence(subject, relation, rng) for subject, relation in evidence.chain]
        answerable = rng.random() < KNOWN
        held = statements if answerable else rng.sample(statements, rng.randint(0, len(statements) - 1))
        distractors = tuple(self._other(world, evidence, rng) for _ in range(2 * most))
        return AnswerScene(evidence.question, tuple(held), distractors, evidence.answers[0] if answerable else UNKNOWN)

    def _fixed_scene(
        self, task: Task, world: World, evidence: EvidenceChain, rng: random.Random, most: int
    ) -> AnswerScene:
        """The answer to what the memory has of a family's statements, though the document may have more."""
        count = len(evidence.statements) if rng.random() < KNOWN else rng.randint(0, len(evidence.statements))
        held = sorted(rng.sample(range(len(evidence.statements)), min(count, most)))
        statements = tuple(evidence.statements[at] for at in held)
        facts = [fact for text in statements if (fact := read_fact(text)) is not None]
        answer = ", ".join(golds_of(task, [fact.value for fact in facts])) if facts else UNKNOWN
        distractors = tuple(self._other(world, evidence, rng) for _ in range(2 * most))
        return AnswerScene(evidence.question, statements, distractors, answer, ordered=True)

    def _fact(self, world: World, evidence: EvidenceChain, rng: random.Random) -> str:
        if rng.random() < EVIDENCE:
            if evidence.statements:
                return rng.choice(evidence.statements)
            return world.sentence(*rng.choice(evidence.chain), rng)
        return self._other(world, evidence, rng)

    def _other(self, world: World, evidence: EvidenceChain, rng: random.Random) -> str:
        while True:
            draw = rival if rng.random() < fmean(self.data.competing_facts) else rng.choice((near_miss, distractor))
            if (sentence := draw(world, evidence, rng)) not in FILLER:
                return sentence

    def _most_facts(self, world: World, evidence: EvidenceChain, rng: random.Random) -> int:
        length = len(self.codec.encode(" " + world.sentence(*evidence.chain[0], rng)))
        room: int = self.policy.memory_tokens // length
        return max(1, room)

    def _reading(self, scene: ReadScene, rng: random.Random) -> tuple[Prompt, list[int]]:
        looks_back = "recalled" in self.read.slots
        older = [*(scene.recalled if looks_back else ()), *scene.memory]
        facts = list(dict.fromkeys((*older, *scene.section)))
        leading = _leading(scene.evidence, facts) if rng.random() < self.insight else []
        if leading and self.policy.may_keep and set(leading) <= set(scene.memory):
            written = []
        elif leading:
            written = self._completed(leading, scene.section, rng)
        else:
            written = self._drawn(facts, older, scene.section, rng)
        written.sort(key=facts.index)
        query = self._query(scene, len(leading), rng) if looks_back else None
        section = self.codec.encode("- " + " ".join(scene.section) + ("" if scene.last else "\n"))
        slots = self._slots(scene.question, scene.memory, scene.recalled)
        return self.read.fill({**slots, "section": section}), self.policy.reply(self.codec, self._facts(written), query)

    def _drawn(
        self, facts: Sequence[str], older: Sequence[str], section: Sequence[str], rng: random.Random
    ) -> list[str]:
        draw = rng.random()
        if self.policy.may_keep and SECTION_ALONE <= draw < SECTION_ALONE + OLDER_ALONE:
            return []
        pool = list(dict.fromkeys(section)) if draw < SECTION_ALONE else list(facts)
        if older and SECTION_ALONE <= draw < SECTION_ALONE + OLDER_ALONE:
            pool = list(dict.fromkeys(older))
        most = min(len(pool), self._room(pool))
        return rng.sample(pool, most if rng.random() < FULL else rng.randint(1, most))

    def _completed(self, leading: list[str], section: Sequence[str], rng: random.Random) -> list[str]:
        rest = [fact for fact in dict.fromkeys(section) if fact not in leading]
        rng.shuffle(rest)
        return [*leading, *rest][: self._room([*leading, *rest])]

    def _query(self, scene: ReadScene, count: int, rng: random.Random) -> list[int] | None:
        """Query of the reply: the bridge, if only the first hop is known (`count` 1), otherwise a person in the
        section."""
        excluded = set(_words(scene.question))
        names = {name for text in scene.section for name in _words(text) if name in _PEOPLE and name not in excluded}
        if count == 1 and scene.bridge is not None:
            names = {scene.bridge}
        elif rng.random() >= ASKS:
            return None
        return self.codec.encode(f" {rng.choice(sorted(names))}") if names else None

    def _answering(self, scene: AnswerScene, most: int, rng: random.Random) -> tuple[Prompt, list[int]]:
        slots: list[list[str]] = [[], []] if "recalled" in self.answer.slots else [[]]
        held = _deal(scene.evidence, slots[:1] if scene.ordered else slots, most, rng)
        room = sum(most - len(slot) for slot in slots)
        wanted = room if rng.random() < FULL else rng.randint(0, room)
        _deal(scene.distractors[:wanted], slots, most, rng)
        for slot in slots:
            rng.shuffle(slot)
        if scene.ordered:
            ordered = iter([fact for fact in scene.evidence if fact in slots[0]])
            slots[0] = [next(ordered) if fact in scene.evidence else fact for fact in slots[0]]
        answer = scene.answer if held else UNKNOWN
        prompt = self.answer.fill(self._slots(scene.question, slots[0], slots[-1]))
        return prompt, self.codec.encode(f"\\boxed{{{answer}}}")

    def _slots(self, question: str, memory: Sequence[str], recalled: Sequence[str]) -> dict[str, Sequence[int]]:
        return {
            "question": self.codec.encode(question),
            "memory": self._facts(memory) or self.codec.encode(self.texts.empty_memory),
            "recalled": self._facts(recalled) or self._nothing,
        }

    def _facts(self, facts: Sequence[str]) -> list[int]:
        return [i for fact in facts for i in self.codec.encode(" " + fact)]

    def _room(self, facts: Sequence[str]) -> int:
        lengths = sorted((len(self.codec.encode(" " + fact)) for fact in facts), reverse=True)
        return max(1, sum(1 for end in range(1, len(lengths) + 1) if sum(lengths[:end]) <= self.policy.memory_tokens))

    def _lesson(self, index: int, name: str, prompt: Prompt, reply: Sequence[int]) -> Trajectory:
        ids = (*reply, self.codec.tokenizer.eos_token_id)
        completion = Completion(ids, (0.0,) * len(ids), StopReason.STOP)
        turn = Turn(tuple(prompt), completion, 0, name, spans=prompt.spans)
        return Trajectory(f"lesson-{index}", f"lesson-{index}", 0, (turn,), Outcome.ANSWERED)


def _leading(evidence: Sequence[frozenset[str]], facts: Sequence[str]) -> list[str]:
    """Facts that lead to the answer: one per hop, as long as all earlier hops are known.

    >>> hops = [frozenset({"A trusts B."}), frozenset({"B drinks tea.", "B orders tea."})]
    >>> _leading(hops, ["B orders tea.", "C drinks rum."])
    []
    >>> _leading(hops, ["B orders tea.", "C drinks rum.", "A trusts B."])
    ['A trusts B.', 'B orders tea.']
    """
    leading = []
    for hop in evidence:
        matches = [fact for fact in facts if fact in hop]
        if not matches:
            break
        leading.append(matches[0])
    return leading


def _deal(pieces: Sequence[str], slots: Sequence[list[str]], most: int, rng: random.Random) -> bool:
    for piece in pieces:
        open_slots = [slot for slot in slots if len(slot) < most]
        if not open_slots:
            return False
        rng.choice(open_slots).append(piece)
    return True


def _words(text: str) -> Iterator[str]:
    yield from text.replace(".", " ").replace("?", " ").split()
