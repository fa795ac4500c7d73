"""An evaluation as a table, and what is to be known of its figures."""

from __future__ import annotations

from collections.abc import Callable

import typer
from rich.table import Table

from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.cli.output import interval, percent, stdout, table
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY
from palimpsest.evaluation.summary import EvalSummary
from palimpsest.progress.displays import Terminal
from palimpsest.report.page import REPORT
from palimpsest.text.display_text import printable

Column = Callable[[EvalSummary], str | None]


def _share(name: str) -> Column:
    return lambda row: _percent(row.measures.get(name))


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _metric(name: str) -> Column:
    return lambda row: _percent(row.metrics.get(name))


def _invented(row: EvalSummary) -> str | None:
    copied = row.measures.get("copy_fidelity")
    return None if copied is None else percent(1.0 - copied)


def _name(name: str, row: EvalSummary) -> str:
    if not row.cell.baseline:
        return name
    fewer = f" ({row.problems} of {row.part_problems} fit)" if row.part_problems else ""
    return f"baseline: {name}{fewer}"


def _tokens_per_correct(row: EvalSummary) -> str | None:
    return None if row.tokens_per_correct is None else f"{row.tokens_per_correct:,.0f}"


FIGURES: dict[str, Column] = {
    "problems": lambda row: str(row.problems),
    "cut": lambda row: str(row.documents_cut),
    "accuracy": lambda row: percent(row.accuracy.mean),
    "95%": lambda row: interval(row.accuracy),
    "em": _metric("em"),
    "f1": _metric("f1"),
    "sub-em": _metric("sub_em"),
    "evidence kept": _share("evidence_retention"),
    "turns": lambda row: f"{row.turns_per_document:.1f}",
    "tokens/document": lambda row: f"{row.tokens_per_document:,.0f}",
    "tokens/correct": _tokens_per_correct,
}
OPTIONAL_FIGURES: dict[str, Column] = {
    "pass@k": lambda row: _percent(row.pass_at.get(str(row.samples))),
    "disagree": lambda row: _percent(row.disagreement),
}
"""Columns that stand in the table if a row has them."""
MEMORY: dict[str, Column] = {
    "evidence kept": _share("evidence_retention"),
    "invented": _invented,
    "kept out": _share("dropped_share"),
    "overwritten": _share("overwrite_rate"),
    "recall hits": _share("recall_hit_rate"),
}
"""A table of their own."""
_REMEMBERING = ("overwrite_rate", "recall_hit_rate")
"""Measures of policies that have a memory."""


def show_evaluation(evaluation: Evaluation) -> None:
    """Print it. Raises Exit where nothing could be graded."""
    console, rows = stdout(160), evaluation.rows
    extra = {name: column for name, column in OPTIONAL_FIGURES.items() if any(map(column, rows.values()))}
    console.print(_table(evaluation.title, {**FIGURES, **extra}, rows))
    remembering = {
        name: row
        for name, row in rows.items()
        if not row.cell.baseline and any(row.measures.get(rate) is not None for rate in _REMEMBERING)
    }
    if remembering:
        measured = {name: column for name, column in MEMORY.items() if any(map(column, remembering.values()))}
        console.print(_table("what the memory held", measured, remembering))
    if evaluation.out is not None:
        written = [evaluation.out / name for name in (SAMPLES, SUMMARY, EPISODES, REPORT)]
        Terminal().message(", ".join(str(path) for path in written if path.exists()))
    for line in evaluation.notes:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    _print_ungraded(evaluation)


def _table(title: str, columns: dict[str, Column], rows: dict[str, EvalSummary]) -> Table:
    cells = [[_name(name, row), *(column(row) or "–" for column in columns.values())] for name, row in rows.items()]
    return table(title, ["", *columns], cells)


def _print_ungraded(evaluation: Evaluation) -> None:
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
