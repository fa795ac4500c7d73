"""Displays of progress: whatever the work, one line that changes, with elapsed time and ETA.

A terminal, a log and a notebook differ in how they show that line, and in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from palimpsest.progress.overall import Overall
from palimpsest.progress.progress import Progress, Stage, StepDisplay, Tick
from palimpsest.progress.steps import summary_line


class Line(Protocol):
    """Shows an `Overall`."""

    def begin(self) -> None:
        """A stage begins."""
        ...

    def show(self) -> None:
        """Something has moved."""
        ...

    def message(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None:
        """The work is over."""
        ...


class Display(ABC):
    """Shows progress on lines of its own kind."""

    def __init__(self) -> None:
        self._line: Line | None = None

    @abstractmethod
    def open_line(self, overall: Overall) -> Line:
        """A line for some work that begins."""

    @abstractmethod
    def print(self, text: str) -> None:
        """A line that stays, while no work is shown."""

    def message(self, text: str) -> None:
        """A line that stays."""
        if self._line is not None:
            self._line.message(text)
        else:
            self.print(text)

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        """Work of several stages as one line."""
        overall = Overall(stages)
        line = self._line = self.open_line(overall)
        try:
            yield _Staged(overall, line)
        finally:
            self._close()

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        """Work of equal parts."""
        with self.stages([Stage(label, total)]) as alone, alone.count(label, total, done=done) as tick:
            yield tick

    def steps(self, total: int) -> StepDisplay:
        """The steps of a run."""
        overall = Overall([Stage("steps", total)])
        self._line = self.open_line(overall)
        return _Steps(overall, self._line, total, self)

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Staged:
    """The stages of some work, each of which is the next `count` or `steps`."""

    def __init__(self, overall: Overall, line: Line) -> None:
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
        yield self  # what is shown already is the plan


class _Steps:
    def __init__(self, overall: Overall, line: Line, total: int, owner: Display | None = None) -> None:
        overall.begin("steps", total)
        line.begin()
        self._overall, self._line, self._owner = overall, line, owner
        self._begun = False

    def resumed(self, step: int) -> None:
        self._overall.moved(step, before=True)
        self._begun = True
        self._line.begin()

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        self._first(step)
        self._overall.note, self._overall.inner = summary_line(metrics, timings), ""
        self._overall.moved(step)
        self._line.show()

    def progress(self, stage: str, done: int, total: int) -> None:
        self._overall.inner = f"{stage} {done}/{total}"

    def message(self, text: str) -> None:
        self._line.message(text)

    def close(self) -> None:
        if self._owner is not None:
            self._owner._close()

    def _first(self, step: int) -> None:
        """What lies before the first step was done by another process."""
        if not self._begun:
            self._overall.moved(step - 1, before=True)
            self._begun = True
