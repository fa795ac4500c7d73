"""Where the zstd frames of a file begin and end, without decompressing one.

A frame says the size of each of its blocks, so the way to the next frame is a walk from block to block (RFC 8878,
section 3.1). Guaranteed: the walk's cost grows with the number of blocks, and it ends at the first frame that is cut or
isn't one. Not covered: damage inside a block, which only decompressing finds.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    start, view = 0, memoryview(data)
    while (end := _frame_end(view, start)) is not None:
        yield start, end
        start = end


def _frame_end(data: memoryview, start: int) -> int | None:
    head = data[start : start + _HEADER]
    try:
        at = start + zstandard.frame_header_size(head)
        checksum = _CHECKSUM if zstandard.get_frame_parameters(head).has_checksum else 0
    except zstandard.ZstdError:
        return None
    last = False
    while not last:
        block = int.from_bytes(data[at : at + _BLOCK_HEADER], "little")
        if at + _BLOCK_HEADER > len(data):
            return None
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        at += _BLOCK_HEADER + (1 if kind == _RLE else size)
    return at + checksum if at + checksum <= len(data) else None
