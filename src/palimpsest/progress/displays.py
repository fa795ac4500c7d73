"""Progress on stderr: a line updated in place on a terminal, occasional plain lines otherwise.

Terminal, log and notebook differ only in how they show that line.

Guaranteed: a plain line appears only after progress, and at most every 10 seconds except for the first and last part
of a stage; text of models and documents is never parsed as markup, and terminal control characters in it are escaped.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskProgressColumn
from rich.progress import Progress as Bars
from rich.text import Text

from palimpsest.progress.reporter import Overall, Progress, Stage, StepDisplay, Tick, summary_line


class DisplayLine(Protocol):
    def begin(self) -> None: ...

    def show(self) -> None: ...

    def inside(self) -> None:
        """A long part has moved on."""
        ...

    def message(self, text: str) -> None:
        """Print a permanent line."""
        ...

    def close(self) -> None:
        """The work has ended."""
        ...


class Display(ABC):
    """Base class of displays; subclasses open lines."""

    def __init__(self) -> None:
        self._line: DisplayLine | None = None

    @abstractmethod
    def open_line(self, overall: Overall) -> DisplayLine:
        """Open a line for new work."""

    @abstractmethod
    def print(self, text: str) -> None:
        """Print a permanent line while no work is shown."""

    def message(self, text: str) -> None:
        if self._line is not None:
            self._line.message(text)
        else:
            self.print(text)

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        """Show several stages as one line."""
        overall = Overall(stages)
        line = self._line = self.open_line(overall)
        try:
            yield _Staged(overall, line)
        finally:
            self._close()

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        with self.stages([Stage(label, total)]) as alone, alone.count(label, total, done=done) as tick:
            yield tick

    def steps(self, total: int) -> StepDisplay:
        overall = Overall([Stage("steps", total)])
        self._line = self.open_line(overall)
        return _Steps(overall, self._line, total, self)

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Staged:
    def __init__(self, overall: Overall, line: DisplayLine) -> None:
        self._overall, self._line = overall, line

    def message(self, text: str) -> None:
        self._line.message(text)

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        self._overall.begin(label, total, done)
        self._line.begin()
        counted = done

        def tick(done: int = 1, *, note: str | None = None) -> None:
            nonlocal counted
            counted += done
            self._overall.moved(counted)
            if note is not None:
                self._overall.note = note
            self._line.show()

        yield tick

    def steps(self, total: int) -> StepDisplay:
        return _Steps(self._overall, self._line, total)

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        yield self  # the outer plan is shown


class _Steps:
    def __init__(self, overall: Overall, line: DisplayLine, total: int, owner: Display | None = None) -> None:
        overall.begin("steps", total)
        line.begin()
        self._overall, self._line, self._owner = overall, line, owner
        self._started = False

    def resumed(self, step: int) -> None:
        self._overall.moved(step, before=True)
        self._started = True
        self._line.begin()

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        self._first(step)
        self._overall.note, self._overall.inner = summary_line(metrics, timings), ""
        self._overall.moved(step)
        self._line.show()

    def progress(self, stage: str, done: int, total: int) -> None:
        self._overall.inner = f"{stage} {done}/{total}"
        self._line.inside()

    def message(self, text: str) -> None:
        self._line.message(text)

    def close(self) -> None:
        if self._owner is not None:
            self._owner._close()

    def _first(self, step: int) -> None:
        """Count steps before the first as done by another process."""
        if not self._started:
            self._overall.moved(step - 1, before=True)
            self._started = True


# ---- Progress on stderr --------------------------------------------------------------------------------------


_EVERY_S = 10.0  # seconds between plain lines
_LONG_S = 30.0  # seconds without one, after which a line shows progress within a step


class Terminal(Display):
    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        """`live`: update in place; None: only if `stream` (default stderr) is a terminal."""
        super().__init__()
        self._stream, self._live = stream, live

    def print(self, text: str) -> None:
        Console(file=self._stream or sys.stderr).print(_escaped(text), markup=False, highlight=False, soft_wrap=True)

    def open_line(self, overall: Overall) -> DisplayLine:
        """In place on a terminal, plain lines otherwise."""
        stream = self._stream or sys.stderr
        live = stream.isatty() if self._live is None else self._live
        return _TerminalBar(overall, stream) if live else _Log(overall, stream)


def _escaped(text: str) -> str:
    """`text` with terminal control characters escaped, newlines excepted."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


class _Words(ProgressColumn):
    """Text of the progress; its clock runs between updates."""

    def __init__(self, overall: Overall) -> None:
        super().__init__()
        self._overall = overall

    def render(self, task: Task) -> Text:
        return Text(self._overall.words(), no_wrap=True, overflow="ellipsis")


class _TerminalBar:
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

    def inside(self) -> None:
        """The bar refreshes itself."""

    def message(self, text: str) -> None:
        self._bars.console.print(_escaped(text), markup=False, highlight=False)

    def close(self) -> None:
        self.show()
        self._bars.stop()


class _Log:
    def __init__(self, overall: Overall, stream: TextIO) -> None:
        self._overall, self._stream = overall, stream
        self._position = overall.position
        self._printed, self._moved = -_EVERY_S, time.monotonic()

    def begin(self) -> None:
        self._moved = time.monotonic()

    def show(self) -> None:
        new_stage = self._overall.position[0] != self._position[0]
        if new_stage or self._overall.at_an_end or time.monotonic() - self._printed >= _EVERY_S:
            self._print()

    def inside(self) -> None:
        if time.monotonic() - self._moved >= _LONG_S:
            self._write()

    def message(self, text: str) -> None:
        print(_escaped(text), file=self._stream, flush=True)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._overall.position == self._position or self._overall.position[0] < 0:
            return
        self._position, self._printed = self._overall.position, time.monotonic()
        self._write()

    def _write(self) -> None:
        self._moved = time.monotonic()
        print(f"[{self._overall.fraction:4.0%}] {self._overall.words()}", file=self._stream, flush=True)
