"""Progress on stderr: bars on a terminal, a plain line now and then elsewhere.

Guaranteed: text of models and documents is shown as it is, never read as markup.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from palimpsest.progress.progress import StepDisplay, Tick
from palimpsest.progress.steps import StepLines

_EVERY_S = 10.0  # seconds between plain lines


class Terminal:
    """Shows progress on stderr."""

    def message(self, text: str) -> None:
        """A line on stderr."""
        Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def count(self, label: str, total: int) -> Iterator[Tick]:
        """A bar on a terminal, plain lines elsewhere."""
        with _bar(label, total) if sys.stderr.isatty() else _lines(label, total) as tick:
            yield tick

    def steps(self, total: int) -> StepDisplay:
        """A bar on a terminal, a line a step elsewhere."""
        return StepLines(total_steps=total)


@contextmanager
def _bar(label: str, total: int) -> Iterator[Tick]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bars(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")

        def tick(done: int = 1, *, note: str | None = None) -> None:
            bar.advance(task, done)
            if note is not None:
                bar.update(task, note=note)

        yield tick


@contextmanager
def _lines(label: str, total: int) -> Iterator[Tick]:
    counted = 0
    printed = time.monotonic()

    def tick(done: int = 1, *, note: str | None = None) -> None:
        nonlocal counted, printed
        counted += done
        if counted == total or time.monotonic() - printed > _EVERY_S:
            printed = time.monotonic()
            print(f"{label} {counted}/{total}{'  ' + note if note else ''}", file=sys.stderr, flush=True)

    yield tick
