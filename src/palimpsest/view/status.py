"""How a run stands: from its lock's text, the process that this names, and its rows.

The lock itself is never asked for: one who tries it, even for an instant, can make a trainer that opens the folder at
that moment believe it is in use. Its text says who holds it; a holder that ended tidily leaves it empty.

Not covered: a process on another host, which counts as alive; one whose number another process took within the second.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson
import psutil

from palimpsest.files import read_regular
from palimpsest.runs.lock import NAME as LOCK
from palimpsest.runs.rows import whole
from palimpsest.view.tailing import Row

_LOCK_BYTES = 4096
_CLOCKS = 2.0
"""Seconds by which the start of a process and the time in its lock may differ."""


class Status(StrEnum):
    """One word for it."""

    RUNNING = "running"
    """A process holds it."""
    WAITING = "waiting"
    """A process holds it, and no step has ended yet."""
    FINISHED = "finished"
    """It came to its last step."""
    STOPPED = "stopped"
    """It ended tidily before that: `--resume` goes on."""
    DEAD = "dead"
    """The process that held it is gone and never let go: killed, or the machine went down. `--resume` goes on."""
    GONE = "gone"
    """Its folder was moved or deleted."""
    FILE = "file"
    """A file of episodes, which has no status."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a lock's text names."""

    pid: int
    host: str
    started: str
    """Local time, YYYY-MM-DD HH:MM:SS."""

    @property
    def alive(self) -> bool:
        """Whether that process is there still; True for one of another host, of which nothing is known."""
        if self.host != socket.gethostname():
            return True
        try:
            began = psutil.Process(self.pid).create_time()
            claimed = time.mktime(time.strptime(self.started, "%Y-%m-%d %H:%M:%S"))
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            return False
        except psutil.Error:
            return True  # it is there, and somebody else's
        return float(began) <= claimed + _CLOCKS


def holder_of(folder: Path) -> Holder | None:
    """Who holds a run's folder, or held it when it died; None where nobody does."""
    try:
        named = orjson.loads(read_regular(folder / LOCK, _LOCK_BYTES))
        return Holder(int(named["pid"]), str(named["host"]), str(named["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def status_of_run(folder: Path, metrics: Sequence[Row], events: Sequence[Row], steps: int | None) -> Status:
    """`steps`: how many it is to have, None where its configuration can't be read."""
    if not folder.is_dir():
        return Status.GONE
    done = whole(metrics[-1], "step", 0) if metrics else 0
    holder = holder_of(folder)
    if holder is not None and holder.alive:
        return Status.RUNNING if done else Status.WAITING
    if steps is not None and done >= steps:
        return Status.FINISHED
    ended = next((row.get("kind") for row in reversed(events) if row.get("kind") in _ENDS), None)
    if ended == "finished":
        return Status.FINISHED
    return Status.DEAD if holder is not None else Status.STOPPED


_ENDS = ("finished", "interrupted", "resumed", "started")
