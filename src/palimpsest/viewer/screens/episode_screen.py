"""An episode as its page shows it at first sight: the strip of turns, fates, context blocks; and blame of a memory.

What a single turn holds is asked for apart (viewer/screens/turn_screen.py), and so is blame, so that the first sight of
an episode
of hundreds of turns is cheap: sections are searched for evidence and for sentences of memories, and no further.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from palimpsest.events import Replayed
from palimpsest.text.sentences import flat
from palimpsest.types import RESULT, Turn
from palimpsest.viewer.analysis.context_blocks import Block, Deleted, Freed, context_blocks, freed
from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.event_labels import STATES, in_words, marks, replayed_in_words
from palimpsest.viewer.analysis.evidence_status import Fate, fates
from palimpsest.viewer.analysis.word_origins import Blamed, blame
from palimpsest.viewer.screens.group_screen import grade_value, problem_value
from palimpsest.viewer.screens.open_groups import Opened
from palimpsest.viewer.screens.turn_screen import turn_at

_PARTS = ("seen", "gained", "lost", "recalled")
"""Of a fate: where a turn may play one."""


def episode_view(opened: Opened, rollout: int) -> dict[str, Any]:
    """What the API says of an episode. Raises IndexError.

    `turns` has a row for each turn; `fates` one for each thing an answer needs; `memories` counts the steps that may
    write one; `context` is of agents with tools, else None.
    """
    story = opened.story(rollout)
    trajectory, found = story.trajectory, fates(story)
    return {
        "group": trajectory.group_id,
        "rollout": rollout,
        "number": trajectory.rollout,
        "rollouts": len(opened.group.trajectories),
        "problem": problem_value(opened.group.problem),
        "outcome": trajectory.outcome.value,
        "answer": trajectory.answer,
        "answers": list(trajectory.answers),
        "grade": grade_value(opened.group.grades[rollout]),
        "advantage": opened.advantages.of_rollouts[rollout],
        "advantage_is": opened.advantages.what,
        "kind": kind_of(story),
        "states": STATES,
        "turns": _turns(opened, rollout, found),
        "memories": len(story.steps),
        "fates": [_fate_value(number, fate, story) for number, fate in enumerate(found)],
        "context": _context(story) if kind_of(story) == "tools" else None,
        "before": [in_words(event) for event in story.events_after[0] if not isinstance(event.what, Replayed)],
        "replayed": None if story.replayed is None else replayed_in_words(story.replayed),
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
        "spans": [_blamed_value(each) for each in blame(story, number)],
    }


def _turns(opened: Opened, rollout: int, found: Sequence[Fate]) -> list[dict[str, Any]]:
    story = opened.story(rollout)
    turns = story.trajectory.turns
    held: dict[int, list[int]] = {}
    for number, fate in enumerate(found):
        for step in fate.held:
            held.setdefault(story.steps[step].turn, []).append(number)
    rows, now, ticks = [], list[int](), _ticks(found, len(turns))
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
    found = marks(turn, story.events_after[index + 1], step, invented, last, index == story.edited)
    return {
        "turn": index,
        "name": turn.name,
        "role": turn.role,
        "state": found[0],
        "marks": found,
        "prompt": len(turn.prompt_ids),
        "sampled": len(turn.completion.token_ids),
        "chunk": turn.notes.get("chunk"),
        "offset": None if step is None else step.offset,
        "memory": None if step is None else len(step.after.ids) or len(story.words(step.after).ids),
    }


def _ticks(found: Sequence[Fate], turns: int) -> list[dict[str, list[int]]]:
    """[turns] numbers of the fates that each plays a part in."""
    ticks: list[dict[str, list[int]]] = [{part: [] for part in _PARTS} for _ in range(turns)]
    for number, fate in enumerate(found):
        for part in _PARTS:
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
    place = {turn: number for number, turn in enumerate(among)}
    runs = groupby(enumerate(turns), key=lambda each: place[each[1]] - each[0])
    found = ([turn for _, turn in run] for _, run in runs)
    return [[run[0], run[-1]] for run in found]


def _blamed_value(each: Blamed) -> dict[str, Any]:
    return {
        "text": each.text,
        "characters": list(each.characters),
        "tokens": list(each.tokens),
        "turn": each.turn,
        "age": each.age,
        "origin": each.origin.value,
        "offset": each.offset,
        "source": None if each.source is None else {"name": each.source.name, "characters": each.source.characters},
    }


def _context(story: Story) -> dict[str, Any]:
    return {
        "turns": [[_block_value(block) for block in blocks] for blocks in context_blocks(story)],
        "freed": [_freed_value(each) for each in freed(story)],
    }


def _block_value(block: Block) -> dict[str, Any]:
    start, end = block.tokens
    return {"kind": block.kind, "start": start, "tokens": end - start, "turn": block.turn, "id": block.id}


def _freed_value(each: Freed) -> dict[str, Any]:
    return {
        "turn": each.turn,
        "how": each.how,
        "tokens": each.tokens,
        "deleted": [_deleted_value(one) for one in each.deleted],
    }


def _deleted_value(one: Deleted) -> dict[str, Any]:
    again = None if one.again is None else {"turn": one.again.turn, "how": one.again.how}
    return {"id": one.id, "tokens": one.tokens, "again": again}
