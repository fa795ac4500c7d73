"""A training whose processes were lost goes on by itself, as often as `cluster.max_restarts` says.

Guaranteed: only what may pass begins again (ProcessesLost): not what settings, a model, a checkpoint or a full disk are
the reason of. Each restart is told, and in events.jsonl; one that leads to no step is the last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from palimpsest.errors import PalimpsestError, ProcessesLost
from palimpsest.jobs.resuming import COLD_START
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step
from palimpsest.runs.rows import read_rows, whole
from palimpsest.runs.run_folder import METRICS, RunFolder

T = TypeVar("T")


async def restarting(folder: RunFolder, most: int, attempt: Callable[[bool], Awaitable[T]]) -> T:
    """Await `attempt` of a run, which is told whether it is a restart, up to `most` times more if processes are lost.
    Where a restart leads to no step, the error is the one before it."""
    first: ProcessesLost | None = None
    for number in range(most + 1):
        begun = [Stand.of(path) for path in (folder.path, folder.path / COLD_START)]
        try:
            return await attempt(number > 0)
        except ProcessesLost as error:
            if first is not None and not any(stand.left() for stand in begun):
                first.add_note(f"it was started again, and ended before another step: {error}")
                raise first from error
            if number == most:
                raise
            first = error
            folder.warn(f"{error}; that is now, restart {number + 1} of {most} (cluster.max_restarts)")
        except PalimpsestError as error:
            if first is not None:
                error.add_note(f"this came as it was started again, after: {first}")
            raise
    raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class Stand:
    """How far a run had come when an attempt began."""

    folder: Path
    saved: int
    """The step of its newest checkpoint, from which it goes on; 0: it begins."""
    changed: int | None
    """When a row was last written or cut off, in ns."""

    @classmethod
    def of(cls, folder: Path) -> Stand:
        saved = max(map(checkpoint_step, checkpoint_paths(folder / CHECKPOINTS)), default=0)
        return cls(folder, saved, _changed(folder))

    def left(self) -> bool:
        """Whether a step was made since then. Rows of the attempt before are there until they are cut off."""
        if _changed(self.folder) == self.changed:
            return False
        return any(whole(row, "step", 0) > self.saved for row in read_rows(self.folder / METRICS))


def _changed(folder: Path) -> int | None:
    file = folder / METRICS
    return file.stat().st_mtime_ns if file.exists() else None
