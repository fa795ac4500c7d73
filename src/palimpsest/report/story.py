"""One problem told memory by memory, in a report: an episode that went wrong, and beside it one that got it right.

What a turn did to the memory is the viewer's difference (view/memory_diff.py): what it kept, took from the section,
reworded, made up, dropped. Turns that changed nothing are counted.

Guaranteed: text of models and documents leaves here with its control characters as escapes; a report holds a bounded
number of turns. Not covered: agents with tools, whose episodes have no memory to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from palimpsest.report.visible import visible
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group
from palimpsest.view.memory_diff import Dropped, Origin
from palimpsest.view.opened import Opened
from palimpsest.view.story import Story

SHOWN_TURNS = 10
_WORDS = {
    "kept": "kept",
    "section": "from the section",
    "reworded": "from memory, reworded",
    "nowhere": "from nowhere",
    "dropped": "dropped",
    "lost": "evidence, dropped",
}
_KINDS = {
    Origin.KEPT: "kept",
    Origin.UNKNOWN: "kept",
    Origin.SECTION: "section",
    Origin.NOWHERE: "nowhere",
}
LEGEND = tuple((kind, words) for kind, words in _WORDS.items())


@dataclass(frozen=True, slots=True)
class ToldPart:
    """A piece of a memory."""

    kind: str
    text: str

    @property
    def words(self) -> str:
        """What it is, for those who see no colour."""
        return _WORDS[self.kind]


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """A turn that changed the memory, and how many before it changed nothing."""

    number: int
    """From 0, as records and `palimpsest view` count."""
    parts: Sequence[ToldPart]
    unchanged: int


@dataclass(frozen=True, slots=True)
class ToldStory:
    """An episode."""

    kind: str
    """right, partly, wrong, ungraded."""
    question: str
    turns: Sequence[ToldTurn]
    left_out: int
    """Turns that changed the memory and aren't told."""
    unchanged: int
    """Turns behind the last one told."""
    answer: str
    gold: str
    grade: str


def told_beside(groups: Sequence[Group], codec: Codec) -> list[ToldStory]:
    """A failure and the success beside it, of the first problem that has both; a failure alone where none has; empty
    where there is nothing to tell."""
    graded = [
        [(grade.value, at) for at, grade in enumerate(group.grades) if grade.value is not None] for group in groups
    ]
    mixed = [at for at, values in enumerate(graded) if values and min(values)[0] < 1 <= max(values)[0]]
    wrong = [at for at, values in enumerate(graded) if values and min(values)[0] < 1]
    if not wrong:
        return []
    at = (mixed or wrong)[0]
    worst, best = min(graded[at]), max(graded[at], key=lambda each: (each[0], -each[1]))
    rollouts = [worst[1], *([best[1]] if mixed else [])]
    opened = Opened(groups[at], codec)
    stories = [_told(opened.story(rollout), groups[at].grades[rollout]) for rollout in rollouts]
    return stories if any(story.turns for story in stories) else []


def _told(story: Story, grade: Grade) -> ToldStory:
    turns, unchanged = list[ToldTurn](), 0
    for number, step in enumerate(story.steps):
        parts = list(_parts(story, number))
        if all(part.kind == "kept" for part in parts) and parts:
            unchanged += 1
            continue
        turns.append(ToldTurn(step.turn, parts, unchanged))
        unchanged = 0
    value = grade.value
    kind = "ungraded" if value is None else "right" if value >= 1 else "wrong" if value <= 0 else "partly"
    return ToldStory(
        kind=kind,
        question=visible(story.problem.question),
        turns=turns[-SHOWN_TURNS:],
        left_out=max(0, len(turns) - SHOWN_TURNS),
        unchanged=unchanged,
        answer=visible(story.trajectory.answer or "–"),
        gold=visible(" or ".join(story.problem.answers)),
        grade="no grade" if value is None else f"reward {value:.2f}",
    )


def _parts(story: Story, number: int) -> Iterator[ToldPart]:
    for part in story.diff(number).in_order:
        if isinstance(part, Dropped):
            yield ToldPart("lost" if part.evidence else "dropped", visible(part.text))
        else:
            yield ToldPart(_KINDS.get(part.origin, "reworded"), visible(part.text))


def view_command(folder: Path) -> str:
    """The command that shows all of it."""
    return f"palimpsest view {visible(str(folder))}"
