"""What commands print: tables, figures of a benchmark.

Guaranteed: text of models and documents is escaped before it reaches a terminal.
"""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from palimpsest.evaluation.summary import Score
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.bench.measurements import Measured


def stdout(width: int = 120) -> Console:
    """Console for results; wide enough for a table when piped."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(
        title=Text(printable(title)),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        made.add_column(Text(printable(column)), justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def percent(value: float | None) -> str:
    """One decimal, or a dash for what is not known."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval(score: Score) -> str:
    """Both ends of a 95% interval in percent."""
    return "–" if score.low is None or score.high is None else f"{100 * score.low:.0f}–{100 * score.high:.0f}"


# ---- How the figures of a benchmark are printed --------------------------------------------------------------


def show_figures(name: str, figures: dict[str, Any], json: bool) -> None:
    """One JSON object, or a table of the same figures."""
    if json:
        print(json_module.dumps(figures))
        return
    rows = [[key, _shown(value)] for key, value in figures.items()]
    stdout().print(table(f"bench {name}", ["", "value"], rows))


def show_measured(name: str, measured: Measured) -> None:
    """A benchmark of several: its table, or why it has none, and which peers were missing."""
    if measured.figures is None:
        stdout().print(f"bench {name}: {measured.status}: {measured.notes[0]}\n", markup=False, soft_wrap=True)
        return
    show_figures(name, measured.figures, json=False)
    for line in measured.notes:
        stdout().print(line, markup=False, soft_wrap=True)
    print()


def _shown(value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, list):
        return "\n".join(_row(row) for row in value)
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
    return str(value)


def _row(row: Any) -> str:
    """A row of numbers, or of named ones."""
    if isinstance(row, dict):
        return ", ".join(f"{name} {_shown(value)}" for name, value in row.items())
    return " ".join(f"{number:,.4g}" for number in row)
