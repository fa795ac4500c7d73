"""What commands print: tables on stdout, progress on stderr.

Guaranteed: text of models and documents is escaped before it reaches a terminal; without a terminal, progress is a
plain line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

_EVERY_S = 10.0  # seconds between plain progress lines


class Tick(Protocol):
    def __call__(self, done: int = 1, *, note: str | None = None) -> None:
        """Count `done` more; `note` replaces the text behind the bar."""
        ...


def stdout() -> Console:
    """Console for results; wide enough for a table when piped."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def note(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Tick]:
    """A bar of `total` steps on a terminal, plain lines elsewhere."""
    with _bar(label, total) if sys.stderr.isatty() else _lines(label, total) as tick:
        yield tick


@contextmanager
def _bar(label: str, total: int) -> Iterator[Tick]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")

        def tick(done: int = 1, *, note: str | None = None) -> None:
            bar.advance(task, done)
            if note is not None:
                bar.update(task, note=note)

        yield tick


@contextmanager
def _lines(label: str, total: int) -> Iterator[Tick]:
    seen = 0
    printed = time.monotonic()

    def tick(done: int = 1, *, note: str | None = None) -> None:
        nonlocal seen, printed
        seen += done
        if seen == total or time.monotonic() - printed > _EVERY_S:
            printed = time.monotonic()
            print(f"{label} {seen}/{total}{'  ' + note if note else ''}", file=sys.stderr, flush=True)

    yield tick


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        made.add_row(*row)
    return made
