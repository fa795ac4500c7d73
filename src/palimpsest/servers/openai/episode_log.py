r"""The server's store on disk: one log per episode.

    ID.jsonl    the head; a line per turn, written before the next one starts; at the end the result

A line is JSON with a checksum: `{...}`, a tab, 16 hexadecimal digits of BLAKE2b over the JSON, a line feed.

Guaranteed: only the owner can read the logs; a file contains a line whole or not at all; a truncated or modified line
is never used: an episode continues after the turns before it, and ID.jsonl.damaged has whole lines cut off; a failed
read or write is a `StoreFailed`; the store opens no link, pipe or device instead of a log. The time to find an
episode's end does not grow with its turns.
Not covered: power loss (lines are not flushed one by one); changes that include the checksum; the store's size while
the server runs: opening it deletes the oldest logs.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from palimpsest.files import open_descriptor
from palimpsest.rollout.trajectory_file import turn_from_json
from palimpsest.runs.folder_guard import FolderLock
from palimpsest.runs.jsonl_rows import DAMAGED
from palimpsest.servers.http_service import Refused
from palimpsest.types import Turn

MOST_BYTES = 10 << 30
"""Maximum size of all logs when the store opens."""
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
    """The object of a line; None for a truncated or damaged one."""
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
        """Delete the oldest logs beyond `most_bytes`. Raises RunError if another server uses the folder, and
        NoRegularFile for a log that is none."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self._lock = folder, FolderLock(folder)
        try:
            self._delete_oldest(most_bytes)
        except BaseException:
            self.close()
            raise

    def _delete_oldest(self, most_bytes: int) -> None:
        logs = []
        for path in self.folder.glob("ep_*.jsonl*"):
            with _opened(path, os.O_RDONLY) as descriptor:
                logs.append((os.fstat(descriptor), path))
        for log, path in sorted(logs, key=lambda log: log[0].st_mtime, reverse=True):
            most_bytes -= log.st_size
            if most_bytes < 0:
                path.unlink()

    def close(self) -> None:
        self._lock.release()

    def append(self, episode: str, line: dict[str, Any]) -> None:
        """Append a line. Raises StoreFailed if the write fails; the log has the reason."""
        with _failures(), _opened(self._path(episode), os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
            try:
                _write_all(descriptor, sealed(line))
            finally:
                if not os.fstat(descriptor).st_size:  # a new log, which could not be written
                    self._path(episode).unlink()

    def recover(self, episode: str, head: dict[str, Any]) -> list[Turn]:
        """Turns that an earlier process took, each once. Truncates the log at its first unreadable line; an empty log
        starts with `head`. Raises StoreFailed."""
        turns, end = dict[int, Turn](), 0
        for line in self._raw_lines(episode):
            if (entry := opened(line)) is None:
                self._cut(self._path(episode), end)
                break
            if "turn" in entry:
                turn = turn_from_json(entry["turn"])
                turns.setdefault(turn.step, turn)
            end += len(line)
        if not end:
            self.append(episode, {"head": head})
        return list(turns.values())

    def _cut(self, path: Path, end: int) -> None:
        """Truncate a log, and save whole lines beyond its `end` in `NAME.damaged`."""
        _log.error("the store: %s continues from byte %d", path.stem, end)
        with _failures(), _opened(path, os.O_RDWR) as descriptor:
            rest = os.pread(descriptor, os.fstat(descriptor).st_size, end)
            if b"\n" in rest:  # more than a line that a kill cut
                damaged = path.with_name(path.name + DAMAGED)
                with _opened(damaged, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as aside:
                    _write_all(aside, rest)
            os.ftruncate(descriptor, end)

    def lines(self, episode: str) -> Iterator[dict[str, Any]]:
        """Readable lines; none without a log."""
        return (entry for line in self._raw_lines(episode) if (entry := opened(line)) is not None)

    def result(self, episode: str) -> dict[str, Any] | None:
        """The episode's end, from the last line; None if it did not end, or the line is unreadable."""
        path = self._path(episode)
        if not path.exists() or not path.stat().st_size:
            return None
        with (
            _failures(),
            _opened(path, os.O_RDONLY) as descriptor,
            mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data,
        ):
            last = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
        result: dict[str, Any] | None = (opened(last) or {}).get("result")
        return result

    def heads(self) -> Iterator[dict[str, Any]]:
        """Heads of all episodes, the oldest first: by `started_ns`, as files of one moment have the same time."""
        paths = self.folder.glob("ep_*.jsonl")
        lines = [opened(next(self._raw_lines(path.stem), b"")) or {} for path in paths]
        heads = [line["head"] for line in lines if "head" in line]
        yield from sorted(heads, key=lambda head: head["started_ns"])

    def _raw_lines(self, episode: str) -> Iterator[bytes]:
        if self._path(episode).exists():
            with _failures(), _opened(self._path(episode), os.O_RDONLY) as descriptor:
                yield from os.fdopen(descriptor, "rb", closefd=False)

    def _path(self, episode: str) -> Path:
        return self.folder / f"{episode}.jsonl"


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Descriptor of a log. Raises OSError, also for a link: its target belongs to someone else."""
    descriptor = open_descriptor(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _failures() -> Iterator[None]:
    """Log an error of the disk; the client gets only its class."""
    try:
        yield
    except OSError:
        _log.exception("the store failed")
        raise StoreFailed(507, "the server can't store it; its log says why", code="store_failed") from None


def _write_all(descriptor: int, data: bytes) -> None:
    """Append all of `data` or nothing: a full disk may take only the first bytes."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise
