"""The pieces of a file of episodes: frames of a .zst (rollout/frames.py), some megabytes of lines of a plain one.

Guaranteed: a piece that is cut, or no frame, is told as such and never read; of a frame, a line and a group of a plain
file never more than `MOST_BYTES` are held, whatever a header claims.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import orjson
import zstandard

from palimpsest.files import open_regular
from palimpsest.rollout.frames import frame_end

MOST_BYTES = 256 << 20
"""Of a frame's content."""
_STEP = 4 << 20
"""Bytes that are unpacked, or searched for the next line, at once."""
_SNIFFED = 64 << 10
_RAW_LINES = 4 << 20
"""Bytes of whole lines that a piece of a plain file has at least."""


class Damaged(Exception):
    """A piece is cut short, or isn't what it claims."""


@dataclass(frozen=True, slots=True)
class Piece:
    """[start, end) in the file."""

    start: int
    end: int


def next_piece(file: BinaryIO, start: int, *, compressed: bool) -> Piece | None:
    """The piece that begins at `start`; None at the end of the file. Raises Damaged."""
    size = os.fstat(file.fileno()).st_size
    if start >= size:
        return None
    return Piece(start, _frame_end(file, start, size) if compressed else _lines_end(file, start, size))


def content_of(file: BinaryIO, piece: Piece, *, compressed: bool) -> bytes:
    """The lines in a piece. Raises Damaged for a wrong checksum, and for more than `MOST_BYTES`."""
    if piece.end - piece.start > MOST_BYTES:
        raise _too_large("a piece")
    file.seek(piece.start)
    data = file.read(piece.end - piece.start)
    if not compressed:
        return data
    try:
        if zstandard.frame_content_size(data) > MOST_BYTES:
            raise _too_large("a frame")
        return _unpacked(data)
    except zstandard.ZstdError:
        raise Damaged("a frame's checksum is wrong, or it isn't one") from None


def is_compressed(path: Path) -> bool:
    """Whether a file of episodes holds frames."""
    return path.suffix == ".zst"


def begins_with_an_episode(path: Path) -> bool:
    """Whether a file's first line is an episode's, as far as its first `_SNIFFED` bytes tell; so is one that can't be
    unpacked, as that is told where it is opened."""
    try:
        state = path.stat()
        return _begins(path, state.st_size, state.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=4096)
def _begins(path: Path, size: int, changed: int) -> bool:
    """Once for each state of a file. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(_SNIFFED)
    if is_compressed(path):
        try:
            data = zstandard.ZstdDecompressor().stream_reader(data).read(_SNIFFED)
        except zstandard.ZstdError:
            return True
        if not data:
            return True  # cut within its first block
    return _KEYS.search(data) is not None


def next_line(content: bytes, start: int) -> tuple[int, int]:
    """[start, end) of the first line behind `start` that isn't blank, its newline included; what was searched without
    one is empty, [end, end).

    >>> next_line(b"\\n\\n{}\\n", 0), next_line(b"\\n \\n", 0)
    ((2, 5), (3, 3))
    """
    found = _TEXT.search(content, start, start + _STEP)
    if found is None:
        end = min(start + _STEP, len(content))
        return end, end
    end = content.find(b"\n", found.start())
    return found.start(), len(content) if end < 0 else end + 1


def without_blank_lines(content: bytes) -> bytes:
    """
    >>> without_blank_lines(b"\\n{}\\n\\n \\n{}\\n")
    b'{}\\n{}\\n'
    """
    return _BLANK.sub(b"\n", content).lstrip() if _BLANK.search(content) else content


_KEYS = re.compile(rb'"(?:group_id|before_turn)":')
"""A line has the first of them among its first keys, unless events that have the other stand before it."""
_TEXT, _BLANK = re.compile(rb"\S"), re.compile(rb"\n\s+")


def _unpacked(data: bytes) -> bytes:
    """Content of a frame, a step at a time. Raises Damaged as soon as it is too large."""
    content = io.BytesIO()
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        while step := reader.read(_STEP):
            if content.tell() + len(step) > MOST_BYTES:
                raise _too_large("a frame")
            content.write(step)
    return content.getvalue()


def _too_large(what: str) -> Damaged:
    return Damaged(f"{what} is too large: more than {MOST_BYTES >> 20} MiB")


def _frame_end(file: BinaryIO, start: int, size: int) -> int:
    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    end = frame_end(read, start, size)
    if end is None:
        raise Damaged("a frame is cut short, or what follows is none")
    return end


def _lines_end(file: BinaryIO, start: int, size: int) -> int:
    """The end of the last whole line of a piece; the file's last may lack its newline, if it is whole."""
    file.seek(start)
    data = file.read(_RAW_LINES)
    while b"\n" not in data and len(data) < size - start:
        if len(data) > MOST_BYTES:
            raise _too_large("a line")
        added = file.read(len(data) + _RAW_LINES)
        data += added
        if not added:
            break  # the file was cut back since
    if b"\n" in data:
        return start + data.rfind(b"\n") + 1
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Damaged("the last line is cut short") from None
    return start + len(data)
