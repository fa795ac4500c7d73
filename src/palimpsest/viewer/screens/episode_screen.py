"""Episode screen: the strip of turns, evidence over turns, context blocks, and word origins.

Single turns (viewer/screens/turn_screen.py) and word origins are computed on request, so that episodes with hundreds of
turns open fast: sections are searched only for evidence and for sentences of memories.

Turns are indices in the episode's turns.

Not covered: facts stored in other words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from palimpsest.events import Replayed
from palimpsest.metrics.reading_trace import Text
from palimpsest.text.sentences import flat, stands_in
from palimpsest.types import RESULT, Turn
from palimpsest.viewer.analysis.episode_timeline import Evidence, Story
from palimpsest.viewer.analysis.event_labels import (
    STATES,
    Block,
    context_blocks,
    freed,
    in_words,
    marks,
)
from palimpsest.viewer.analysis.word_origins import blame
from palimpsest.viewer.screens.group_screen import Opened, problem_value, rollout_value
from palimpsest.viewer.screens.turn_screen import turn_at

# ---- Evidence over the turns ---------------------------------------------------------------------------------


class EvidenceStatus(StrEnum):
    """Status of one piece of evidence at the end."""

    UNSEEN = "unseen"
    """No text read contains it."""
    NOT_WRITTEN = "not written"
    """It was read but never stored in memory."""
    LOST = "lost"
    """It was stored in memory, but the last memory lacks it."""
    HELD = "held"
    """The last memory contains it."""
    UNKNOWN = "not known without a tokenizer"
    """Token ids do not show which texts were read or written."""
    SHOWN = "in sight"
    """The last memory lacks it, but the last prompt shows it."""


@dataclass(frozen=True, slots=True)
class Fate:
    """History of one piece of evidence."""

    evidence: Evidence
    verdict: EvidenceStatus
    seen: tuple[int, ...]
    """Turns whose section, document or new tool result contains it."""
    written: int | None
    """The first turn after which the memory contained it."""
    survived: int | None
    """The last turn after which the memory contained it."""
    gained: tuple[int, ...]
    lost: tuple[int, ...]
    held: tuple[int, ...]
    """Numbers of the steps (`Story.steps`) after which the memory contained it."""
    recalled: tuple[int, ...]
    used: bool | None
    """True if the answer contains its gold; None if it has no gold, or without an answer."""


def fates(story: Story) -> tuple[Fate, ...]:
    """The fate of each piece of evidence, in the data's order; empty if the data name none."""
    if not story.readable:
        return tuple(
            Fate(one, EvidenceStatus.UNKNOWN, (), None, None, (), (), (), (), _used(story, one))
            for one in story.evidence
        )
    read = list(_read(story)) if story.evidence else []
    recalled = list(_recalled(story)) if story.evidence else []
    return tuple(_fate(story, one, read, recalled) for one in story.evidence)


def _fate(story: Story, one: Evidence, read: list[tuple[int, Text]], recalled: list[tuple[int, Text]]) -> Fate:
    held = [one.in_text(step.after) for step in story.steps]
    before = [*(one.in_text(step.before) for step in story.steps[:1]), *held]
    turns = [step.turn for step in story.steps]
    sighted = tuple(dict.fromkeys(turn for turn, text in read if one.in_text(text)))
    return Fate(
        evidence=one,
        verdict=_verdict(any(before), bool(before) and before[-1], bool(sighted), _in_sight(story, one)),
        seen=sighted,
        written=next((turn for turn, holds in zip(turns, held, strict=True) if holds), None),
        survived=next((turn for turn, holds in zip(reversed(turns), reversed(held), strict=True) if holds), None),
        gained=tuple(turn for turn, was, holds in zip(turns, before, held, strict=False) if holds and not was),
        lost=tuple(turn for turn, was, holds in zip(turns, before, held, strict=False) if was and not holds),
        held=tuple(number for number, holds in enumerate(held) if holds),
        recalled=tuple(turn for turn, text in recalled if one.in_text(text)),
        used=_used(story, one),
    )


def _verdict(ever_held: bool, held_last: bool, sighted: bool, in_sight: bool) -> EvidenceStatus:
    if held_last:
        return EvidenceStatus.HELD
    if in_sight:
        return EvidenceStatus.SHOWN
    if ever_held:
        return EvidenceStatus.LOST
    return EvidenceStatus.NOT_WRITTEN if sighted else EvidenceStatus.UNSEEN


def _in_sight(story: Story, one: Evidence) -> bool:
    """True if the last prompt shows it outside of a memory and the question."""
    last = story.trajectory.turns[-1:]
    if story.steps and story.steps[-1].turn == len(story.trajectory.turns) - 1:
        return False  # the last turn wrote a memory: its prompt led to no answer
    texts = (story.piece(turn, name) for turn in last for name in turn.spans if name not in ("memory", "question"))
    return any(text is not None and one.in_text(text) for text in texts)


def _used(story: Story, one: Evidence) -> bool | None:
    answer = story.trajectory.answer
    if answer is None or not one.golds:
        return None
    text = flat(answer)
    return any(stands_in(gold, text) for gold in one.golds)


def _read(story: Story) -> Iterator[tuple[int, Text]]:
    """(turn, text) of everything read: sections, documents, and tool results at their first occurrence in a prompt."""
    earlier = set[str]()
    for index, turn in enumerate(story.trajectory.turns):
        for name in turn.spans:
            is_new_result = name.startswith(RESULT) and name not in earlier
            earlier.add(name)
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


# ---- The episode screen --------------------------------------------------------------------------------------


_TICKS = ("seen", "gained", "lost", "recalled")


def episode_view(opened: Opened, rollout: int) -> dict[str, Any]:
    """The API's answer for an episode. Raises IndexError.

    `turns` has one row per turn; `fates` one per piece of evidence; `memories` counts the steps that may write one;
    `context` is None except for agents with tools.
    """
    story = opened.story(rollout)
    all_fates = fates(story)
    return {
        **rollout_value(opened, rollout),
        "group": story.trajectory.group_id,
        "rollouts": len(opened.group.trajectories),
        "problem": problem_value(opened.group.problem),
        "kind": kind_of(story),
        "states": STATES,
        "turns": _turns(opened, rollout, all_fates),
        "memories": len(story.steps),
        "fates": [_fate_value(number, fate, story) for number, fate in enumerate(all_fates)],
        "context": _context(story) if kind_of(story) == "tools" else None,
        "before": [in_words(event) for event in story.events_after[0] if not isinstance(event.what, Replayed)],
        "readable": story.readable,
    }


def search_view(opened: Opened, rollout: int, text: str) -> dict[str, Any]:
    """Turns after which the memory contains a text; ignores case and white space. Raises IndexError."""
    wanted = flat(text)
    steps = opened.story(rollout).steps if wanted else ()
    return {"text": text, "turns": [step.turn for step in steps if wanted in step.after.flat]}


def kind_of(story: Story) -> str:
    """`reading`, `tools`, or `plain` for an agent without a known memory."""
    turns = story.trajectory.turns
    if any(name.startswith(RESULT) for turn in turns for name in turn.spans) or any(
        "tool_calls" in turn.notes for turn in turns
    ):
        return "tools"
    return "reading" if story.steps else "plain"


def blame_view(opened: Opened, rollout: int, turn: int) -> dict[str, Any]:
    """Origins of the words in the memory after a turn. Raises IndexError.

    `after` is the last turn that could write it; None, with empty `spans`, without a memory.
    """
    story = opened.story(rollout)
    turn_at(story.trajectory.turns, turn)
    number = bisect_right([step.turn for step in story.steps], turn) - 1
    if number < 0:
        return {"turn": turn, "after": None, "text": "", "spans": []}
    return {
        "turn": turn,
        "after": story.steps[number].turn,
        "text": story.words(story.steps[number].after).text,
        "spans": [asdict(span) for span in blame(story, number)],
    }


def _turns(opened: Opened, rollout: int, all_fates: Sequence[Fate]) -> list[dict[str, Any]]:
    story = opened.story(rollout)
    turns = story.trajectory.turns
    held: dict[int, list[int]] = {}
    for number, fate in enumerate(all_fates):
        for step in fate.held:
            held.setdefault(story.steps[step].turn, []).append(number)
    rows, now, ticks = [], list[int](), _ticks(all_fates, len(turns))
    for index, turn in enumerate(turns):
        if index in story.step_at:
            now = held.get(index, [])
        at = story.step_at.get(index)
        unfounded = 0 if at is None else len(opened.unfounded(rollout).sentences(at))
        rows.append({**_turn(story, index, turn), **ticks[index], "held": now, "unfounded": unfounded})
    return rows


def _turn(story: Story, index: int, turn: Turn) -> dict[str, Any]:
    number = story.step_at.get(index)
    step = None if number is None else story.steps[number]
    labels = marks(story, index)
    return {
        "turn": index,
        "name": turn.name,
        "role": turn.role,
        "state": labels[0],
        "marks": labels,
        "sampled": len(turn.completion.token_ids),
        "chunk": turn.notes.get("chunk"),
        "offset": None if step is None else step.offset,
        "memory": None if step is None else len(step.after.ids) or len(story.words(step.after).ids),
    }


def _ticks(all_fates: Sequence[Fate], turns: int) -> list[dict[str, list[int]]]:
    """[turns] numbers of the fates that refer to each turn."""
    ticks: list[dict[str, list[int]]] = [{part: [] for part in _TICKS} for _ in range(turns)]
    for number, fate in enumerate(all_fates):
        for part in _TICKS:
            for turn in getattr(fate, part):
                ticks[turn][part].append(number)
    return ticks


def _fate_value(number: int, fate: Fate, story: Story) -> dict[str, Any]:
    turns = [story.steps[step].turn for step in fate.held]
    return {
        "number": number,
        "kind": fate.evidence.kind,
        "text": fate.evidence.text,
        "verdict": fate.verdict.value,
        "seen": list(fate.seen),
        "written": fate.written,
        "survived": fate.survived,
        "gained": list(fate.gained),
        "lost": list(fate.lost),
        "held": _ranges(turns, [step.turn for step in story.steps]),
        "recalled": list(fate.recalled),
        "used": fate.used,
    }


def _ranges(turns: Sequence[int], among: Sequence[int]) -> list[list[int]]:
    """Consecutive turns as pairs of first and last.

    >>> _ranges([0, 2, 5], [0, 2, 4, 5])
    [[0, 2], [5, 5]]
    """
    position = {turn: number for number, turn in enumerate(among)}
    runs = groupby(enumerate(turns), key=lambda pair: position[pair[1]] - pair[0])
    rows = ([turn for _, turn in run] for _, run in runs)
    return [[run[0], run[-1]] for run in rows]


def _context(story: Story) -> dict[str, Any]:
    return {
        "turns": [[_block_value(block) for block in blocks] for blocks in context_blocks(story)],
        "freed": [asdict(item) for item in freed(story)],
    }


def _block_value(block: Block) -> dict[str, Any]:
    start, end = block.tokens
    return {"kind": block.kind, "start": start, "tokens": end - start, "turn": block.turn, "id": block.id}
