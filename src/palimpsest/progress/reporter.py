"""Progress reporting: the interface of displays, overall progress with ETA, a step's summary line.

    training 120/360  elapsed 0:02:10  ETA 0:05:40  reward 0.641 ± 0.480  chunks 2
    reward 0.641  ± 0.480  chunks 2  turns 3.0  sampled 41  1,820 tok/s

A stage's share of the whole is what its parts took so far. For later stages it is the plan's estimate, scaled by how
this machine compares with the plan so far.

Guaranteed: a display never changes what is computed, and text of models never reaches one from here. Parts that were
done before (a resumed run) count as done and not as speed. Before the end the progress is never 100%, nor is the ETA 0
while a part is overdue.
Not covered: stages that run in parallel; two displays on one terminal.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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


# ---- Overall progress of several stages, with ETA ------------------------------------------------------------


_WINDOW_S = 30.0  # the pace is that of so many last seconds at the least
_MARKS = 11  # and of so many moves
_TRUSTED = 0.02  # of a stage's parts: after so many its own pace replaces the plan's


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
        self._measured = [0.0] * len(self._stages)  # parts of each stage that were done here
        self._took = [0.0] * len(self._stages)  # and the seconds these took
        self._since = self._last = self._started  # the stage began, something moved
        self._marks: deque[tuple[float, float]] = deque([(self._started, 0.0)])  # of the stage: when, parts done here

    def begin(self, name: str, total: int, done: int = 0) -> None:
        """The next stage begins, of which `done` parts are done. Stages that a plan doesn't know are added to it."""
        self._at += 1
        if self._at == len(self._stages):
            self._stages.append(Stage(name, total, 0.0))
            for values in (self._done, self._measured, self._took):
                values.append(0.0)
        planned = self._stages[self._at]
        self._stages[self._at] = Stage(planned.name, total, planned.seconds_each)
        self._done[: self._at] = [float(stage.parts) for stage in self._stages[: self._at]]
        self._done[self._at] = done
        self._since = self._last = self._clock()
        self._marks = deque([(self._since, 0.0)])
        self.note = self.inner = ""

    def moved(self, done: float, *, before: bool = False) -> None:
        """So many parts of the stage are done, with `before` not in this process."""
        stage = self._stages[self._at]
        done = min(done, stage.parts)
        if not before:
            self._last = self._clock()
            self._measured[self._at] += done - self._done[self._at]
            self._took[self._at] = self._last - self._since
            self._mark()
        self._done[self._at] = done

    @property
    def position(self) -> tuple[int, float]:
        """Index of the stage, parts done: it changes where something moved."""
        return self._at, self._done[self._at] if self._at >= 0 else 0.0

    @property
    def at_an_end(self) -> bool:
        """Whether the last part of the stage is done."""
        return self._at >= 0 and self._done[self._at] >= self._stages[self._at].parts

    @property
    def fraction(self) -> float:
        """Of all work, from 0 to 1; 1 at its end only."""
        totals = [stage.parts for stage in self._stages]
        if all(done >= count for done, count in zip(self._done, totals, strict=True)):
            return 1.0 if totals else 0.0
        seconds_per_part = [self._seconds_per_part(index) for index in range(len(totals))]
        seconds_per_part = seconds_per_part if any(seconds_per_part) else [1.0] * len(totals)  # nothing took any time
        total = sum(count * seconds for count, seconds in zip(totals, seconds_per_part, strict=True))
        done = sum(count * seconds for count, seconds in zip(self._done, seconds_per_part, strict=True))
        return min(done / total, 0.99) if total else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the work began here."""
        return self._clock() - self._started

    @property
    def eta(self) -> float | None:
        """Seconds that are left; None where nothing is known."""
        if self.fraction == 1.0:
            return 0.0
        if not any(self._measured) and not all(stage.seconds_each for stage in self._stages):
            return None
        left = [
            (stage.parts - done) * self._seconds_per_part(index)
            for index, (stage, done) in enumerate(zip(self._stages, self._done, strict=True))
        ]
        at, waited = max(0, self._at), self._clock() - self._last
        here, later = left[at], sum(left[at + 1 :])
        # what is overdue is expected to take as long again
        return later + (max(here - waited, min(here, self._seconds_per_part(at)), waited - here) if here else 0.0)

    def _seconds_per_part(self, index: int) -> float:
        """Seconds that a part of a stage takes here: as measured, lately where it is the present one, or expected."""
        stage, measured = self._stages[index], self._measured[index]
        expected = (stage.seconds_each or 1.0) * self._ratio
        if not measured:
            return expected
        pace = self._took[index] / measured
        (since, before), (last, done) = self._marks[0], self._marks[-1]
        if index == self._at and done > before:
            pace = (last - since) / (done - before)
        trust = min(1.0, measured / (stage.parts * _TRUSTED)) if stage.seconds_each else 1.0
        return trust * pace + (1 - trust) * expected

    @property
    def _ratio(self) -> float:
        """Seconds here for one of the plan's, over all that was measured; 1 before that."""
        planned = sum(
            count * (stage.seconds_each or 1.0) for stage, count in zip(self._stages, self._measured, strict=True)
        )
        return sum(self._took) / planned if planned else 1.0

    def words(self) -> str:
        """One line."""
        stage, done = (self._stages[self._at], self._done[self._at]) if self._at >= 0 else (Stage("starting", 0), 0.0)
        left = "?" if self.eta is None else clock(self.eta)
        counted = f"{stage.name} {done:,.0f}/{stage.parts:,}" if stage.parts else stage.name
        times = f"elapsed {clock(self.elapsed)}  ETA {left}"
        return "  ".join(part for part in (counted, times, self.note, self.inner) if part)

    def _mark(self) -> None:
        self._marks.append((self._last, self._measured[self._at]))
        while len(self._marks) > _MARKS and self._marks[1][0] < self._last - _WINDOW_S:
            self._marks.popleft()


def clock(seconds: float) -> str:
    """Hours, minutes, seconds.

    >>> clock(190)
    '0:03:10'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


# ---- Summary line of a step ----------------------------------------------------------------------------------


_LINE = (
    ("reward/mean", "reward {:.3f}"),
    ("reward/std", "± {:.3f}"),
    ("policy/nll", "nll {:.4f}"),
    ("curriculum/chunks", "chunks {:.0f}"),
    ("episode/turns", "turns {:.1f}"),
    ("episode/sampled_tokens", "sampled {:.0f}"),
    ("eval/accuracy", "eval {:.3f}"),
    ("rollout_tokens_per_s", "{:,.0f} tok/s"),
    ("learn_tokens_per_s", "{:,.0f} trained/s"),
)


def summary_line(metrics: Mapping[str, float], timings: Mapping[str, float]) -> str:
    """One line of what matters; what isn't known is left out.

    >>> summary_line({"reward/mean": 0.5, "curriculum/chunks": 2}, {"rollout_tokens_per_s": 1820.4})
    'reward 0.500  chunks 2  1,820 tok/s'
    """
    values = {**metrics, **timings}
    return "  ".join(form.format(values[name]) for name, form in _LINE if name in values)
