"""Restarts after lost processes, at most `cluster.max_restarts` times.

Guaranteed: only transient failures restart (ProcessesLost), not errors of settings, a model, a checkpoint or a full
disk. events.jsonl records every restart. A restart after an attempt without a completed step waits 1 s, then twice as
long each time, at most `LONGEST_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from palimpsest.app.config_resolution import COLD_START
from palimpsest.errors import PalimpsestError, ProcessesLost
from palimpsest.notes import Note
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step
from palimpsest.runs.jsonl_rows import read_rows, whole
from palimpsest.runs.run_folder import METRICS, RunFolder

T = TypeVar("T")


LONGEST_S = 60.0
"""The longest wait before a restart."""


async def restarting(folder: RunFolder, most: int, attempt: Callable[[bool], Awaitable[T]]) -> T:
    """Await `attempt(restarted)`; restart it up to `most` times if processes are lost. The error after the last restart
    has the first one as a note."""
    first: ProcessesLost | None = None
    failures = 0  # consecutive attempts without a completed step
    for number in range(most + 1):
        starts = [RunStart.of(path) for path in (folder.path, folder.path / COLD_START)]
        try:
            return await attempt(number > 0)
        except ProcessesLost as error:
            if number == most:
                if first is not None:
                    error.add_note(f"restarts: {number} (cluster.max_restarts={most}); the first followed: {first}")
                raise
            first = first or error
            failures = 0 if any(start.advanced() for start in starts) else failures + 1
            wait_s = wait_before(failures)
            folder.warn(Note("restart", error=str(error), number=number + 1, most=most, wait_s=wait_s))
            await asyncio.sleep(wait_s)
        except PalimpsestError as error:
            if first is not None:
                error.add_note(f"raised after a restart; the restart followed: {first}")
            raise
    raise AssertionError("the last attempt returns or raises")


def wait_before(failures: int) -> float:
    """Seconds before a restart, after `failures` consecutive attempts without a completed step.

    >>> [wait_before(number) for number in (0, 1, 2, 3, 7, 100)]
    [0.0, 1.0, 2.0, 4.0, 60.0, 60.0]
    """
    return min(LONGEST_S, 2.0 ** min(failures - 1, 10)) if failures else 0.0


@dataclass(frozen=True, slots=True)
class RunStart:
    """Progress of a run at the start of an attempt."""

    folder: Path
    saved: int
    """Step of the newest checkpoint; 0: none."""
    changed: int | None
    """Time of the last change of its metrics file, in ns."""

    @classmethod
    def of(cls, folder: Path) -> RunStart:
        saved = max(map(checkpoint_step, checkpoint_paths(folder / CHECKPOINTS)), default=0)
        return cls(folder, saved, _changed(folder))

    def advanced(self) -> bool:
        """True if a step completed since then. Rows of an earlier attempt stay until the next one truncates them."""
        if _changed(self.folder) == self.changed:
            return False
        return any(whole(row, "step", 0) > self.saved for row in read_rows(self.folder / METRICS))


def _changed(folder: Path) -> int | None:
    file = folder / METRICS
    return file.stat().st_mtime_ns if file.exists() else None
