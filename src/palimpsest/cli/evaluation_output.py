"""An evaluation as a table, and what is to be known of its figures."""

from __future__ import annotations

from collections.abc import Callable

import typer
from rich.table import Table

from palimpsest.app.evaluate.baselines import READING, WHOLE_DOCUMENT
from palimpsest.app.evaluate.evaluation_result import Evaluation, EvaluationRow
from palimpsest.cli.output import interval, percent, stdout, table
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY
from palimpsest.progress.displays import Terminal
from palimpsest.report.page import REPORT
from palimpsest.text.display_text import printable

Cell = Callable[[EvaluationRow], str | None]


def _share(name: str) -> Cell:
    return lambda row: _percent(row.summary.measures.get(name))


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _metric(name: str) -> Cell:
    return lambda row: _percent(row.summary.metrics.get(name))


def _invented(row: EvaluationRow) -> str | None:
    copied = row.summary.measures.get("copy_fidelity")
    return None if copied is None else percent(1.0 - copied)


def _name(row: EvaluationRow) -> str:
    if row.baseline is None:
        return row.summary.name
    fewer = row.baseline == WHOLE_DOCUMENT and row.summary.problems < row.set_problems
    return f"baseline: {row.summary.name}" + (f" ({row.summary.problems} of {row.set_problems} fit)" if fewer else "")


def _tokens_per_correct(row: EvaluationRow) -> str | None:
    tokens = row.summary.tokens_per_correct
    return None if tokens is None else f"{tokens:,.0f}"


FIGURES: dict[str, Cell] = {
    "": _name,
    "problems": lambda row: str(row.summary.problems),
    "cut": lambda row: str(row.summary.documents_cut),
    "accuracy": lambda row: percent(row.summary.accuracy.mean),
    "95%": lambda row: interval(row.summary.accuracy),
    "em": _metric("em"),
    "f1": _metric("f1"),
    "sub-em": _metric("sub_em"),
    "evidence kept": _share("evidence_retention"),
    "turns": lambda row: f"{row.summary.turns_per_document:.1f}",
    "tokens/document": lambda row: f"{row.summary.tokens_per_document:,.0f}",
    "tokens/correct": _tokens_per_correct,
}
WHERE_KNOWN: dict[str, Cell] = {
    "pass@k": lambda row: _percent(row.summary.pass_at.get(str(row.summary.samples))),
    "disagree": lambda row: _percent(row.summary.disagreement),
}
"""Columns that stand in the table if a row has them."""
MEMORY: dict[str, Cell] = {
    "evidence kept": _share("evidence_retention"),
    "invented": _invented,
    "kept out": _share("dropped_share"),
    "overwritten": _share("overwrite_rate"),
    "recall hits": _share("recall_hit_rate"),
}
"""A table of their own."""


def show_evaluation(evaluation: Evaluation) -> None:
    """Print it. Raises Exit where nothing could be graded."""
    console, rows = stdout(160), [*evaluation.rows, *evaluation.baseline_rows]
    known = {name: cell for name, cell in WHERE_KNOWN.items() if any(cell(row) for row in rows)}
    console.print(_table(evaluation.title, {**FIGURES, **known}, rows))
    remembering = [
        row for row in evaluation.rows if any(_share(name)(row) for name in ("overwrite_rate", "recall_hit_rate"))
    ]
    if remembering:
        measured = {name: cell for name, cell in MEMORY.items() if any(cell(row) for row in remembering)}
        console.print(_table("what the memory held", {"": _name, **measured}, remembering))
    if evaluation.measures_reading:
        console.print(printable(f"{READING}: {', '.join(evaluation.measures_reading)}"), markup=False)
    if evaluation.out is not None:
        written = [evaluation.out / name for name in (SAMPLES, SUMMARY, EPISODES, REPORT)]
        Terminal().message(", ".join(str(path) for path in written if path.exists()))
    for line in evaluation.told:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    _tell_ungraded(evaluation)


def _table(title: str, columns: dict[str, Cell], rows: list[EvaluationRow]) -> Table:
    return table(title, list(columns), [[cell(row) or "–" for cell in columns.values()] for row in rows])


def _tell_ungraded(evaluation: Evaluation) -> None:
    console = stdout()
    without_gold = sum(sample.without_gold for sample in evaluation.samples)
    if without_gold:
        console.print(f"{without_gold} questions have no gold in the data: played, not graded, not in the accuracy")
    lost = sum(not sample.is_final for sample in evaluation.samples)
    if lost and evaluation.ungraded == len(evaluation):
        typer.echo(f"error: nothing could be graded, most often because: {evaluation.commonest_reason}", err=True)
        raise typer.Exit(1)
    lost += sum(not sample.is_final for sample in evaluation.baseline_samples)
    if lost:
        console.print(
            f"{lost} episodes have no grade and are not in the accuracy, most often because: "
            f"{evaluation.commonest_reason}; run again to play them again"
        )
