"""How far work of several stages is, how long it took and how long it will take: numbers and words, no display.

    training 120/360  elapsed 0:02:10  ETA 0:05:40  reward 0.641 ± 0.480  chunks 2

Guaranteed: parts that were done before (a resumed run) count as done and not as speed. Where a plan says how long its
stages take on some machine, that is scaled by the pace of this one.
Not covered: stages that run beside each other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from palimpsest.progress.progress import Stage

_WINDOW_S = 30.0  # the pace is that of so many last seconds at the least
_MARKS = 11  # and of so many moves


class Overall:
    """The state of some work. A stage begins with `begin`; `moved` says how many of its parts are done."""

    def __init__(self, stages: Sequence[Stage], clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        """What is shown behind the numbers."""
        self.inner = ""
        """How far the present part is."""
        self._stages = list(stages)
        self._done = [0.0] * len(self._stages)
        self._at = -1
        self._clock = clock
        self._started = clock()
        self._worked = 0.0  # seconds of the plan's machine that were worked off here
        self._marks: deque[tuple[float, float]] = deque([(self._started, 0.0)])

    def begin(self, name: str, parts: int, done: int = 0) -> None:
        """The next stage begins, of which `done` parts are done. Stages that a plan doesn't know are added to it."""
        self._at += 1
        if self._at == len(self._stages):
            self._stages.append(Stage(name, parts, 0.0))
            self._done.append(0.0)
        planned = self._stages[self._at]
        self._stages[self._at] = Stage(planned.name, parts, planned.seconds_each)
        self._done[: self._at] = [float(stage.parts) for stage in self._stages[: self._at]]
        self._done[self._at] = done
        self.note = self.inner = ""

    def moved(self, done: float, *, before: bool = False) -> None:
        """So many parts of the stage are done, with `before` not in this process."""
        stage = self._stages[self._at]
        done = min(done, stage.parts)
        if not before:
            self._worked += (done - self._done[self._at]) * (stage.seconds_each or 1.0)
            self._mark()
        self._done[self._at] = done

    @property
    def place(self) -> tuple[int, float]:
        """Index of the stage, parts done: it changes where something moved."""
        return self._at, self._done[self._at] if self._at >= 0 else 0.0

    @property
    def at_an_end(self) -> bool:
        """Whether the last part of the stage is done."""
        return self._at >= 0 and self._done[self._at] >= self._stages[self._at].parts

    @property
    def fraction(self) -> float:
        """Of all work, from 0 to 1."""
        whole = sum(_seconds(stage, stage.parts) for stage in self._stages)
        done = sum(_seconds(stage, parts) for stage, parts in zip(self._stages, self._done, strict=True))
        return done / whole if whole else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the work began here."""
        return self._clock() - self._started

    @property
    def eta(self) -> float | None:
        """Seconds that are left; None where nothing is known."""
        pairs = zip(self._stages, self._done, strict=True)
        left = sum(_seconds(stage, max(0.0, stage.parts - done)) for stage, done in pairs)
        (since, before), (last, worked) = self._marks[0], self._marks[-1]
        if worked > before:
            return max(0.0, left * (last - since) / (worked - before) - (self._clock() - last))
        measured = all(stage.seconds_each for stage in self._stages)
        return max(0.0, left - self.elapsed) if measured else None

    def words(self) -> str:
        """One line."""
        stage, done = (self._stages[self._at], self._done[self._at]) if self._at >= 0 else (Stage("starting", 0), 0.0)
        left = "?" if self.eta is None else clock(self.eta)
        counted = f"{stage.name} {done:,.0f}/{stage.parts:,}" if stage.parts else stage.name
        times = f"elapsed {clock(self.elapsed)}  ETA {left}"
        return "  ".join(part for part in (counted, times, self.note, self.inner) if part)

    def _mark(self) -> None:
        now = self._clock()
        self._marks.append((now, self._worked))
        while len(self._marks) > _MARKS and self._marks[1][0] < now - _WINDOW_S:
            self._marks.popleft()


def _seconds(stage: Stage, parts: float) -> float:
    return parts * (stage.seconds_each or 1.0)


def clock(seconds: float) -> str:
    """Hours, minutes, seconds.

    >>> clock(190)
    '0:03:10'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
