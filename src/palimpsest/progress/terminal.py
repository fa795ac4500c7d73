"""Progress on stderr: on a terminal one line that changes in place, elsewhere a plain line now and then.

Guaranteed: a plain line is printed where something moved since the last one, and at most every ten seconds but for the
first and the last part of a stage; text of models and documents is never read as markup, and what would
steer a terminal in it is escaped.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskProgressColumn
from rich.progress import Progress as Bars
from rich.text import Text

from palimpsest.progress.display import Display, Line
from palimpsest.progress.overall import Overall

_EVERY_S = 10.0  # seconds between plain lines


class Terminal(Display):
    """Shows progress on stderr."""

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        """`live`: a line that changes in place; None: if `stream`, stderr unless given, is a terminal."""
        super().__init__()
        self._stream, self._live = stream, live

    def print(self, text: str) -> None:
        """A line."""
        Console(file=self._stream or sys.stderr).print(_escaped(text), markup=False, highlight=False, soft_wrap=True)

    def open_line(self, overall: Overall) -> Line:
        """In place on a terminal, plain lines elsewhere."""
        stream = self._stream or sys.stderr
        live = stream.isatty() if self._live is None else self._live
        return _Bar(overall, stream) if live else _Log(overall, stream)


def _escaped(text: str) -> str:
    """`text` with what would steer a terminal escaped; its lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


class _Words(ProgressColumn):
    """What is told of the work, its clock running while nothing moves."""

    def __init__(self, overall: Overall) -> None:
        super().__init__()
        self._overall = overall

    def render(self, task: Task) -> Text:
        return Text(self._overall.words(), no_wrap=True, overflow="ellipsis")


class _Bar:
    def __init__(self, overall: Overall, stream: TextIO) -> None:
        self._overall = overall
        columns = (BarColumn(bar_width=16), TaskProgressColumn(), _Words(overall))
        self._bars = Bars(*columns, console=Console(file=stream), refresh_per_second=4)
        self._task = self._bars.add_task("", total=1.0)
        self._bars.start()

    def begin(self) -> None:
        self.show()

    def show(self) -> None:
        self._bars.update(self._task, completed=self._overall.fraction)

    def message(self, text: str) -> None:
        self._bars.console.print(_escaped(text), markup=False, highlight=False)

    def close(self) -> None:
        self.show()
        self._bars.stop()


class _Log:
    def __init__(self, overall: Overall, stream: TextIO) -> None:
        self._overall, self._stream = overall, stream
        self._place = overall.place
        self._printed = -_EVERY_S

    def begin(self) -> None:
        """Nothing has moved yet."""

    def show(self) -> None:
        begun = self._overall.place[0] != self._place[0]
        if begun or self._overall.at_an_end or time.monotonic() - self._printed >= _EVERY_S:
            self._print()

    def message(self, text: str) -> None:
        print(_escaped(text), file=self._stream, flush=True)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._overall.place == self._place or self._overall.place[0] < 0:
            return
        self._place, self._printed = self._overall.place, time.monotonic()
        print(f"[{self._overall.fraction:4.0%}] {self._overall.words()}", file=self._stream, flush=True)
