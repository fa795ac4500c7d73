"""Status of a run: its lock, its process, and the rows of its growing .jsonl files. alarms.py has its alarms.

The viewer reads the text of the lock, which names the holder, and never tries to take it: even a short attempt can make
a trainer that opens the folder at that moment believe it is in use. A holder that ended cleanly leaves the text empty.

Guaranteed: a half-written row does not count; a row with a checksum is intact (runs/jsonl_rows.py); links out of the
file's folder are not followed.
Not covered: a process on another host, which counts as alive; a process id reused within the second.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
import psutil

from palimpsest.files import read_regular
from palimpsest.runs.folder_guard import NAME as LOCK
from palimpsest.runs.jsonl_rows import lines_of, whole
from palimpsest.viewer.records.sources import leads_out

# ---- The .jsonl files of a run -------------------------------------------------------------------------------


_FILES = 256
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _RowFile:
    state: tuple[int, ...]
    first: int
    rows: tuple[Row, ...]


class RowFiles:
    """Rows of files, each read again after a change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: OrderedDict[Path, _RowFile] = OrderedDict()

    def rows(self, path: Path) -> Sequence[Row]:
        """The complete rows; empty for a missing file."""
        return self._now(path).rows

    def identity(self, path: Path) -> int:
        """A number that changes with the file's first line."""
        return self._now(path).first

    def _now(self, path: Path) -> _RowFile:
        with self._lock:
            try:
                read = _EMPTY if leads_out(path.parent, path) else _row_file(path, self._read.pop(path, _EMPTY))
            except OSError:
                read = _EMPTY
            self._read[path] = read
            while len(self._read) > _FILES:
                self._read.popitem(last=False)
            return read


_EMPTY = _RowFile((), 0, ())


def _row_file(path: Path, before: _RowFile) -> _RowFile:
    stat = path.stat()
    state = stat.st_ino, stat.st_size, stat.st_mtime_ns
    if state == before.state:
        return before
    data = read_regular(path)
    complete = data[: data.rfind(b"\n") + 1]
    rows = tuple(line.row for line in lines_of(complete) if line.row is not None)
    return _RowFile(state, zlib.crc32(complete[: complete.find(b"\n")]), rows)


# ---- Status of a run -----------------------------------------------------------------------------------------


_LOCK_BYTES = 4096
_CLOCKS = 2.0
"""Tolerated difference in seconds between a process's start and the time in its lock."""


class Status(StrEnum):
    """Status of a run."""

    RUNNING = "running"
    """A process holds the folder."""
    WAITING = "waiting"
    """A process holds the folder, and no step has ended yet."""
    FINISHED = "finished"
    """The run reached its last step."""
    STOPPED = "stopped"
    """The run ended cleanly before its last step; `--resume` continues it."""
    DEAD = "dead"
    """The process died without releasing the folder: killed, or the machine went down. `--resume` continues the run."""
    GONE = "gone"
    """The folder was moved or deleted."""
    FILE = "file"
    """A file of episodes, which has no status."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process named by a lock's text."""

    pid: int
    host: str
    started: str
    """Local time, YYYY-MM-DD HH:MM:SS."""

    @property
    def alive(self) -> bool:
        """True if that process still exists, or if it is on another host, where its state is unknown."""
        if self.host != socket.gethostname():
            return True
        try:
            began = psutil.Process(self.pid).create_time()
            claimed = time.mktime(time.strptime(self.started, "%Y-%m-%d %H:%M:%S"))
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            return False
        except psutil.Error:
            return True  # it exists, and belongs to another user
        return float(began) <= claimed + _CLOCKS


def holder_of(folder: Path) -> Holder | None:
    """The process that holds a run's folder, or held it when it died; None if the folder is free."""
    try:
        named = orjson.loads(read_regular(folder / LOCK, _LOCK_BYTES))
        return Holder(int(named["pid"]), str(named["host"]), str(named["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def status_of_run(folder: Path, metrics: Sequence[Row], events: Sequence[Row], steps: int | None) -> Status:
    """Status from a run's files; `steps`: the configured number, None if the configuration is unreadable."""
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
