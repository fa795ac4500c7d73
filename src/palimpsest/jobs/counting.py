"""How far an evaluation is: episodes, the agent's score so far, and what this call played."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from palimpsest.data.file_source import outlines
from palimpsest.evaluation.asked import not_asked_told
from palimpsest.evaluation.run import EvalSet, Samples
from palimpsest.evaluation.samples import SAMPLES, Sample, SampleKey, read_samples
from palimpsest.progress.progress import Progress, Tick


class Counted:
    """Counts the episodes as they end, with the agent's score so far."""

    def __init__(self, tick: Tick, before: Sequence[Sample]) -> None:
        self.done = frozenset(sample.key for sample in before)
        """Episodes that need not be played again."""
        self.played, self.seconds = 0, 0.0
        self._tick = tick
        self._values = [sample.value for sample in before if sample.baseline is None and sample.value is not None]

    def __call__(self, sample: Sample) -> None:
        self.played += 1
        if sample.baseline is None and sample.value is not None:
            self._values.append(sample.value)
        self._tick(note=f"score {100 * fmean(self._values):.1f}" if self._values else None)


def logged(out: Path | None) -> Samples:
    """Every episode in the log at `out`."""
    found = read_samples(out / SAMPLES)[0] if out is not None and (out / SAMPLES).exists() else []
    return {sample.key: sample for sample in found}


def finished(log: Samples) -> frozenset[SampleKey]:
    """Episodes that need not be played again."""
    return frozenset(key for key, sample in log.items() if sample.is_final)


@contextmanager
def counting(sets: Sequence[EvalSet], log: Samples, progress: Progress) -> Iterator[Counted]:
    """What was played before counts as done; `log`: everything that was."""
    drawn = {(each.name, problem.id): each.samples for each in sets for problem in outlines(each.problems)}
    asked = [sample for sample in log.values() if sample.draw < drawn.get((sample.name, sample.id), 0)]
    before = [sample for sample in asked if sample.is_final]
    if before:
        progress.message(f"{len(before):,} of {sum(drawn.values()):,} episodes are there already")
    if further := len(log) - len(asked):
        progress.message(not_asked_told(further))
    began = time.monotonic()
    with progress.count("episodes", sum(drawn.values()), done=len(before)) as tick:
        counted = Counted(tick, before)
        yield counted
        counted.seconds = time.monotonic() - began
