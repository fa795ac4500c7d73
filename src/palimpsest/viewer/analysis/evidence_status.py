"""What became of each thing an answer needs: seen, written, survived to, lost, recalled, used.

What is looked for is what `measures.memory.evidence_retention` looks for (viewer/analysis/episode_timeline.py); whether
a memory holds it
is decided as there. Turns are indices in the episode's turns.

Not covered: facts kept in other words, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from palimpsest.metrics.reading_trace import Text
from palimpsest.text.sentences import flat, stands_in
from palimpsest.types import RESULT
from palimpsest.viewer.analysis.episode_timeline import Evidence, Story


class Verdict(StrEnum):
    """The whole fate in a word."""

    UNSEEN = "unseen"
    """It stood in nothing that was read."""
    NOT_WRITTEN = "not written"
    """It was read, and never stood in a memory."""
    LOST = "lost"
    """A memory held it, the last one doesn't."""
    HELD = "held"
    """The last memory holds it."""
    UNKNOWN = "not known without a tokenizer"
    """Token ids alone don't say what was read or written."""
    SHOWN = "in sight"
    """No memory holds it at the end, but it stood in what the last prompt shows."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one thing an answer needs."""

    evidence: Evidence
    verdict: Verdict
    seen: tuple[int, ...]
    """Turns whose section, document or new tool result holds it."""
    written: int | None
    """The first turn after which the memory held it."""
    survived: int | None
    """The last turn after which the memory held it."""
    gained: tuple[int, ...]
    """Turns that brought it into the memory."""
    lost: tuple[int, ...]
    """Turns that took it out of the memory."""
    held: tuple[int, ...]
    """Numbers of the steps (`Story.steps`) after which the memory held it."""
    recalled: tuple[int, ...]
    """Turns whose recalled memory held it."""
    used: bool | None
    """Whether the answer has the gold answer that it says; None where it says none, or there is no answer."""


def fates(story: Story) -> tuple[Fate, ...]:
    """Of everything an answer needs, in the data's order; empty where the data doesn't say."""
    if not story.readable:
        return tuple(
            Fate(one, Verdict.UNKNOWN, (), None, None, (), (), (), (), _used(story, one)) for one in story.evidence
        )
    read = list(_read(story)) if story.evidence else []
    recalled = list(_recalled(story)) if story.evidence else []
    return tuple(_fate(story, one, read, recalled) for one in story.evidence)


def _fate(story: Story, one: Evidence, read: list[tuple[int, Text]], recalled: list[tuple[int, Text]]) -> Fate:
    held = [one.in_text(step.after) for step in story.steps]
    before = [*(one.in_text(step.before) for step in story.steps[:1]), *held]
    turns = [step.turn for step in story.steps]
    seen = tuple(dict.fromkeys(turn for turn, text in read if one.in_text(text)))
    return Fate(
        evidence=one,
        verdict=_verdict(any(before), bool(before) and before[-1], bool(seen), _in_sight(story, one)),
        seen=seen,
        written=next((turn for turn, holds in zip(turns, held, strict=True) if holds), None),
        survived=next((turn for turn, holds in zip(reversed(turns), reversed(held), strict=True) if holds), None),
        gained=tuple(turn for turn, was, holds in zip(turns, before, held, strict=False) if holds and not was),
        lost=tuple(turn for turn, was, holds in zip(turns, before, held, strict=False) if was and not holds),
        held=tuple(number for number, holds in enumerate(held) if holds),
        recalled=tuple(turn for turn, text in recalled if one.in_text(text)),
        used=_used(story, one),
    )


def _verdict(ever_held: bool, held_last: bool, seen: bool, in_sight: bool) -> Verdict:
    if held_last:
        return Verdict.HELD
    if in_sight:
        return Verdict.SHOWN
    if ever_held:
        return Verdict.LOST
    return Verdict.NOT_WRITTEN if seen else Verdict.UNSEEN


def _in_sight(story: Story, one: Evidence) -> bool:
    """Whether the last prompt shows it outside of a memory and the question."""
    last = story.trajectory.turns[-1:]
    if story.steps and story.steps[-1].turn == len(story.trajectory.turns) - 1:
        return False  # the last turn still wrote: nothing was answered from its prompt
    texts = (story.piece(turn, name) for turn in last for name in turn.spans if name not in ("memory", "question"))
    return any(text is not None and one.in_text(text) for text in texts)


def _used(story: Story, one: Evidence) -> bool | None:
    said = story.trajectory.answer
    if said is None or not one.golds:
        return None
    text = flat(said)
    return any(stands_in(gold, text) for gold in one.golds)


def _read(story: Story) -> Iterator[tuple[int, Text]]:
    """(turn, text) of what was read: sections, documents, and tool results when they first stand in a prompt."""
    known = set[str]()
    for index, turn in enumerate(story.trajectory.turns):
        for name in turn.spans:
            is_new_result = name.startswith(RESULT) and name not in known
            known.add(name)
            if is_new_result or name in ("section", "document"):
                text = story.section(index) if name == "section" else story.piece(turn, name)
                assert text is not None
                yield index, text


def _recalled(story: Story) -> Iterator[tuple[int, Text]]:
    for index, turn in enumerate(story.trajectory.turns):
        number = story.step_at.get(index)
        text = story.piece(turn, "recalled") if number is None else story.recalled(number)
        if text is not None:
            yield index, text
