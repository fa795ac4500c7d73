"""Progress in place on a terminal or in a notebook, occasional plain lines otherwise; Rich keeps the counts.

    training 120/360 steps  elapsed 0:02:10  ETA 0:04:20  reward 0.641  std 0.480  chunks 2

Guaranteed: times are those of the stage; earlier parts (of a resumed run) count as done but not as speed. A plain line
appears only after progress, and at most every 10 seconds except for the first and last part of a stage. Messages are
never parsed as markup, and terminal control characters in them are escaped.
Not covered: an ETA over several stages.
"""

from __future__ import annotations

import html
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskProgressColumn
from rich.progress import Progress as Bars
from rich.text import Text

from palimpsest.progress.reporter import Logger, Progress, Stage, Tick, summary_line

Event = Literal["start", "part", "inside"]
"""A stage started, parts of it are done, or progress within a part."""


def _words(task: Task) -> str:
    elapsed = task.finished_time if task.finished else task.elapsed
    elapsed, done, total = elapsed or 0.0, task.completed, task.total or 0
    here = done - task.fields["before"]
    left = "?" if not here and done < total else _clock(elapsed * (total - done) / max(here, 1))
    counted = (
        f"{task.description} {done:,.0f}/{total:,.0f} {task.fields['unit']}".strip() if total else task.description
    )
    times = f"elapsed {_clock(elapsed)}  ETA {left}"
    return "  ".join(part for part in (counted, times, task.fields["note"], task.fields["inner"]) if part)


def _clock(seconds: float) -> str:
    """H:MM:SS.

    >>> _clock(190)
    '0:03:10'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _escaped(text: str) -> str:
    """`text` with terminal control characters escaped, newlines excepted."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


class _Console(Console):
    """A broken pipe is an error of the display, which ends no run; Rich's console would exit. `:Dog:` is a class."""

    def __init__(self, *, file: TextIO) -> None:
        super().__init__(file=file, emoji=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True


class _WordsColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_words(task), no_wrap=True, overflow="ellipsis")


class Display(ABC):
    """Base class of displays: a Rich task per stage, which subclasses show."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._bars: Bars | None = None
        self._plan: Iterator[Stage] = iter(())

    @abstractmethod
    def open(self, bars: Bars) -> None:
        """Start to show new work."""

    @abstractmethod
    def show(self, task: Task, event: Event) -> None:
        """Show a stage after an event."""

    @abstractmethod
    def close(self, bars: Bars) -> None:
        """End of the work."""

    @abstractmethod
    def message(self, text: str) -> None:
        """Print a permanent line."""

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        """Show the stages of one work; within another work, its plan stays."""
        opened = self._open(stages)
        try:
            yield self
        finally:
            if opened:
                self._close()

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        with self.stages([Stage(label, total)]):
            yield _Counter(self, label, total, done)

    def steps(self, total: int) -> Logger:
        opened = self._open([Stage("steps", total)])
        return _Counter(self, "steps", total, opened=opened)

    def _open(self, stages: Sequence[Stage]) -> bool:
        """Open new work and return True, unless work is shown already."""
        if self._bars is not None:
            return False
        columns = (BarColumn(bar_width=16), TaskProgressColumn(), _WordsColumn())
        console = _Console(file=self._stream or sys.stderr)
        self._bars = Bars(*columns, console=console, refresh_per_second=4, get_time=time.monotonic)
        self._plan = iter(stages)
        self.open(self._bars)
        return True

    def _close(self) -> None:
        if self._bars is not None:
            self.close(self._bars)
            self._bars = None


class _Counter(Logger):
    """`Tick` and `Logger` of one stage."""

    def __init__(self, display: Display, name: str, total: int, done: int = 0, *, opened: bool = False) -> None:
        """`opened`: closing this ends the display's work."""
        bars = display._bars
        assert bars is not None
        planned = next(display._plan, Stage(name, total))
        fields: dict[str, Any] = {"unit": planned.unit, "note": "", "inner": "", "before": done}
        bars.add_task(planned.name, total=total, completed=done, **fields)
        self._task = bars.tasks[-1]
        self._display, self._bars, self._opened = display, bars, opened
        display.show(self._task, "start")

    def __call__(self, done: int = 1, *, note: str | None = None) -> None:
        self._move(self._task.completed + done, **({} if note is None else {"note": note}))

    def resumed(self, step: int) -> None:
        self._bars.update(self._task.id, completed=step, before=step)
        self._display.show(self._task, "start")

    def log(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        if not self._task.completed:
            self._bars.update(self._task.id, before=step - 1)  # another process did them
        self._move(step, note=summary_line(metrics, timings), inner="")

    def progress(self, stage: str, done: int, total: int) -> None:
        self._bars.update(self._task.id, inner=f"{stage} {done}/{total}")
        self._display.show(self._task, "inside")

    def message(self, text: str) -> None:
        self._display.message(text)

    def close(self) -> None:
        if self._opened:
            self._display._close()

    def _move(self, done: float, **fields: Any) -> None:
        self._bars.update(self._task.id, completed=min(done, self._task.total or 0), **fields)
        self._display.show(self._task, "part")


# ---- Terminal and log ----------------------------------------------------------------------------------------


_EVERY_S = 10.0  # seconds between plain lines
_LONG_S = 30.0  # seconds without one, after which a line shows progress within a step


class Terminal(Display):
    """Bars on a terminal, plain lines elsewhere."""

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        """`live`: update in place; None: only if `stream` (default stderr) is a terminal."""
        super().__init__(stream)
        self._live = live
        self._in_place = False
        self._shown: tuple[int, float] = (-1, 0.0)  # (id of the task, its parts) of the last plain line
        self._printed = self._moved = 0.0

    def open(self, bars: Bars) -> None:
        self._in_place = (self._stream or sys.stderr).isatty() if self._live is None else self._live
        self._shown, self._printed = (-1, 0.0), -_EVERY_S
        if self._in_place:
            bars.start()

    def message(self, text: str) -> None:
        console = self._bars.console if self._bars is not None else _Console(file=self._stream or sys.stderr)
        console.print(_escaped(text), markup=False, highlight=False, soft_wrap=True)

    def show(self, task: Task, event: Event) -> None:
        """Bars refresh themselves."""
        now = time.monotonic()
        if self._in_place:
            return
        if event == "start":
            self._moved = now
        elif event == "inside":
            if now - self._moved >= _LONG_S:
                self._write(task)
        elif self._shown[0] != task.id or task.finished or now - self._printed >= _EVERY_S:
            self._line(task)

    def close(self, bars: Bars) -> None:
        if self._in_place:
            bars.stop()
        elif bars.tasks:
            self._line(bars.tasks[-1])

    def _line(self, task: Task) -> None:
        if self._shown != (task.id, task.completed):
            self._shown, self._printed = (task.id, task.completed), time.monotonic()
            self._write(task)

    def _write(self, task: Task) -> None:
        self._moved = time.monotonic()
        self.message(f"[{int(task.percentage):3}%] {_words(task)}")


# ---- Notebook ------------------------------------------------------------------------------------------------


_UPDATE_S = 0.2  # seconds between two updates of a bar


class Notebook(Display):
    """A bar below the cell of a Jupyter notebook, updated in place; plain text without HTML. Rich needs ipywidgets for
    that."""

    def open(self, bars: Bars) -> None:
        self._output: Any = None

    def message(self, text: str) -> None:
        print(_escaped(text))

    def show(self, task: Task, event: Event) -> None:
        """Update the bar, at most every `_UPDATE_S` seconds unless the stage starts or ends."""
        if event == "start" or task.finished or time.monotonic() - self._updated > _UPDATE_S:
            self._update(task)

    def close(self, bars: Bars) -> None:
        if bars.tasks:
            self._update(bars.tasks[-1])

    def _update(self, task: Task) -> None:
        from IPython.display import display  # only kernels have it

        self._updated, text = time.monotonic(), _words(task)
        bar = f'<progress value="{task.percentage:.2f}" max="100"></progress>'
        bundle = {"text/plain": text, "text/html": f"{bar} <code>{html.escape(text)}</code>"}
        if self._output is None:
            self._output = display(bundle, raw=True, display_id=True)
        else:
            self._output.update(bundle, raw=True)
