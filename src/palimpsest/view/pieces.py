"""The pieces of a file of episodes: frames of a .zst (rollout/frames.py), some megabytes of lines of a plain one.

Guaranteed: a piece that is cut, or no frame, is told as such and never read; a frame that claims to be larger than
`MOST_BYTES` is refused before it is unpacked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson
import zstandard

from palimpsest.rollout.frames import frame_end

MOST_BYTES = 2 << 30
"""Of a frame's content."""
_INPUT = 64 << 10
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
    """The lines in a piece. Raises Damaged for a wrong checksum."""
    file.seek(piece.start)
    data = file.read(piece.end - piece.start)
    if not compressed:
        return data
    try:
        size = zstandard.frame_content_size(data)
        if size > MOST_BYTES:
            raise Damaged(f"a frame claims more than {MOST_BYTES >> 30} GiB")
        return zstandard.ZstdDecompressor().decompress(data) if size >= 0 else _unsized(data)
    except zstandard.ZstdError:
        raise Damaged("a frame's checksum is wrong, or it isn't one") from None


def is_compressed(path: Path) -> bool:
    """Whether a file of episodes holds frames."""
    return path.suffix == ".zst"


def _unsized(data: bytes) -> bytes:
    """Content of a frame whose header doesn't say how large it is. Raises Damaged."""
    reader, parts, total = zstandard.ZstdDecompressor().decompressobj(), [], 0
    for start in range(0, len(data), _INPUT):
        parts.append(reader.decompress(data[start : start + _INPUT]))
        total += len(parts[-1])
        if total > MOST_BYTES:
            raise Damaged(f"a frame holds more than {MOST_BYTES >> 30} GiB")
    if not reader.eof:
        raise Damaged("a frame is cut short")
    return b"".join(parts)


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
        data += file.read(_RAW_LINES)
    if b"\n" in data:
        return start + data.rfind(b"\n") + 1
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Damaged("the last line is cut short") from None
    return start + len(data)
