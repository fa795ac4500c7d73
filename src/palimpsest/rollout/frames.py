"""Where the zstd frames of a file begin and end, without decompressing one.

A frame says the size of each of its blocks, so the way to the next frame is a walk from block to block (RFC 8878,
section 3.1). Guaranteed: the walk's cost grows with the number of blocks, and it ends at the first frame that is cut or
isn't one. Not covered: damage inside a block, which only decompressing finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import zstandard

_HEADER = 18  # bytes of the longest frame header
_BLOCK_HEADER = 3
_CHECKSUM = 4
_RLE = 1  # of the types of a block the one whose size is that of what it stands for; it takes one byte itself


def frame_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """[start, end) in bytes of each whole frame, in their order, up to the first that isn't whole.

    >>> two = zstandard.compress(b"first") + zstandard.compress(b"second")
    >>> [zstandard.decompress(two[start:end]) for start, end in frame_spans(two + b"torn")]
    [b'first', b'second']
    """
    view, start = memoryview(data), 0

    def read(at: int, count: int) -> bytes:
        return bytes(view[at : at + count])

    while (end := frame_end(read, start, len(data))) is not None:
        yield start, end
        start = end


def frame_end(read: Callable[[int, int], bytes], start: int, size: int) -> int | None:
    """Where the frame that begins at `start` ends; None if none does, or if it is cut.

    `read(at, count)` gives what there is of so many bytes, of `size` in all.
    """
    head = read(start, _HEADER)
    try:
        at = start + zstandard.frame_header_size(head)
        checksum = _CHECKSUM if zstandard.get_frame_parameters(head).has_checksum else 0
    except zstandard.ZstdError:
        return None
    last = False
    while not last:
        header = read(at, _BLOCK_HEADER)
        if len(header) < _BLOCK_HEADER:
            return None
        block = int.from_bytes(header, "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        at += _BLOCK_HEADER + (1 if kind == _RLE else length)
    return at + checksum if at + checksum <= size else None
