"""Reports of one evaluation and of one training run.

The report of a training contains the gain, reward over steps, a wrong and a right episode, and next steps.

Guaranteed: report.html loads no external resource (images are embedded, a content security policy forbids the rest)
and runs no script; text written by a model or a document is escaped, with control and bidirectional characters as
escapes; equal results give equal bytes.
Not covered: unrecorded episodes (`evaluation.record`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.summary import EvalSummary, Score, cost_columns
from palimpsest.report.axis_labels import DOCUMENTS, AxisWords
from palimpsest.report.page import LEGEND, ToldStory, embedded, evidence_table, page, write_page
from palimpsest.text.answers import unboxed
from palimpsest.text.display_text import cost_text, counted_outcomes, visible


@dataclass(frozen=True, slots=True)
class EvaluationResults:
    """Content of an evaluation's report."""

    title: str
    accuracy: Score
    """Accuracy of the agent over all graded episodes."""
    facts: Sequence[tuple[str, str]]
    players: Mapping[str, Mapping[str, EvalSummary]]
    """Figures by player and size: the agents, then the baselines, from short to long."""
    config: str
    """The resolved configuration as YAML."""
    notes: Sequence[str] = ()
    stories: Sequence[ToldStory] = ()
    """A wrong episode, and a right one on the same problem if there is one, memory by memory."""
    look: str = ""
    lead: str = ""
    """First sentence; empty: the overall accuracy."""
    figures: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[Sample] = ()
    samples_note: str = ""


def write_evaluation_report(folder: Path, results: EvaluationResults) -> None:
    """Write report.html and plots/*.png into `folder`."""
    parts = list(dict.fromkeys(part for row in results.players.values() for part in row))
    text = page(
        "evaluation.html.j2",
        title=visible(results.title),
        lead=visible(results.lead) or lead(results),
        facts=[(name, visible(value)) for name, value in results.facts],
        parts=list(map(visible, parts)),
        costs=cost_columns(cell for row in results.players.values() for cell in row.values()),
        players=[_player(name, results, parts) for name in results.players],
        evidence=evidence_table(results.players),
        notes=[visible(note) for note in results.notes],
        figures=embedded(results.figures),
        stories=results.stories,
        samples=[_shown_sample(sample) for sample in results.samples],
        samples_note=results.samples_note,
        legend=LEGEND,
        look=results.look,
        config=visible(results.config),
    )
    write_page(folder, text, results.figures)


def lead(results: EvaluationResults) -> str:
    agents = [cell for row in results.players.values() for cell in row.values() if not cell.cell.baseline]
    graded, ungraded = (sum(getattr(row, name) for row in agents) for name in ("graded", "ungraded"))
    missing = f" {ungraded} of {graded + ungraded} episodes are ungraded and not in the accuracy." if ungraded else ""
    if results.accuracy.mean is None:
        return f"No episode was graded.{missing}"
    score = results.accuracy
    return f"Accuracy {percent(score)} (95% interval {interval(score)}) over {graded} episodes.{missing}"


def _player(name: str, results: EvaluationResults, parts: Sequence[str]) -> dict[str, Any]:
    row = results.players[name]
    cells = [_cell(part, row[part]) if part in row else {} for part in parts]
    return {"name": visible(name), "main": not any(cell.cell.baseline for cell in row.values()), "cells": cells}


def _cell(part: str, summary: EvalSummary) -> dict[str, Any]:
    return {
        "part": visible(part),
        "problems": f"{summary.problems:,}" + (f", {summary.ungraded:,} ungraded" if summary.ungraded else ""),
        "accuracy": percent(summary.accuracy),
        "interval": interval(summary.accuracy),
        "tokens": f"{summary.tokens_per_document:,.0f}",
        "cost": tokens_in_words(summary.tokens_per_correct),
        "turns": f"{summary.turns_per_document:.1f}",
        "costs": {name: cost_text(value) for name, value in summary.costs.items()},
        "outcomes": counted_outcomes(summary.outcomes),
    }


def tokens_in_words(count: float | None) -> str:
    """A number of tokens; a dash for None.

    >>> tokens_in_words(1234.4), tokens_in_words(None)
    ('1,234', '–')
    """
    return "–" if count is None else f"{count:,.0f}"


def percent(score: Score) -> str:
    return "–" if score.mean is None else f"{score.mean:.1%}"


def interval(score: Score) -> str:
    return "" if score.low is None or score.high is None else f"{100 * score.low:.1f}–{score.high:.1%}"


def _shown_sample(sample: Sample) -> dict[str, str]:
    kind, mark = "partly", f"graded {sample.value or 0:.0%}"
    if sample.value is None:
        kind, mark = "ungraded", f"no grade: {sample.reason or sample.outcome}"
    elif sample.value >= 1:
        kind, mark = "right", ""
    elif sample.value <= 0:
        kind, mark = "wrong", "marked wrong"
    return {
        "kind": kind,
        "mark": visible(mark),
        "question": visible(sample.question),
        "memory": visible(sample.memory or "–"),
        "answer": visible(unboxed(sample.answer)),
        "gold": visible(", ".join(sample.answers)),
    }


# ---- The report of a training --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToldEpisode:
    question: str
    memories: Sequence[str]
    """In order; one that stayed for several turns, once."""
    answer: str
    gold: str
    value: float | None

    @property
    def grade(self) -> str:
        return "no grade" if self.value is None else f"reward {self.value:.2f}"


@dataclass(frozen=True, slots=True)
class TrainingResults:
    """Content of a training's report."""

    title: str
    gain: str
    """One sentence on the measured gain."""
    facts: Sequence[tuple[str, str]]
    rows: Sequence[Mapping[str, Any]]
    """[steps] lines of metrics.jsonl that have a reward."""
    sizes: Sequence[int]
    """[steps] chunks of the training documents."""
    episodes: Sequence[ToldEpisode]
    next_steps: Sequence[str]
    """Commands."""
    config: str
    stories: Sequence[ToldStory] = ()
    """A wrong and a right episode, memory by memory."""
    look: str = ""


def write_training_report(folder: Path, results: TrainingResults) -> None:
    """Write report.html and plots/*.png into `folder`."""
    figures = training_plots([float(row["reward/mean"]) for row in results.rows], results.sizes, results.rows)
    text = page(
        "training.html.j2",
        title=results.title,
        lead=results.gain,
        facts=[(name, visible(value)) for name, value in results.facts],
        figures=embedded(figures),
        stories=results.stories,
        legend=LEGEND,
        look=results.look,
        next_steps=[visible(line) for line in results.next_steps],
        config=visible(results.config),
    )
    write_page(folder, text, figures)


def training_plots(
    rewards: Sequence[float], sizes: Sequence[int], rows: Sequence[Mapping[str, Any]], words: AxisWords = DOCUMENTS
) -> list[dict[str, Any]]:
    """Figures of a training; `rewards`, `sizes`: [steps] mean reward, size of the problems; `rows`: metrics."""
    if not rewards:
        return []
    from palimpsest.report.plots import reward_figure, training_figures  # matplotlib takes a second to import

    caption = (
        "Reward over training. Each step samples a batch of episodes. Thin line: mean reward; bold line: running mean."
    )
    if len(set(sizes)) > 1:
        caption = f"{caption} {words.bands}"
    image = reward_figure(rewards, sizes, words=words)
    reward = {"name": "reward", "png": image, "caption": caption, "alt": "mean reward over training steps"}
    return [reward, *training_figures(rows)]
