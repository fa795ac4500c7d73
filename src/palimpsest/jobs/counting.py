"""How far an evaluation is: episodes, the agent's score so far, and what this call played."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from palimpsest.data.file_source import outlines
from palimpsest.evaluation.run import EvalSet
from palimpsest.evaluation.samples import SAMPLES, Sample, SampleKey, read_samples
from palimpsest.progress.progress import Progress, Tick


class Counted:
    """Counts the episodes as they end, with the agent's score so far."""

    def __init__(self, tick: Tick, before: Iterable[Sample]) -> None:
        self.played, self.seconds = 0, 0.0
        self._tick = tick
        self._values = [sample.value for sample in before if sample.baseline is None and sample.value is not None]

    def __call__(self, sample: Sample) -> None:
        self.played += 1
        if sample.baseline is None and sample.value is not None:
            self._values.append(sample.value)
        self._tick(note=f"score {100 * fmean(self._values):.1f}" if self._values else None)


def finished(out: Path | None) -> dict[SampleKey, Sample]:
    """Episodes in the log at `out` that need not be played again."""
    logged = read_samples(out / SAMPLES)[0] if out is not None and (out / SAMPLES).exists() else []
    return {sample.key: sample for sample in logged if sample.is_final}


@contextmanager
def counting(sets: Sequence[EvalSet], out: Path | None, progress: Progress) -> Iterator[Counted]:
    """What was played before counts as done."""
    drawn = {(each.name, problem.id): each.samples for each in sets for problem in outlines(each.problems)}
    before = [sample for sample in finished(out).values() if sample.draw < drawn.get((sample.name, sample.id), 0)]
    if before:
        progress.message(f"{len(before):,} of {sum(drawn.values()):,} episodes are there already")
    began = time.monotonic()
    with progress.count("episodes", sum(drawn.values()), done=len(before)) as tick:
        counted = Counted(tick, before)
        yield counted
        counted.seconds = time.monotonic() - began
