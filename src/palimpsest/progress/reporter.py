"""Progress of jobs: the interface of displays, a display that shows nothing, a step's summary line.

    reward 0.641  std 0.480  chunks 2  turns/episode 3.0  tokens/episode 41  sampling 1,820 tok/s

Guaranteed: a display never changes results, and shows no text of models.
Not covered: stages that run in parallel; two displays on one terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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


class Logger:
    """Base class of receivers of a run's optimizer steps. Its methods do nothing: a subclass defines those it needs."""

    def resumed(self, step: int) -> None:
        """The run resumes after `step`, which another process did."""

    def log(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Log a finished step. `metrics` are reproducible, `timings` depend on the clock."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show progress within the current step."""

    def message(self, text: str) -> None:
        """Show a permanent line."""

    def close(self) -> None:
        """The run has ended."""


class Progress(Protocol):
    """Receiver of progress."""

    def message(self, text: str) -> None:
        """Print a permanent line."""
        ...

    def count(self, label: str, total: int, *, done: int = 0) -> AbstractContextManager[Tick]:
        """Show work of `total` equal parts, `done` of them done earlier, until the context ends."""
        ...

    def steps(self, total: int) -> Logger:
        """Show a run of `total` steps until the display is closed."""
        ...

    def stages(self, stages: Sequence[Stage]) -> AbstractContextManager[Progress]:
        """Show several stages: each `count` or `steps` of the result is the next one."""
        ...


class Silent:
    """A `Progress` that shows nothing."""

    def message(self, text: str) -> None:
        """Ignore the message."""

    @contextmanager
    def count(self, label: str, total: int, *, done: int = 0) -> Iterator[Tick]:
        """Yield a tick that does nothing."""
        yield _Nothing()

    def steps(self, total: int) -> Logger:
        """A display that shows nothing."""
        return _Nothing()

    @contextmanager
    def stages(self, stages: Sequence[Stage]) -> Iterator[Progress]:
        """Show nothing."""
        yield self


class _Nothing(Logger):
    def __call__(self, done: int = 1, *, note: str | None = None) -> None: ...


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
