"""Verdicts kept in a file: one JSON object a line, only ever appended to.

Guaranteed: processes may share a file, and each finds what the others have written; a line that a crash cut short costs
that verdict and no other; a line that can't be read is passed over. A file that is deleted is begun anew.
Not covered: network file systems without flock and append; power loss (lines reach the system at once, the disk later);
forgetting: a cache grows by some 200 bytes a verdict.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import orjson


class VerdictCache:
    """Key to verdict, in memory and in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, str] = {}
        self._read_to = 0  # bytes of the file that `_known` holds
        path.parent.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> str | None:
        """The verdict under `key`, also one that another process has just written."""
        if key not in self._known:
            self._read_on()
        return self._known.get(key)

    def put(self, key: str, verdict: str, about: Mapping[str, object]) -> None:
        """Keep a verdict; `about` goes into the line for who reads the file."""
        self._known[key] = verdict
        line = orjson.dumps({"key": key, "verdict": verdict, **about}) + b"\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # given back when the descriptor closes
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            _write(descriptor, b"\n" + line if torn else line)
        finally:
            os.close(descriptor)

    def _read_on(self) -> None:
        """Take in the whole lines that the file has got since the last look."""
        try:
            with self.path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < self._read_to:
                    self._read_to = 0
                if size == self._read_to:
                    return
                stream.seek(self._read_to)
                whole, newline, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            self._read_to = 0
            return
        self._read_to += len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        if isinstance(entry, dict) and isinstance(entry.get("key"), str) and isinstance(entry.get("verdict"), str):
            self._known[entry["key"]] = entry["verdict"]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
