"""Building blocks of an HTML report: the page, the evidence table, and an episode memory by memory.

The table "Where the evidence is" shows the accuracy by the fifth of the document that contains the evidence:

    rows       sizes of each agent and baseline; for several pieces of evidence one row for the first and one for the
               last piece
    columns    0 to 20%, 20 to 40%... of the document's length

A story shows a wrong episode next to a right one on the same problem. Each turn shows the viewer's difference of the
memory (viewer/analysis/memory_diff.py): kept, taken from the section, reworded, hallucinated, lost. Turns without a
change are counted.

Guaranteed: a page loads no external resource and runs no script (a content security policy forbids both); every value
is escaped; control characters in text of models and documents appear as escapes; the number of turns is bounded.
Not covered: problems without named evidence, or whose evidence is missing from the document (no cell of the table
counts them); agents with tools, whose episodes have no memory.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from palimpsest.evaluation.summary import EvalSummary, PositionSummary
from palimpsest.text.answers import unboxed
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import ordinal, visible
from palimpsest.types import Grade, Group
from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.memory_diff import Dropped, WordOrigin
from palimpsest.viewer.analysis.token_words import Spelling, SpeltTexts

REPORT = "report.html"


def write_page(folder: Path, text: str, figures: Sequence[Mapping[str, Any]]) -> None:
    """Write a report's HTML, and its figures as plots/NAME.png, into `folder`."""
    plots = folder / "plots"
    if figures:
        plots.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        (plots / f"{figure['name']}.png").write_bytes(figure["png"])
    (folder / REPORT).write_text(text, "utf-8", errors="replace")


def embedded(figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**figure, "base64": base64.b64encode(figure["png"]).decode("ascii")} for figure in figures]


def page(template: str, **values: Any) -> str:
    """HTML of a template; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("palimpsest.report", "."),
        autoescape=select_autoescape(["j2"]),
        undefined=StrictUndefined,
    )
    return environment.get_template(template).render(colours=colours(), **values)


def colours() -> Markup:
    """Light and dark colours of the viewer as CSS variables."""
    style = (files("palimpsest.viewer") / "page" / "page.css").read_text("utf-8")
    return Markup(style[style.index(":root {") : style.index("* { box-sizing")])


# ---- Evidence table of a report ------------------------------------------------------------------------------


def evidence_table(players: Mapping[str, Mapping[str, EvalSummary]]) -> dict[str, Any] | None:
    """Values of the table, of figures by player and size; None if none has evidence."""
    placed = {name: list(_placed(row)) for name, row in players.items()}
    bins = next((s.by_evidence for row in players.values() for s in row.values() if s.by_evidence), ())
    columns = [f"{part.start:.0%} to {part.end:.0%}" for part in bins]
    rows = [{"name": visible(name), "rows": row} for name, row in placed.items() if row]
    return {"columns": columns, "players": rows} if rows else None


def _placed(row: Mapping[str, EvalSummary]) -> Iterator[dict[str, Any]]:
    for size, summary in row.items():
        first, last = summary.by_evidence, summary.by_last_evidence
        for which, cells in {", first evidence": first, ", last evidence": last}.items() if last else [("", first)]:
            if cells:
                yield {"label": visible(size + which), "cells": [_cell(part) for part in cells]}


def _cell(part: PositionSummary) -> dict[str, str]:
    score = part.accuracy
    if score.mean is None:
        return {"value": "–", "below": ""}
    interval = "" if score.low is None or score.high is None else f", {score.low:.0%} to {score.high:.0%}"
    return {"value": f"{score.mean:.0%}", "below": f"of {part.graded:,}{interval}"}


# ---- One problem, memory by memory ---------------------------------------------------------------------------


SHOWN_TURNS = 10
_WORDS = {
    "kept": "kept",
    "section": "from the section",
    "reworded": "from memory, reworded",
    "nowhere": "hallucinated",
    "dropped": "lost",
    "lost": "lost evidence",
}
_KINDS = {
    WordOrigin.KEPT: "kept",
    WordOrigin.UNKNOWN: "kept",
    WordOrigin.SECTION: "section",
    WordOrigin.NOWHERE: "nowhere",
}
LEGEND = tuple(_WORDS.items())


@dataclass(frozen=True, slots=True)
class ToldPart:
    kind: str
    text: str

    @property
    def words(self) -> str:
        """Name of its kind, for readers who do not see colours."""
        return _WORDS[self.kind]


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """A turn that changed the memory, and the number of unchanged turns before it."""

    number: int
    """From 1, as `palimpsest view` shows it."""
    pieces: Sequence[ToldPart]
    unchanged: int


@dataclass(frozen=True, slots=True)
class ToldStory:
    kind: str
    """right, partly, wrong, ungraded."""
    question: str
    turns: Sequence[ToldTurn]
    left_out: int
    """Turns that changed the memory but are not shown."""
    unchanged: int
    """Unchanged turns after the last shown turn."""
    answer: str
    gold: str
    grade: str


def contrasting_stories(groups: Sequence[Group], codec: Codec) -> list[ToldStory]:
    """A wrong episode and a right one of the first problem with both, or only a wrong one; empty without changed
    memories."""
    graded = [
        [(grade.value, at) for at, grade in enumerate(group.grades) if grade.value is not None] for group in groups
    ]
    mixed = [at for at, values in enumerate(graded) if values and min(values)[0] < 1 <= max(values)[0]]
    wrong = [at for at, values in enumerate(graded) if values and min(values)[0] < 1]
    if not wrong:
        return []
    at = (mixed or wrong)[0]
    worst, best = min(graded[at]), max(graded[at], key=lambda pair: (pair[0], -pair[1]))
    rollouts = [worst[1], *([best[1]] if mixed else [])]
    group, texts = groups[at], SpeltTexts(Spelling(codec))
    stories = [
        _shown_story(Story(group.problem, group.trajectories[rollout], texts), group.grades[rollout])
        for rollout in rollouts
    ]
    return stories if any(story.turns for story in stories) else []


def _shown_story(story: Story, grade: Grade) -> ToldStory:
    turns, unchanged = list[ToldTurn](), 0
    for number, step in enumerate(story.steps):
        pieces = list(_pieces(story, number))
        if all(part.kind == "kept" for part in pieces):  # also a memory that stays empty
            unchanged += 1
            continue
        turns.append(ToldTurn(ordinal(step.turn), pieces, unchanged))
        unchanged = 0
    value = grade.value
    kind = "ungraded" if value is None else "right" if value >= 1 else "wrong" if value <= 0 else "partly"
    return ToldStory(
        kind=kind,
        question=visible(story.problem.question),
        turns=turns[-SHOWN_TURNS:],
        left_out=max(0, len(turns) - SHOWN_TURNS),
        unchanged=unchanged,
        answer=visible(unboxed(story.trajectory.answer)),
        gold=visible(story.problem.gold_text),
        grade="no grade" if value is None else f"reward {value:.2f}",
    )


def _pieces(story: Story, number: int) -> Iterator[ToldPart]:
    for part in story.diff(number).in_order:
        if isinstance(part, Dropped):
            yield ToldPart("lost" if part.evidence else "dropped", visible(part.text))
        else:
            yield ToldPart(_KINDS.get(part.origin, "reworded"), visible(part.text))


def view_command(folder: Path) -> str:
    return f"palimpsest view {visible(str(folder))}"
