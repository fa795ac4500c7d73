"""Progress in a Jupyter notebook: one bar below the cell, changed in place. Needs nothing but the notebook itself.

A frontend that shows no HTML gets the same facts as a line of text.
"""

from __future__ import annotations

import html
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from IPython.display import display

from palimpsest.progress.progress import StepDisplay, Tick
from palimpsest.progress.steps import Pace, clock, summary_line

_EVERY_S = 0.2  # seconds between two changes of a bar


class Notebook:
    """Shows progress below the cell."""

    def message(self, text: str) -> None:
        """A line below the cell."""
        print(text)

    @contextmanager
    def count(self, label: str, total: int) -> Iterator[Tick]:
        """A bar."""
        bar = _Bar(label, total)
        counted, text = 0, ""

        def tick(done: int = 1, *, note: str | None = None) -> None:
            nonlocal counted, text
            counted, text = counted + done, text if note is None else note
            bar.show(counted, text)

        yield tick
        bar.show(counted, text, at_once=True)

    def steps(self, total: int) -> StepDisplay:
        """A bar, and what matters of the last step."""
        return _Steps(total)


class _Steps:
    def __init__(self, total: int) -> None:
        self._bar = _Bar("steps", total)
        self._pace = Pace()
        self._total = total
        self._done, self._line = 0, ""

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        self._pace.ended()
        left = clock(self._pace.seconds_for(self._total - step))
        self._done, self._line = step, f"{summary_line(metrics, timings)}  ETA {left}"
        self._bar.show(step, self._line, at_once=True)

    def progress(self, stage: str, done: int, total: int) -> None:
        self._bar.show(self._done, f"{self._line}  {stage} {done}/{total}")

    def message(self, text: str) -> None:
        print(text)

    def close(self) -> None:
        self._bar.show(self._done, self._line, at_once=True)


class _Bar:
    """An output of the cell that is changed in place."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._shown = time.monotonic()
        self._output: Any = display(self._bundle(0, ""), raw=True, display_id=True)

    def show(self, done: int, note: str, *, at_once: bool = False) -> None:
        """Change it, but not more than some times a second unless `at_once`."""
        if at_once or done == self._total or time.monotonic() - self._shown > _EVERY_S:
            self._shown = time.monotonic()
            self._output.update(self._bundle(done, note), raw=True)

    def _bundle(self, done: int, note: str) -> dict[str, str]:
        text = f"{self._label} {done}/{self._total}  {note}".rstrip()
        bar = f'<progress value="{done}" max="{max(1, self._total)}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} <code>{html.escape(text)}</code>"}
