"""Progress reporting: the interface of displays, overall progress with ETA, a step's summary line.

    training 120/240 steps  elapsed 0:01:30  ETA 0:03:30  reward 0.641  std 0.480  chunks 2
    reward 0.641  std 0.480  chunks 2  turns/episode 3.0  tokens/episode 41  sampling 1,820 tok/s

A stage's share of the whole is the measured time of its parts. For later stages it is the plan's estimate, scaled by
this machine's speed relative to the plan.

Guaranteed: a display never changes results, and shows no text of models. Earlier parts (of a resumed run) count as
done but not as speed. Before the end the progress is below 100%, and the ETA is not 0 while a part is overdue.
Not covered: stages that run in parallel; two displays on one terminal.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a longer work."""

    name: str
    parts: int
    """Number of parts: steps, turns."""
    seconds_each: float = 0.0
    """Seconds per part on the machine of the plan; 0: unknown."""
    unit: str = ""
    """The counted parts: steps, turns."""


class Tick(Protocol):
    """Counts parts of some work."""

    def __call__(self, done: int = 1, *, note: str | None = None) -> None:
        """Count `done` more; `note` replaces the text after the bar."""
        ...


class StepDisplay(Protocol):
    """Shows the optimizer steps of one run."""

    def resumed(self, step: int) -> None:
        """Another process did the steps up to `step`."""
        ...

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Show a finished step."""
        ...

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show progress within the current step."""
        ...

    def message(self, text: str) -> None:
        """Print a permanent line."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class Progress(Protocol):
    """Receiver of progress."""

    def message(self, text: str) -> None:
        """Print a permanent line."""
        ...

    def count(self, label: str, total: int, *, done: int = 0) -> AbstractContextManager[Tick]:
        """Show work of `total` equal parts, `done` of them done earlier, until the context ends."""
        ...

    def steps(self, total: int) -> StepDisplay:
        """Show a run of `total` steps until the display is closed."""
        ...

    def stages(self, stages: Sequence[Stage]) -> AbstractContextManager[Progress]:
        """Show several stages as one: each `count` or `steps` of the result is the next stage."""
        ...


class Silent:
    """A `Progress` that shows nothing."""

    def message(self, text: str) -> None:
        """Ignore the message."""

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        """Yield a tick that does nothing."""
        yield _no_tick

    def steps(self, total: int) -> StepDisplay:
        """A display that shows nothing."""
        return _NoSteps()

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        """Show nothing."""
        yield self


def _no_tick(done: int = 1, *, note: str | None = None) -> None:
    """Do nothing."""


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


_WINDOW_S = 30.0  # seconds that the pace covers at least
_MARKS = 11  # updates that the pace covers at least
_TRUSTED = 0.02  # share of a stage's parts after which the measured pace replaces the plan's


class Overall:
    """State of some work. `begin` starts a stage; `moved` sets its number of done parts."""

    def __init__(self, stages: Sequence[Stage], clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        """Text after the numbers."""
        self.inner = ""
        """Progress within the current part."""
        self._stages = list(stages)
        self._done = [0.0] * len(self._stages)
        self._at = -1
        self._highest = 0.0
        self._clock = clock
        self._started = clock()
        self._measured = [0.0] * len(self._stages)  # parts done here, per stage
        self._took = [0.0] * len(self._stages)  # seconds of these parts
        self._since = self._last = self._started  # start of the stage, last progress
        self._marks: deque[tuple[float, float]] = deque([(self._started, 0.0)])  # (time, parts done here)

    def begin(self, name: str, total: int, done: int = 0) -> None:
        """Start the next stage, with `done` parts done. Stages missing from the plan are appended."""
        self._at += 1
        if self._at == len(self._stages):
            self._stages.append(Stage(name, total, 0.0))
            for values in (self._done, self._measured, self._took):
                values.append(0.0)
        planned = self._stages[self._at]
        self._stages[self._at] = replace(planned, parts=total)
        self._done[: self._at] = [float(stage.parts) for stage in self._stages[: self._at]]
        self._done[self._at] = done
        self._since = self._last = self._clock()
        self._marks = deque([(self._since, 0.0)])
        self.note = self.inner = ""

    def moved(self, done: float, *, before: bool = False) -> None:
        """Set the number of done parts; `before`: another process did them."""
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
        """(Index of the stage, done parts); changes with every progress."""
        return self._at, self._done[self._at] if self._at >= 0 else 0.0

    @property
    def at_an_end(self) -> bool:
        """True if the last part of the stage is done."""
        return self._at >= 0 and self._done[self._at] >= self._stages[self._at].parts

    @property
    def fraction(self) -> float:
        """Done share of all work, from 0 to 1; 1 only at the end. It never falls, even if an estimate was too low."""
        self._highest = max(self._highest, self._estimate())
        return self._highest

    def _estimate(self) -> float:
        totals = [stage.parts for stage in self._stages]
        if all(done >= count for done, count in zip(self._done, totals, strict=True)):
            return 1.0 if totals else 0.0
        seconds_per_part = [self._seconds_per_part(index) for index in range(len(totals))]
        seconds_per_part = seconds_per_part if any(seconds_per_part) else [1.0] * len(totals)  # no time measured
        total = sum(count * seconds for count, seconds in zip(totals, seconds_per_part, strict=True))
        done = sum(count * seconds for count, seconds in zip(self._done, seconds_per_part, strict=True))
        return min(done / total, 0.99) if total else 0.0

    @property
    def elapsed(self) -> float:
        return self._clock() - self._started

    @property
    def eta(self) -> float | None:
        """Remaining seconds; None if unknown."""
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
        # an overdue part is expected to take as long again
        return later + (max(here - waited, min(here, self._seconds_per_part(at)), waited - here) if here else 0.0)

    def _seconds_per_part(self, index: int) -> float:
        """Seconds per part of a stage here: measured (recently, for the current stage) or expected."""
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
        """Measured seconds per planned second; 1 before the first measurement."""
        planned = sum(
            count * (stage.seconds_each or 1.0) for stage, count in zip(self._stages, self._measured, strict=True)
        )
        return sum(self._took) / planned if planned else 1.0

    def words(self) -> str:
        """Progress as one line."""
        stage, done = (self._stages[self._at], self._done[self._at]) if self._at >= 0 else (Stage("starting", 0), 0.0)
        left = "?" if self.eta is None else clock(self.eta)
        counted = f"{stage.name} {done:,.0f}/{stage.parts:,} {stage.unit}".strip() if stage.parts else stage.name
        times = f"elapsed {clock(self.elapsed)}  ETA {left}"
        return "  ".join(part for part in (counted, times, self.note, self.inner) if part)

    def _mark(self) -> None:
        self._marks.append((self._last, self._measured[self._at]))
        while len(self._marks) > _MARKS and self._marks[1][0] < self._last - _WINDOW_S:
            self._marks.popleft()


def clock(seconds: float) -> str:
    """H:MM:SS.

    >>> clock(190)
    '0:03:10'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


# ---- Summary line of a step ----------------------------------------------------------------------------------


_LINE = (
    ("reward/mean", "reward {:.3f}"),
    ("reward/std", "std {:.3f}"),
    ("policy/nll", "nll {:.4f}"),
    ("curriculum/chunks", "chunks {:.0f}"),
    ("episode/turns", "turns/episode {:.1f}"),
    ("episode/sampled_tokens", "tokens/episode {:.0f}"),
    ("eval/accuracy", "held-out accuracy {:.3f}"),
    ("rollout_tokens_per_s", "sampling {:,.0f} tok/s"),
    ("learn_tokens_per_s", "learning {:,.0f} tok/s"),
)


def summary_line(metrics: Mapping[str, float], timings: Mapping[str, float]) -> str:
    """One line of the main metrics; omits unknown ones.

    >>> summary_line({"reward/mean": 0.5, "curriculum/chunks": 2}, {"rollout_tokens_per_s": 1820.4})
    'reward 0.500  chunks 2  sampling 1,820 tok/s'
    """
    values = {**metrics, **timings}
    return "  ".join(form.format(values[name]) for name, form in _LINE if name in values)
