"""Status of a run: its lock, its process, and the rows of its .jsonl files as they grow.

The viewer reads the text of the lock, which names the holder, and never tries to take it: even a short attempt can make
a trainer that opens the folder at that moment believe it is in use. A holder that ended cleanly leaves the text empty.

Guaranteed: only added rows are read again; a half-written row is not a row; a file that was truncated or replaced is
read again from its start; a row with a checksum is as it was written (runs/jsonl_rows.py); a link that leads out of the
file's folder is not followed.
Not covered: a process on another host, which counts as alive; a process whose number was reused within the second.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson
import psutil

from palimpsest.files import open_regular, read_regular
from palimpsest.runs.folder_guard import NAME as LOCK
from palimpsest.runs.jsonl_rows import CHECKSUM, is_number, lines_of, whole, with_number
from palimpsest.viewer.records.sources import leads_out

# ---- The .jsonl files of a run as they grow ------------------------------------------------------------------


_FILES = 256
_SEAM = 256
"""Bytes before the place reading goes on at, which must be what they were."""
Row = Mapping[str, Any]


@dataclass(slots=True)
class _Tail:
    offset: int = 0
    seam: bytes = b""
    sealed: bool = False
    first: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


class Tails:
    """Rows of files, each remembered as far as it was read. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: OrderedDict[Path, _Tail] = OrderedDict()

    def rows(self, path: Path) -> Sequence[Row]:
        """Those that are whole now; none of a missing file."""
        with self._lock:
            return tuple(self._read(path).rows)

    def identity(self, path: Path) -> int:
        """A number that changes where the file begins otherwise than before."""
        with self._lock:
            return self._read(path).first

    def _read(self, path: Path) -> _Tail:
        tail = self._tails.pop(path, None) or _Tail()
        try:
            tail = _Tail() if leads_out(path.parent, path) else _grown(path, tail)
        except OSError:
            tail = _Tail()
        self._tails[path] = tail
        while len(self._tails) > _FILES:
            self._tails.popitem(last=False)
        return tail


def _grown(path: Path, tail: _Tail) -> _Tail:
    """What was read of a file, and what has come since; from its beginning where it isn't the same file."""
    with open_regular(path) as file:
        if tail.offset:
            file.seek(tail.offset - len(tail.seam))
            if file.read(len(tail.seam)) != tail.seam:
                tail = _Tail()
                file.seek(0)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        return tail
    rows = [line.row for line in lines_of(whole, sealed=tail.sealed) if line.row is not None]
    tail.sealed = tail.sealed or f'"{CHECKSUM}":'.encode() in whole
    tail.first = tail.first or zlib.crc32(whole[: whole.find(b"\n")])
    tail.rows += rows
    tail.offset += len(whole)
    tail.seam = whole[-_SEAM:]
    return tail


# ---- Status of a run -----------------------------------------------------------------------------------------


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


# ---- A run's rows as the page asks for them ------------------------------------------------------------------


SPARK = 60
"""Points of a spark line."""
_STAGES = ("rollout_s", "learn_s")


def rows_since(rows: Sequence[Row], since: int, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Rows of steps after `since`, with `keys` alone where they are given; `next` is what to ask with next time.

    >>> rows_since([{"step": 1, "a": 2.0, "b": 0.0}, {"step": 2, "a": 3.0}], 1, ["a"])
    {'rows': [{'step': 2, 'a': 3.0}], 'next': 2, 'last': 2}
    """
    steps = [whole(row, "step", -1) for row in rows]
    fresh = [row for row, step in zip(rows, steps, strict=True) if step > since]
    last = max(steps, default=-1)
    return {"rows": [_chosen(row, keys) for row in fresh], "next": max(last, since), "last": last}


def events_since(rows: Sequence[Row], since: int) -> dict[str, Any]:
    """Events behind the first `since`, with their number in the file.

    >>> events_since([{"kind": "started"}, {"kind": "saved"}], 1)
    {'rows': [{'number': 1, 'kind': 'saved'}], 'next': 2, 'last': 2}
    """
    fresh = [{"number": number, **row} for number, row in enumerate(rows) if number >= since]
    return {"rows": fresh, "next": len(rows), "last": len(rows)}


def spark(rows: Sequence[Row], key: str, points: int = SPARK) -> list[float]:
    """`key` over the run, as the means of at most `points` pieces of it.

    >>> spark([{"step": 1, "r": 0.0}, {"step": 2, "r": 1.0}, {"step": 3, "r": 3.0}, {"step": 4, "r": 5.0}], "r", 2)
    [0.5, 4.0]
    """
    values = [float(row[key]) for row in with_number(rows, key)]
    size = math.ceil(len(values) / points) or 1
    pieces = [values[start : start + size] for start in range(0, len(values), size)]
    return [mean_of(piece) for piece in pieces]


def mean_of(values: Iterable[float]) -> float:
    """Of one or more; infinite where their sum is too large for a float, which no chart has room for.

    >>> mean_of([0.5, 1.5]), mean_of([1e308, 1e308])
    (1.0, inf)
    """
    try:
        return fmean(values)
    except OverflowError:
        return math.inf


def names_of(rows: Sequence[Row]) -> list[str]:
    """Every metric that a row has as a number, by name."""
    return sorted({name for row in rows for name, value in row.items() if name != "step" and is_number(value)})


def seconds_left(timings: Sequence[Row], done: int, steps: int | None) -> float | None:
    """Of the steps to come, at the pace of the last twenty; None where nothing is known."""
    paces = [sum(float(row[stage]) for stage in _STAGES if is_number(row.get(stage))) for row in timings[-20:]]
    paces = [pace for pace in paces if pace > 0]
    if steps is None or not paces or done >= steps:
        return None
    return (steps - done) * sum(paces) / len(paces)


def _chosen(row: Mapping[str, Any], keys: Collection[str] | None) -> dict[str, Any]:
    return dict(row) if keys is None else {key: row[key] for key in ("step", *keys) if key in row}
