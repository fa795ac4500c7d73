"""The steps of a run: a live bar on a terminal, one plain line a step elsewhere.

    step 12/100  reward 0.641 ± 0.480  chunks 2  turns 3.0  sampled 41  1,820 tok/s  ETA 0:03:10

Guaranteed: text of models never reaches the terminal from here. Not covered: two consoles on one terminal.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_WINDOW = 10  # steps over which the remaining time is estimated


class StepLines:
    """Shows the steps of one run on a terminal or in a log."""

    def __init__(self, *, total_steps: int, stream: TextIO | None = None, live: bool | None = None) -> None:
        """`live`: a progress bar; None: if `stream` is a terminal."""
        self._total = total_steps
        self._stream = stream or sys.stderr
        self._pace = Pace()
        live = self._stream.isatty() if live is None else live
        self._bar: _Bar | None = _Bar(total_steps, self._stream) if live else None

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Show a finished step."""
        self._pace.ended()
        line = summary_line(metrics, timings)
        eta = clock(self._pace.seconds_for(self._total - step))
        if self._bar is not None:
            self._bar.step(step, line)
        else:
            print(f"step {step}/{self._total}  {line}  ETA {eta}", file=self._stream, flush=True)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show how far the present step is; on a terminal only."""
        if self._bar is not None:
            self._bar.progress(stage, done, total)

    def message(self, text: str) -> None:
        """Show a line that stays."""
        if self._bar is not None:
            self._bar.message(text)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()


class Pace:
    """How long a step takes, from the last few."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque([time.monotonic()], maxlen=_WINDOW + 1)

    def ended(self) -> None:
        """A step has ended now."""
        self._ends.append(time.monotonic())

    def seconds_for(self, steps: int) -> float:
        """Seconds that so many further steps will take; at least one has ended."""
        return steps * (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)


class _Bar:
    """Two rich progress bars: steps of the run, episodes of the step."""

    def __init__(self, total_steps: int, stream: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[line]}", markup=False),
            console=Console(file=stream),
        )
        self._steps = self._progress.add_task("steps", total=total_steps, line="")
        self._stage = self._progress.add_task("", total=1, line="")
        self._progress.start()

    def step(self, step: int, line: str) -> None:
        self._progress.update(self._steps, completed=step, line=line)

    def progress(self, stage: str, done: int, total: int) -> None:
        self._progress.update(self._stage, description=stage, completed=done, total=total)

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.remove_task(self._stage)
        self._progress.stop()


_LINE = (
    ("reward/mean", "reward {:.3f}"),
    ("reward/std", "± {:.3f}"),
    ("policy/nll", "nll {:.4f}"),
    ("curriculum/chunks", "chunks {:.0f}"),
    ("curriculum/objectives", "objectives {:.0f}"),
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
    known = {**metrics, **timings}
    return "  ".join(form.format(known[name]) for name, form in _LINE if name in known)


def clock(seconds: float) -> str:
    """Hours, minutes, seconds.

    >>> clock(190)
    '0:03:10'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
