"""Episode screen: the strip of turns, evidence over turns, context blocks, and word origins.

Contents of single turns (viewer/screens/turn_screen.py) and word origins are computed on request, so that opening an
episode of hundreds of turns is cheap: sections are searched for evidence and for sentences of memories only.

Evidence is what `memory/evidence_retention` counts (viewer/analysis/episode_timeline.py), with the same rule for
whether a memory holds it. Turns are indices in the episode's turns.

Not covered: facts kept in other words.
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
    verdict: EvidenceStatus
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
    """Whether the last prompt shows it outside of a memory and the question."""
    last = story.trajectory.turns[-1:]
    if story.steps and story.steps[-1].turn == len(story.trajectory.turns) - 1:
        return False  # the last turn still wrote: nothing was answered from its prompt
    texts = (story.piece(turn, name) for turn in last for name in turn.spans if name not in ("memory", "question"))
    return any(text is not None and one.in_text(text) for text in texts)


def _used(story: Story, one: Evidence) -> bool | None:
    answer = story.trajectory.answer
    if answer is None or not one.golds:
        return None
    text = flat(answer)
    return any(stands_in(gold, text) for gold in one.golds)


def _read(story: Story) -> Iterator[tuple[int, Text]]:
    """(turn, text) of what was read: sections, documents, and tool results when they first stand in a prompt."""
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
"""Of a fate: where a turn may play one."""


def episode_view(opened: Opened, rollout: int) -> dict[str, Any]:
    """What the API says of an episode. Raises IndexError.

    `turns` has a row for each turn; `fates` one for each thing an answer needs; `memories` counts the steps that may
    write one; `context` is of agents with tools, else None.
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
    """The turns after which the memory holds a text, without regard to case and white space. Raises IndexError."""
    wanted = flat(text)
    steps = opened.story(rollout).steps if wanted else ()
    return {"text": text, "turns": [step.turn for step in steps if wanted in step.after.flat]}


def kind_of(story: Story) -> str:
    """`reading`, `tools`, or `plain` for an agent without a memory that is known of."""
    turns = story.trajectory.turns
    if any(name.startswith(RESULT) for turn in turns for name in turn.spans) or any(
        "tool_calls" in turn.notes for turn in turns
    ):
        return "tools"
    return "reading" if story.steps else "plain"


def blame_view(opened: Opened, rollout: int, turn: int) -> dict[str, Any]:
    """Where the words of the memory held after a turn first came from. Raises IndexError.

    `after` is the turn that last had it to write; None, with no `spans`, where there is no memory yet.
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
    last = index == len(story.trajectory.turns) - 1
    invented = bool(number is not None and story.invented(number))
    labels = marks(turn, story.events_after[index + 1], step, invented, last, index == story.edited)
    return {
        "turn": index,
        "name": turn.name,
        "role": turn.role,
        "state": labels[0],
        "marks": labels,
        "prompt": len(turn.prompt_ids),
        "sampled": len(turn.completion.token_ids),
        "chunk": turn.notes.get("chunk"),
        "offset": None if step is None else step.offset,
        "memory": None if step is None else len(step.after.ids) or len(story.words(step.after).ids),
    }


def _ticks(all_fates: Sequence[Fate], turns: int) -> list[dict[str, list[int]]]:
    """[turns] numbers of the fates that each plays a part in."""
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
    """Turns in a row as the first and the last of them.

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
