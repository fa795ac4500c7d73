"""The log of one episode: sealed lines of its head, of each turn and, at the end, of its result.

Guaranteed: a line is in the file whole or not at all; what isn't whole, or is damaged, is never read as a line; a write
that fails leaves no empty file.

Lines of JSON with a checksum: `{...}`, a tab, 16 hexadecimal digits of BLAKE2b over the JSON, a line feed.

Guaranteed: a line in which any one bit differs from what was written is not opened. A line of an earlier version, which
is JSON alone, is opened as it is; no flipped bit makes a sealed line look like one, because a raw tab is not JSON.
Not covered: changes that include the checksum; damage within a line of an earlier version that leaves it JSON.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from palimpsest.rollout.trajectory_file import turn_from_json
from palimpsest.types import Turn

# ---- Lines of JSON with a checksum ---------------------------------------------------------------------------


_DIGITS = 16


def sealed(value: dict[str, Any]) -> bytes:
    r"""The line of an object.

    >>> line = sealed({"a": 1})
    >>> line[:8], opened(line), opened(line.replace(b"1", b"3", 1)), opened(b'{"a": 1}\n')
    (b'{"a":1}\t', {'a': 1}, None, {'a': 1})
    """
    data = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    return data + b"\t" + _checksum(data) + b"\n"


def opened(line: bytes) -> dict[str, Any] | None:
    """The object of a line, None for what was damaged."""
    data, checksum = line.removesuffix(b"\n"), b""
    if data[-_DIGITS - 1 : -_DIGITS] == b"\t":
        data, checksum = data[: -_DIGITS - 1], data[-_DIGITS:]
        if checksum != _checksum(data):
            return None
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGITS // 2).hexdigest().encode()


# ---- The log of one episode ----------------------------------------------------------------------------------


_log = logging.getLogger("uvicorn.error")


class EpisodeLog:
    """At `path`, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: dict[str, Any]) -> int:
        """Add a line; how many bytes. Raises OSError."""
        data = sealed(line)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _write_whole(descriptor, data)
        except OSError:
            if not os.fstat(descriptor).st_size:
                self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return len(data)

    def cut_torn_line(self) -> bool:
        """Cut off what a kill left of a line; whether something is left."""
        _, end = self._last_line()
        if self.path.exists():
            os.truncate(self.path, end)
        return end > 0

    def cut_at_damage(self) -> list[Turn]:
        """Cut the log at its first damaged line; the turns before it, each once."""
        found, end = dict[int, Turn](), 0
        with self.path.open("rb") as file:
            for line in file:
                turn = _turn(line)
                if turn is _DAMAGED:
                    _log.error("the store: %s is damaged; it is played again from byte %d on", self.path.name, end)
                    os.truncate(self.path, end)
                    break
                if isinstance(turn, Turn):
                    found.setdefault(turn.step, turn)
                end += len(line)
        return list(found.values())

    def lines(self) -> Iterator[dict[str, Any]]:
        """Those that are not damaged; none where there is no file."""
        return (known for line in self._raw_lines() if (known := opened(line)) is not None)

    def result(self) -> dict[str, Any] | None:
        """How the episode ended, which is the last line; None where it didn't."""
        last, _ = self._last_line()
        found = (opened(last) or {}).get("result")
        return found if isinstance(found, dict) else None

    def _raw_lines(self) -> Iterator[bytes]:
        """Without one that a kill cut off."""
        if self.path.exists():
            with self.path.open("rb") as file:
                yield from (line for line in file if line.endswith(b"\n"))

    def _last_line(self) -> tuple[bytes, int]:
        """The last whole line, and where it ends; empty and 0 where there is none."""
        if not self.path.exists() or not self.path.stat().st_size:
            return b"", 0
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = data.rfind(b"\n") + 1
            return data[data.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end], end


_DAMAGED = object()


def _turn(line: bytes) -> Turn | object:
    """The turn of a line, `_DAMAGED`, or something else for a line of another kind."""
    known = opened(line) if line.endswith(b"\n") else None
    if known is None:
        return _DAMAGED
    try:
        return turn_from_json(known["turn"]) if "turn" in known else None
    except (KeyError, TypeError, ValueError, AttributeError):  # an earlier version's line, which had no checksum
        return _DAMAGED


def _write_whole(descriptor: int, data: bytes) -> None:
    """Add `data` to a file's end, or nothing. A disk that fills up takes the first bytes and refuses the others."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise
