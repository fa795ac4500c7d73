r"""What the server keeps on disk: one log per episode.

    ID.jsonl    the head; a line per turn, written before the next one starts; at the end the result

A line is JSON with a checksum: `{...}`, a tab, 16 hexadecimal digits of BLAKE2b over the JSON, a line feed.

Guaranteed: logs are readable by their owner alone; a line is in its file whole or not at all; a line that a kill cut
off, or in which any bit differs from what was written, is never read: an episode continues after the turns before it;
what can't be written is a `StoreFailed`. The time to find how an episode ended does not grow with its turns.
Not covered: a machine that loses its power (lines are not flushed to the disk one by one); changes that include the
checksum; the size of the store while the server runs: the oldest logs are deleted when it is opened.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from palimpsest.rollout.trajectory_file import turn_from_json
from palimpsest.runs.folder_guard import FolderLock
from palimpsest.servers.http_service import Refused
from palimpsest.types import Turn

MOST_BYTES = 10 << 30
"""Of all logs, when the store is opened."""
_DIGITS = 16
_log = logging.getLogger("uvicorn.error")


class StoreFailed(Refused):
    """The disk takes no more, or fails."""


def sealed(value: dict[str, Any]) -> bytes:
    r"""The line of an object.

    >>> line = sealed({"a": 1})
    >>> line[:8], opened(line), opened(line.replace(b"1", b"3", 1)), opened(line[:-1])
    (b'{"a":1}\t', {'a': 1}, None, None)
    """
    data = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    return data + b"\t" + _checksum(data) + b"\n"


def opened(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None for one that is cut off or damaged."""
    data, tab, checksum = line.rpartition(b"\t")
    if not tab or checksum != _checksum(data) + b"\n":
        return None
    value: dict[str, Any] = orjson.loads(data)
    return value


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGITS // 2).hexdigest().encode()


class Store:
    """The logs of one server, in one folder."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Delete the oldest logs beyond `most_bytes`. Raises RunError where another server has the folder."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self._lock = folder, FolderLock(folder)
        size = 0
        for path in sorted(folder.glob("ep_*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True):
            size += path.stat().st_size
            if size > most_bytes:
                path.unlink()

    def close(self) -> None:
        self._lock.release()

    def append(self, episode: str, line: dict[str, Any]) -> None:
        """Raises StoreFailed where the system refuses to write; the log says why."""
        try:
            descriptor = os.open(self._path(episode), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                _write_all(descriptor, sealed(line))
            finally:
                os.close(descriptor)
        except OSError:
            _log.exception("the store failed")
            raise StoreFailed(507, "the server can't store it; its log says why", code="store_failed") from None

    def recover(self, episode: str, head: dict[str, Any]) -> list[Turn]:
        """Turns that an earlier process took, each once. The log is cut at its first line that can't be read; it starts
        with `head` where nothing is left. Raises StoreFailed."""
        turns, end = dict[int, Turn](), 0
        for line in self._raw_lines(episode):
            if (entry := opened(line)) is None:
                _log.error("the store: %s is played again from byte %d on", episode, end)
                os.truncate(self._path(episode), end)
                break
            if "turn" in entry:
                turn = turn_from_json(entry["turn"])
                turns.setdefault(turn.step, turn)
            end += len(line)
        if not end:
            self.append(episode, {"head": head})
        return list(turns.values())

    def lines(self, episode: str) -> Iterator[dict[str, Any]]:
        """Those that can be read; none where there is no log."""
        return (entry for line in self._raw_lines(episode) if (entry := opened(line)) is not None)

    def result(self, episode: str) -> dict[str, Any] | None:
        """How the episode ended, which is the last line; None where it didn't, or where that line can't be read."""
        path = self._path(episode)
        if not path.exists() or not path.stat().st_size:
            return None
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            last = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
        result: dict[str, Any] | None = (opened(last) or {}).get("result")
        return result

    def heads(self) -> Iterator[dict[str, Any]]:
        """Of all episodes, the oldest first."""
        for path in sorted(self.folder.glob("ep_*.jsonl"), key=lambda path: path.stat().st_mtime):
            yield from (line["head"] for line in islice(self.lines(path.stem), 1) if "head" in line)

    def _raw_lines(self, episode: str) -> Iterator[bytes]:
        if self._path(episode).exists():
            with self._path(episode).open("rb") as file:
                yield from file

    def _path(self, episode: str) -> Path:
        return self.folder / f"{episode}.jsonl"


def _write_all(descriptor: int, data: bytes) -> None:
    """Add `data` to a file's end, or nothing. A disk that fills up takes the first bytes and refuses the others."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise
