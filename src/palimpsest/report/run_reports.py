"""Reports of one evaluation and of one training run.

The report of a training has the gain, reward over steps, three episodes, and what to do next.

Guaranteed: as in every report (quickstart_report.py), it loads no external resource, text of models is escaped, and
equal results give equal bytes.
Not covered: episodes that were not recorded (`evaluation.record`); the report leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.evaluation.summary import EvalSummary, Score
from palimpsest.report.axis_labels import DOCUMENTS
from palimpsest.report.page import LEGEND, PlacedRow, ToldStory, embedded, evidence_table, page, write_page
from palimpsest.report.plots import reward_figure, training_figures
from palimpsest.report.quickstart_report import tokens_in_words
from palimpsest.text.display_text import visible


@dataclass(frozen=True, slots=True)
class EvaluationResults:
    """Everything the report of an evaluation shows."""

    title: str
    accuracy: Score
    """Of the agent, over everything that is graded."""
    facts: Sequence[tuple[str, str]]
    rows: Mapping[str, EvalSummary]
    """The agent's figures from short to long, then the baselines', by name."""
    config: str
    """The resolved configuration as YAML."""
    notes: Sequence[str] = ()
    """What is to be known of the figures."""
    stories: Sequence[ToldStory] = ()
    """An episode that went wrong, and the success beside it where there is one, told memory by memory."""
    look: str = ""
    """The command that shows what was recorded."""


def write_evaluation_report(folder: Path, results: EvaluationResults) -> None:
    """Write report.html into `folder`."""
    text = page(
        "evaluation.html.j2",
        title=visible(results.title),
        lead=lead(results),
        facts=[(name, visible(value)) for name, value in results.facts],
        rows=[_row(name, summary) for name, summary in results.rows.items()],
        evidence=evidence_table([_placed(name, summary) for name, summary in results.rows.items()]),
        notes=[visible(note) for note in results.notes],
        stories=results.stories,
        legend=LEGEND,
        look=results.look,
        config=visible(results.config),
    )
    write_page(folder, text, ())


def lead(results: EvaluationResults) -> str:
    """The accuracy over everything, in a sentence of measured figures."""
    agents = [row for row in results.rows.values() if not row.cell.baseline]
    graded, ungraded = (sum(getattr(row, name) for row in agents) for name in ("graded", "ungraded"))
    missing = f" Without a grade, and in no accuracy: {ungraded} of {graded + ungraded}." if ungraded else ""
    if results.accuracy.mean is None:
        return f"No episode was graded.{missing}"
    score = results.accuracy
    return f"Accuracy {_percent(score)} (95% interval {_interval(score)}) over {graded} episodes.{missing}"


def _row(name: str, summary: EvalSummary) -> dict[str, Any]:
    return {
        "name": visible(name),
        "main": not summary.cell.baseline,
        "problems": f"{summary.problems:,}" + (f", {summary.ungraded:,} ungraded" if summary.ungraded else ""),
        "accuracy": _percent(summary.accuracy),
        "interval": _interval(summary.accuracy),
        "tokens": f"{summary.tokens_per_document:,.0f}",
        "cost": tokens_in_words(summary.tokens_per_correct),
        "turns": f"{summary.turns_per_document:.1f}",
        "outcomes": _outcomes(summary.outcomes),
    }


def _placed(name: str, summary: EvalSummary) -> PlacedRow:
    label = f"baseline: {name}" if summary.cell.baseline else name
    return PlacedRow(label, not summary.cell.baseline, summary.by_evidence, summary.by_last_evidence)


def _outcomes(counts: Mapping[str, int]) -> str:
    """
    >>> _outcomes({"answered": 60, "turn_limit": 4})
    '60 answered, 4 turn limit'
    """
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in ordered)


def _percent(score: Score) -> str:
    return "–" if score.mean is None else f"{score.mean:.1%}"


def _interval(score: Score) -> str:
    return "" if score.low is None or score.high is None else f"{score.low:.1%} to {score.high:.1%}"


# ---- The report of a training --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToldEpisode:
    """An episode in words."""

    question: str
    memories: Sequence[str]
    """After each turn that wrote one."""
    answer: str
    gold: str
    value: float | None

    @property
    def grade(self) -> str:
        """In words."""
        return "no grade" if self.value is None else f"reward {self.value:.2f}"


@dataclass(frozen=True, slots=True)
class TrainingResults:
    """Everything the report of a training shows."""

    title: str
    gain: str
    """What was gained, in a sentence of measured figures."""
    facts: Sequence[tuple[str, str]]
    rows: Sequence[Mapping[str, Any]]
    """[steps] lines of metrics.jsonl that have a reward."""
    sizes: Sequence[int]
    """[steps] chunks of the documents trained on."""
    episodes: Sequence[ToldEpisode]
    next_steps: Sequence[str]
    """Commands."""
    config: str
    stories: Sequence[ToldStory] = ()
    """A failure and the success beside it, told memory by memory."""
    look: str = ""
    """The command that shows every episode."""

    @property
    def episodes_note(self) -> str:
        """Where the episodes come from."""
        return f"Of the last recorded step ({self.rows[-1]['step']}), sampled as in training." if self.rows else ""


SHOWN_MEMORIES = 12


def write_training_report(folder: Path, results: TrainingResults) -> None:
    """Write report.html and plots/*.png into `folder`."""
    figures = _figures(results)
    text = page(
        "training.html.j2",
        title=results.title,
        lead=results.gain,
        facts=[(name, visible(value)) for name, value in results.facts],
        figures=embedded(figures),
        episodes=[_shown(episode) for episode in results.episodes],
        episodes_note=results.episodes_note,
        stories=results.stories,
        legend=LEGEND,
        look=results.look,
        next_steps=[visible(line) for line in results.next_steps],
        config=visible(results.config),
    )
    write_page(folder, text, figures)


def _figures(results: TrainingResults) -> list[dict[str, Any]]:
    rewards = [float(row["reward/mean"]) for row in results.rows]
    if not rewards:
        return []
    caption = "Reward over training. Thin: the mean of each step's episodes, bold: its running mean."
    if len(set(results.sizes)) > 1:
        caption = f"{caption} {DOCUMENTS.bands}"
    image = reward_figure(rewards, results.sizes, words=DOCUMENTS)
    reward = {"name": "reward", "png": image, "caption": caption, "alt": "mean reward over training steps"}
    return [reward, *training_figures(results.rows)]


def _shown(episode: ToldEpisode) -> dict[str, Any]:
    kinds = {None: "ungraded", 0.0: "wrong", 1.0: "right"}
    left_out = len(episode.memories) - SHOWN_MEMORIES
    memories = [
        {"after": number, "text": visible(text or "–")}
        for number, text in enumerate(episode.memories, 1)
        if number > left_out
    ]
    return {
        "kind": kinds.get(episode.value, "partly"),
        "question": visible(episode.question),
        "memories": memories,
        "answer": visible(episode.answer or "–"),
        "gold": visible(episode.gold),
        "grade": episode.grade,
    }
