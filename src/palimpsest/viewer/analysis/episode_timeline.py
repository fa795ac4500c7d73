"""Episode timeline: the memory after each step, the visible texts, and the evidence of an answer.

A step is a turn that may write a memory: a reading turn (metrics/reading_trace.py), or, for an agent with tools, a turn
before a prune or a summary. An agent without a memory has no steps. A memory equal to the policy's placeholder for an
empty one (" none") counts as empty.

Evidence has the definition of `evidence_retention` (metrics/memory_metrics.py). If every text of `metadata["evidence"]`
is a single sentence, the timeline searches for each text. If a text is longer (gold paragraphs), or the data name none,
it searches for a gold answer of each question, except yes/no answers.

Guaranteed: the results of a step stay cached, and the latest whole texts; a step costs time linear in its texts,
regardless of the episode's length.
Not covered: the sampled words of a summary or a prune's memory, whose text is encoded again for display.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeVar

from palimpsest.events import Event, Pruned, Replayed, SummedUp, of_type
from palimpsest.metrics.memory_metrics import CHOICES, unsupported
from palimpsest.metrics.reading_trace import ReadingTurn, Text, readings, replayed_turn
from palimpsest.text.sentences import flat, sentences, stands_in
from palimpsest.types import Problem, Span, Trajectory, Turn
from palimpsest.viewer.analysis.memory_diff import EqualRun, MemoryDiff, PromptSource, aligned, memory_diff
from palimpsest.viewer.analysis.token_words import SpeltTexts, TokenWords
from palimpsest.viewer.records.recorded_episodes import IdsCodec

# ---- Evidence that an answer needs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact that an answer needs."""

    kind: Literal["evidence", "answer"]
    text: str
    """Text from the data; the first of several golds."""
    forms: tuple[str, ...]
    """Flat; any of them matches."""
    golds: tuple[str, ...]
    """Flat; an answer that contains one used the evidence. Empty: unknown."""

    def in_text(self, text: Text) -> bool:
        return any(text.holds(form) for form in self.forms)


def evidence_of(problem: Problem) -> tuple[Evidence, ...]:
    """Evidence that the answer of a problem needs, in the data's order.

    >>> evidence_of(Problem("p", "Where?", ("Rome",), metadata={"evidence": ["Ann lives in Rome.", "Bo is Ann."]}))[1]
    Evidence(kind='evidence', text='Bo is Ann.', forms=('bo is ann.',), golds=())
    """
    texts = problem.metadata.get("evidence") or ()
    named = [str(text) for text in texts] if isinstance(texts, list | tuple) else []
    golds = _golds(problem)
    if named and all(len(sentences(text)) == 1 for text in named):
        return tuple(
            Evidence("evidence", text, (flat(text),), tuple(gold for gold in golds if stands_in(gold, flat(text))))
            for text in named
        )
    return tuple(
        Evidence("answer", question.answers[0], forms, forms)
        for question in problem.by_question
        if (forms := _golds(question))
    )


def span_of(form: str, text: str) -> Span | None:
    """Characters of `text` where a flat form occurs as whole words.

    >>> span_of("ann lives", "Joann lives. Ann\\nlives here.")
    (13, 22)
    """
    match = _pattern(form).search(text) if form else None
    return match.span() if match else None


@lru_cache(maxsize=1024)
def _pattern(form: str) -> re.Pattern[str]:
    left = r"(?<!\w)" if form[0].isalnum() else ""
    right = r"(?!\w)" if form[-1].isalnum() else ""
    return re.compile(left + r"\s+".join(map(re.escape, form.split())) + right, re.IGNORECASE)


def _golds(problem: Problem) -> tuple[str, ...]:
    """Flat golds; empty if a match of one of them carries no information."""
    golds = tuple(
        dict.fromkeys(flat(gold) for question in problem.by_question for gold in question.answers if gold.strip())
    )
    return () if CHOICES.intersection(golds) else golds


# ---- An episode as a timeline of memories --------------------------------------------------------------------


K = TypeVar("K")
V = TypeVar("V")

_LATEST = 256  # cached word texts and differences


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A turn that may write a memory."""

    turn: int
    """Index in the episode's turns."""
    before: Text
    after: Text
    changed: bool
    """True if the turn wrote a memory, even an equal one."""
    section: Text | None
    """The section read; None if unknown, and for agents with tools."""
    offset: int | None
    """Tokens of the document read before its section."""
    sight_known: bool
    """True if the prompt shows which texts were visible (`Story.sight`)."""
    reading: ReadingTurn | None
    """None for agents with tools."""


class Story:
    """One episode; every member is computed on first use."""

    def __init__(self, problem: Problem, trajectory: Trajectory, texts: SpeltTexts) -> None:
        self.problem = problem
        self.trajectory = trajectory
        self.texts = texts
        self._words: _Latest[int, TokenWords] = _Latest(_LATEST)
        self._diffs: _Latest[int, MemoryDiff] = _Latest(_LATEST)
        self._runs: dict[int, list[EqualRun]] = {}
        self._invented: dict[int, tuple[str, ...] | None] = {}
        self._empty = texts.decoded("")

    @cached_property
    def steps(self) -> tuple[TimelineStep, ...]:
        uses_tools = any(isinstance(event.what, Pruned | SummedUp) for event in self.trajectory.events)
        return tuple(self._of_tools() if uses_tools else self._of_readings())

    @cached_property
    def step_at(self) -> Mapping[int, int]:
        """Index of a turn to the number of its step."""
        return {step.turn: number for number, step in enumerate(self.steps)}

    @property
    def readable(self) -> bool:
        """True if a tokenizer exists; without one the content of texts is unknown."""
        return not isinstance(self.texts.codec, IdsCodec)

    @cached_property
    def replayed(self) -> Replayed | None:
        """The replay that produced this episode, if any."""
        return next(iter(of_type(self.trajectory.events, Replayed)), None)

    @property
    def edited(self) -> int | None:
        """The turn with a memory edited by hand; None: no such turn."""
        return replayed_turn(self.trajectory)

    @cached_property
    def evidence(self) -> tuple[Evidence, ...]:
        return evidence_of(self.problem)

    @cached_property
    def events_after(self) -> tuple[tuple[Event, ...], ...]:
        """[turns + 1] events before the first turn, then after each turn."""
        after: list[list[Event]] = [[] for _ in range(len(self.trajectory.turns) + 1)]
        numbers = {turn.step: number for number, turn in enumerate(self.trajectory.turns, 1)}
        at = 0
        for event in sorted(self.trajectory.events, key=lambda event: event.before_turn):
            at = numbers.get(event.before_turn - 1, at if event.before_turn else 0)
            after[at].append(event)
        return tuple(map(tuple, after))

    def words(self, text: Text) -> TokenWords:
        return self._words.made(id(text), lambda: self.texts.spelling.words(self._ids(text)), text)

    def runs(self, number: int) -> list[EqualRun]:
        """Word runs that a step kept, in the memory before and after."""
        runs = self._runs.get(number)
        if runs is None:
            step = self.steps[number]
            before, after = self.words(step.before), self.words(step.after)
            runs = self._runs[number] = aligned(before.words, after.words)
        return runs

    def diff(self, number: int) -> MemoryDiff:
        """Difference between the memories before and after a step."""
        return self._diffs.made(number, lambda: self._diff(number))

    def lost(self, number: int) -> dict[int, tuple[int, int]]:
        """Evidence that a step lost, to its characters in the memory before."""
        step = self.steps[number]
        spans = {}
        for at, piece in enumerate(self.evidence):
            if piece.in_text(step.before) and not piece.in_text(step.after):
                span = next(filter(None, (span_of(form, self.words(step.before).text) for form in piece.forms)), None)
                if span is not None:
                    spans[at] = span
        return spans

    def invented(self, number: int) -> tuple[str, ...] | None:
        """Sentences that a step hallucinated: none of its visible texts contains them (`unsupported`).

        None if unknown, for agents with tools (notes are not copies), and for a memory edited by hand.
        """
        if number not in self._invented:
            step = self.steps[number]
            known = step.reading if self.readable and step.turn != self.edited else None
            self._invented[number] = None if known is None else unsupported(known)
        return self._invented[number]

    def sight(self, number: int) -> list[tuple[str, Text]]:
        """Name and text of each visible text of a step except the memory before; unknown ones are missing."""
        step = self.steps[number]
        turn = self.trajectory.turns[step.turn]
        pieces = [(name, self.texts.of(turn.piece(name) or ())) for name in turn.spans if name != "memory"]
        if step.section is not None and step.reading is not None and step.reading.sources_named:
            pieces = [piece for piece in pieces if piece[0] != "section"] + [("section", step.section)]
        recalled = self.recalled(number)
        return pieces if recalled is None or "recalled" in turn.spans else [*pieces, ("recalled", recalled)]

    def recalled(self, number: int) -> Text | None:
        """The recalled memory in the prompt of a step; None without one."""
        step = self.steps[number]
        text = self.piece(self.trajectory.turns[step.turn], "recalled")
        if text is None and step.reading is not None:
            text = step.reading.recalled  # known only from the event: old records
        return text if text is not None and (text.ids or text.text) else None

    def piece(self, turn: Turn, name: str) -> Text | None:
        ids = turn.piece(name)
        return None if ids is None else self.texts.of(ids)

    def section(self, index: int) -> Text | None:
        """The text that a turn read; None if its prompt does not show it."""
        number = self.step_at.get(index)
        shown = self.piece(self.trajectory.turns[index], "section")
        return self.steps[number].section if shown is None and number is not None else shown

    def _diff(self, number: int) -> MemoryDiff:
        step = self.steps[number]
        before, after = self.words(step.before), self.words(step.after)
        sources = None
        if step.sight_known:
            sources = [PromptSource(name, self.words(text)) for name, text in self.sight(number)]
        return memory_diff(before, after, sources, self.lost(number), self.runs(number))

    def _ids(self, text: Text) -> Sequence[int]:
        return text.ids or self.texts.codec.encode(text.text)

    @cached_property
    def _placeholder(self) -> tuple[int, ...]:
        """[T] the policy's placeholder for an empty memory; () if unknown.

        The first prompt of an episode that starts without a memory shows it. A custom policy sets a non-empty first
        memory through `Problem.memory`.
        """
        replayed = self.replayed
        initial = self.problem.memory or (replayed is not None and replayed.memory and not replayed.turn)
        turns = self.trajectory.turns
        return () if initial or not turns else turns[0].piece("memory") or ()

    def _stripped(self, memory: Text) -> Text:
        return self._empty if memory.ids and memory.ids == self._placeholder else memory

    def _of_readings(self) -> list[TimelineStep]:
        steps: list[TimelineStep] = []
        indices = {id(turn): index for index, turn in enumerate(self.trajectory.turns)}
        offset: int | None = 0
        for reading in readings(self.trajectory, self.texts):
            before, after = self._stripped(reading.memory_before), self._stripped(reading.memory_after)
            index, section = indices[id(reading.turn)], reading.section
            sight_known = reading.sources is not None
            steps.append(TimelineStep(index, before, after, reading.changed, section, offset, sight_known, reading))
            offset = None if section is None or offset is None else offset + len(section.ids)
        return steps

    def _of_tools(self) -> list[TimelineStep]:
        steps: list[TimelineStep] = []
        before = self.texts.decoded("")
        for index in range(len(self.trajectory.turns)):
            written = [_memory_of(event) for event in self.events_after[index + 1]]
            memory = next((text for text in reversed(written) if text is not None), None)
            if memory is not None:
                after = self.texts.decoded(memory)
                steps.append(TimelineStep(index, before, after, True, None, None, True, None))
                before = after
        return steps


def _memory_of(event: Event) -> str | None:
    if isinstance(event.what, Pruned):
        return event.what.memory
    return event.what.text if isinstance(event.what, SummedUp) else None


class _Latest(OrderedDict[K, "tuple[V, object]"]):
    """Cache of recent results with their keys' objects, so that no other object reuses an id."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def made(self, key: K, make: Callable[[], V], of: object = None) -> V:
        entry = super().get(key)
        if entry is None:
            entry = self[key] = (make(), of)
            if len(self) > self._size:
                self.popitem(last=False)
        return entry[0]
