"""What commands print: tables.

Guaranteed: text of models and documents is escaped before it reaches a terminal.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from palimpsest.evaluation.summary import Score
from palimpsest.text.display_text import printable


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
