"""What work tells whoever watches it. The application takes a `Progress`; it prints nothing itself.

Guaranteed: a display never changes what is computed. Not covered: two displays on one terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a longer work."""

    name: str
    parts: int
    """What is counted in it: steps, turns."""
    seconds_each: float = 0.0
    """What a part takes on the machine where the plan was measured; 0: not known."""


class Tick(Protocol):
    """Counts parts of some work."""

    def __call__(self, done: int = 1, *, note: str | None = None) -> None:
        """Count `done` more; `note` replaces the text behind the bar."""
        ...


class StepDisplay(Protocol):
    """Shows the optimiser steps of one run."""

    def resumed(self, step: int) -> None:
        """The steps up to `step` were done by another process."""
        ...

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Show a finished step."""
        ...

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show how far the present step is."""
        ...

    def message(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class Progress(Protocol):
    """Whoever watches some work."""

    def message(self, text: str) -> None:
        """A line that stays."""
        ...

    def count(self, label: str, total: int, *, done: int = 0) -> AbstractContextManager[Tick]:
        """Work of `total` equal parts, which begins now and ends with the context; `done` of them were done before."""
        ...

    def steps(self, total: int) -> StepDisplay:
        """A run of `total` steps, which begins now and ends when it is closed."""
        ...

    def stages(self, stages: Sequence[Stage]) -> AbstractContextManager[Progress]:
        """Work of several stages, shown as one: each `count` or `steps` of what it gives is the next of them."""
        ...


class Silent:
    """Nobody watches."""

    def message(self, text: str) -> None:
        """Nothing."""

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        """Counts for nobody."""
        yield _no_tick

    def steps(self, total: int) -> StepDisplay:
        """Shows nothing."""
        return _NoSteps()

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        """Shows nothing."""
        yield self


def _no_tick(done: int = 1, *, note: str | None = None) -> None:
    """Count for nobody."""


class _NoSteps:
    def resumed(self, step: int) -> None:
        """Nothing."""

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Nothing."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
