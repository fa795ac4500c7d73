"""Reading turns of an episode, reconstructed from the record: sources in the prompt, memories before and after.

A reading turn is one called "read", one before an event `MemoryWritten`, or one whose prompt has a piece `section` and
is followed by a prompt with a piece `memory`. If an event names its sources, the turns before events are the only ones:
a memory from several sections is one reading of all of them. The memory after it is the first known of:

    the event `MemoryWritten`, or `MemoryUngrounded`
    the piece `memory` of the next prompt that has one
    its reply without control tokens and thinking

These rules cover every policy that fills its prompts by `Template` with slots called memory and section. Recall
queries and malformed replies come from their events.

All rollouts of a group share sections, and consecutive turns share memories. `GroupTexts` decodes each text once and
caches its sentences and searches.

Guaranteed: turns are in order; each piece of a prompt is decoded on first use.
Not covered: prompts without pieces, with `section` and `sources` None; a bound on the cache (use one `GroupTexts` per
group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from palimpsest.events import (
    EmptyMemoryKept,
    Event,
    MemoryUngrounded,
    MemoryWritten,
    Pruned,
    Recalled,
    Replayed,
    ReplyMalformed,
    SummedUp,
    of_type,
)
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import ordinal
from palimpsest.text.reply_tags import without_thinking
from palimpsest.text.sentences import NUMBER, flat, sentences, stands_in
from palimpsest.types import Outcome, Trajectory, Turn

# ---- Texts of prompt pieces and memories, decoded once -------------------------------------------------------


class Text:
    """A text whose properties are computed on first use and cached."""

    def __init__(self, ids: tuple[int, ...], decode: Callable[[], str]) -> None:
        self.ids = ids
        """[T] empty if only the text is known."""
        self._decode = decode
        self._held: dict[str, bool] = {}

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        return self._decode()

    @cached_property
    def flat(self) -> str:
        return flat(self.text)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Sentences and lines, verbatim."""
        return tuple(sentences(self.text))

    @cached_property
    def flat_sentences(self) -> tuple[str, ...]:
        """[sentences]"""
        return tuple(map(flat, self.sentences))

    def holds(self, sentence: str) -> bool:
        """True if a flat sentence occurs here as whole words and numbers."""
        held = self._held.get(sentence)
        if held is None:
            held = self._held[sentence] = stands_in(sentence, self.flat, NUMBER)
        return held


class GroupTexts:
    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._texts: dict[tuple[int, ...], Text] = {}

    def of(self, ids: Sequence[int]) -> Text:
        """The text of `ids`, without control tokens."""
        key = tuple(ids)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = Text(key, lambda: self.codec.decode(key, control=False))
        return text

    def decoded(self, text: str, ids: tuple[int, ...] = ()) -> Text:
        """A text that needs no decoding."""
        return Text(ids, lambda: text)


# ---- Reading turns -------------------------------------------------------------------------------------------


E = TypeVar("E")

_NOTHING = Text((), lambda: "")


@dataclass(frozen=True, slots=True)
class ReadingTurn:
    turn: Turn
    memory_before: Text
    """Memory in its prompt."""
    memory_after: Text
    """Memory for the next prompt."""
    update: Text
    """Memory update in its reply: the memory after, unless that is the whole reply."""
    changed: bool
    """True if the turn wrote a memory; False if the old one remains."""
    sections: tuple[Text, ...]
    """Sections in the prompt, or in those of the turns that the event names; empty if unknown."""
    recalled: Text
    """Recalled memory in its prompt; empty without one."""
    sources: tuple[Text, ...] | None
    """Pieces of its prompt except the question, shortest first; None if the section is unknown."""
    in_tags: bool
    """True if its reply has a format, so that it may be malformed."""
    asks: bool
    """True if its reply may request an earlier memory."""
    query: str | None
    recall_result: str
    """Result of the query for the next prompt; empty without one."""
    malformed: str | None
    """Reason why its reply is unreadable."""
    sources_named: bool = False
    """True if the event of its memory names the turns of its sources."""
    writers: tuple[Turn, ...] = ()
    """Turns whose replies make its memory: those that its event names and no earlier event does, and the merges after
    them; otherwise the turn alone."""
    kept: tuple[Text, ...] = ()
    """What the writers wrote and the grounding rule kept."""
    dropped: tuple[str, ...] = ()
    """Units of the writers' replies that the grounding rule dropped."""
    substituted: bool = False
    """True if `palimpsest replay --memory` replaced the agent's reply."""

    @property
    def section(self) -> Text | None:
        """The sections as one text, without gaps; None if unknown."""
        if len(self.sections) < 2:
            return self.sections[0] if self.sections else None
        ids = tuple(i for section in self.sections for i in section.ids)
        return Text(ids, lambda: "".join(section.text for section in self.sections))


def readings(trajectory: Trajectory, texts: GroupTexts) -> list[ReadingTurn]:
    after = _events_after_turns(trajectory)
    memories = _later_memories(trajectory.turns)
    turns = {turn.step: turn for turn in trajectory.turns}
    by_event = any(event.sources for event in of_type(trajectory.events, MemoryWritten))
    events_of = {turn.step: events for turn, events in zip(trajectory.turns, after, strict=True)}
    result: list[ReadingTurn] = []
    named = set[int]()
    before, recalled, replayed = _NOTHING, _NOTHING, replayed_turn(trajectory)
    for number, (turn, events, later) in enumerate(zip(trajectory.turns, after, memories, strict=True)):
        if not (of_type(events, MemoryWritten) if by_event else _reads(turn, events, later)):
            continue
        reading = _reading(turn, events, later, before, recalled, texts, turns)
        if written := [event for event in of_type(events, MemoryWritten) if event.sources]:
            reading = _of_writers(reading, written[-1], named, turns, events_of, texts)
        result.append(replace(reading, substituted=True) if number == replayed else reading)
        before, recalled = result[-1].memory_after, texts.decoded(result[-1].recall_result)
    return result


def replayed_turn(trajectory: Trajectory) -> int | None:
    """Index of the turn whose reply contains the memory given to a replay; None: every reply is the agent's."""
    replayed = next(iter(of_type(trajectory.events, Replayed)), None)
    return None if replayed is None or replayed.memory is None or replayed.turn < 1 else replayed.turn - 1


def memories(trajectory: Trajectory, texts: GroupTexts) -> list[Text]:
    """Memories of an episode in order: after each reading turn, or from an agent's memory tools. Empty without any."""
    edits = [event.what for event in trajectory.events if isinstance(event.what, Pruned | SummedUp)]
    if edits:
        return [texts.decoded(what.memory if isinstance(what, Pruned) else what.text) for what in edits]
    return [reading.memory_after for reading in readings(trajectory, texts)]


def last_memory(trajectory: Trajectory, texts: GroupTexts) -> Text | None:
    return next(reversed(memories(trajectory, texts)), None)


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Change of the memory in one reading turn."""

    turn: int
    """From 0."""
    turns: int
    """Number of sections to read; 0: unknown."""
    memory: str
    """Memory after the turn."""
    before: str

    def where(self, of: str) -> str:
        """Its section, with their number after `of`; its turn, if it has read more turns than there are sections.

        >>> [MemoryChange(turn, 4, "", "").where("/") for turn in (1, 7)], MemoryChange(1, 0, "", "").where("/")
        (['section 2/4', 'turn 8'], 'section 2')
        """
        if self.turns and self.turn >= self.turns:
            return f"turn {ordinal(self.turn)}"
        return f"section {ordinal(self.turn)}" + (f"{of}{self.turns}" if self.turns else "")

    @property
    def added(self) -> tuple[str, ...]:
        return _without(self.memory, self.before)

    @property
    def dropped(self) -> tuple[str, ...]:
        return _without(self.before, self.memory)


def _without(text: str, other: str) -> tuple[str, ...]:
    existing = set(sentences(other))
    return tuple(sentence for sentence in sentences(text) if sentence not in existing)


class MemoryChanges:
    """Memory changes of an episode, turn by turn."""

    def __init__(self, codec: Codec, sections: int) -> None:
        self._codec, self._sections = codec, sections
        self._before, self._turns = "", 0

    def of(self, turn: Turn, events: Sequence[Event]) -> MemoryChange | None:
        """Change of the memory in `turn`; None if it wrote none."""
        number, self._turns = self._turns, self._turns + 1
        if turn.name == "answer":
            return None
        alone = Trajectory("", "", 0, (turn,), Outcome.ANSWERED, None, tuple(events))
        texts, before = GroupTexts(self._codec), self._before
        memory = last_memory(alone, texts)
        if memory is None:
            return None
        if all(reading.changed for reading in readings(alone, texts)):  # an unchanged first one is the prompt's "none"
            self._before = memory.text
        return MemoryChange(number, self._sections, self._before, before)


def _events_after_turns(trajectory: Trajectory) -> list[list[Event]]:
    """[turns] events after each turn, before the next."""
    after: list[list[Event]] = [[] for _ in trajectory.turns]
    index_by_step = {turn.step: number for number, turn in enumerate(trajectory.turns)}
    for event in trajectory.events:
        if event.before_turn - 1 in index_by_step:
            after[index_by_step[event.before_turn - 1]].append(event)
    return after


def _later_memories(turns: Sequence[Turn]) -> list[tuple[int, ...] | None]:
    """[turns] the piece `memory` of the next prompt that has one."""
    later: list[tuple[int, ...] | None] = [None] * len(turns)
    for number in range(len(turns) - 2, -1, -1):
        piece = turns[number + 1].piece("memory")
        later[number] = later[number + 1] if piece is None else piece
    return later


def _reads(turn: Turn, events: Sequence[Event], later: tuple[int, ...] | None) -> bool:
    if turn.name == "read" or of_type(events, MemoryWritten):
        return True
    return "section" in turn.spans and later is not None


def _reading(
    turn: Turn,
    events: Sequence[Event],
    later: tuple[int, ...] | None,
    before: Text,
    recalled: Text,
    texts: GroupTexts,
    turns: Mapping[int, Turn],
) -> ReadingTurn:
    written, looked_up = _last(events, MemoryWritten), _last(events, Recalled)
    held = turn.piece("memory")
    if held is not None and held != before.ids:
        before = texts.of(held)
    read = [turns[step] for step in written.sources if step in turns] if written and written.sources else [turn]
    sections = tuple(texts.of(ids) for one in read if (ids := one.piece("section")) is not None)
    after, changed = _after(turn, events, written, later, before, texts)
    malformed = _last(events, ReplyMalformed)
    sources = [text for one in read for text in _sources(one, before, recalled, texts)]
    return ReadingTurn(
        turn=turn,
        memory_before=before,
        memory_after=after,
        update=after if written is None or written.update is None else texts.decoded(written.update),
        changed=changed,
        sections=sections,
        recalled=recalled,
        sources=tuple(sources) if sections else None,
        in_tags=written is not None and not written.sources,
        sources_named=written is not None and bool(written.sources),
        asks=written is not None and "recalled" in turn.spans,
        query=None if looked_up is None else looked_up.query,
        recall_result=str((looked_up.text if looked_up else None) or ""),
        malformed=None if malformed is None else malformed.reason,
        writers=(turn,),
        kept=(after,) if changed else (),
        dropped=_dropped(events),
    )


def _dropped(events: Sequence[Event]) -> tuple[str, ...]:
    return tuple(unit for event in of_type(events, MemoryUngrounded) for unit in event.dropped)


def _of_writers(
    reading: ReadingTurn,
    written: MemoryWritten,
    named: set[int],
    turns: Mapping[int, Turn],
    events: Mapping[int, Sequence[Event]],
    texts: GroupTexts,
) -> ReadingTurn:
    """`reading` with its writers. `named`: sources of earlier events; it gets those of this one too."""
    new = [step for step in written.sources if step in turns and step not in named]
    named.update(written.sources)
    merges = range(max(new, default=reading.turn.step) + 1, reading.turn.step + 1)
    writers = [turns[step] for step in (*new, *merges)]
    kept = (_kept(one, events[one.step], texts) for one in writers)
    dropped = tuple(unit for one in writers for unit in _dropped(events[one.step]))
    return replace(reading, writers=tuple(writers), kept=tuple(text for text in kept if text), dropped=dropped)


def _kept(turn: Turn, events: Sequence[Event], texts: GroupTexts) -> Text | None:
    """What the grounding rule kept of a reply; None if it added nothing."""
    if _last(events, EmptyMemoryKept):
        return None
    if (rule := _last(events, MemoryUngrounded)) is not None:
        return texts.of(rule.token_ids) if rule.changed else None
    return texts.of(_reply(turn, texts.codec))


def _reply(turn: Turn, codec: Codec) -> tuple[int, ...]:
    sampled = turn.completion.token_ids
    return (
        codec.strip_stop(sampled) if codec.thinking_ids.isdisjoint(sampled) else tuple(without_thinking(sampled, codec))
    )


def _after(
    turn: Turn,
    events: Sequence[Event],
    written: MemoryWritten | None,
    later: tuple[int, ...] | None,
    before: Text,
    texts: GroupTexts,
) -> tuple[Text, bool]:
    if written is not None:
        return texts.decoded(written.text, written.token_ids), written.changed
    if _last(events, EmptyMemoryKept):
        return before, False
    dropped = _last(events, MemoryUngrounded)
    if dropped is not None:
        return texts.of(dropped.token_ids), dropped.changed
    reply = _reply(turn, texts.codec)
    ids = reply if later is None else later
    return texts.of(ids), ids == reply or ids != before.ids


_ASKED = ("question", "query")
"""Pieces of a prompt that are no source of a memory."""


def _sources(turn: Turn, before: Text, recalled: Text, texts: GroupTexts) -> Iterator[Text]:
    recorded = {"memory": before, "recalled": recalled}
    yield from (
        text for name, text in recorded.items() if name not in turn.spans
    )  # in old records, only events contain these
    pieces = sorted((end - start, start, name) for name, (start, end) in turn.spans.items() if name not in _ASKED)
    for length, start, _ in pieces:
        ids = turn.prompt_ids[start : start + length]
        yield before if ids == before.ids else texts.of(ids)


def _last(events: Sequence[Event], kind: type[E]) -> E | None:
    matches = of_type(events, kind)
    return matches[-1] if matches else None
