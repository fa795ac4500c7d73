"""Truncation and chunking of a document's token ids.

Guaranteed: chunks join back to exactly the retained ids; none is longer than `chunk_size`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

Overlong = Literal["centre", "tail", "refuse"]
Boundary = Literal["token", "line", "paragraph"]


def truncate(ids: Sequence[int], limit: int, how: Overlong) -> list[int]:
    """At most `limit` ids: `centre` drops the middle (MemAgent), `tail` the end (its vime port).

    >>> truncate([1, 2, 3, 4, 5], 4, "centre"), truncate([1, 2, 3, 4, 5], 4, "tail")
    ([1, 2, 4, 5], [1, 2, 3, 4])
    """
    if len(ids) <= limit:
        return list(ids)
    if how == "centre":
        head = (limit + 1) // 2
        return [*ids[:head], *ids[len(ids) - (limit - head) :]]
    return list(ids[:limit])


def split(
    ids: Sequence[int],
    chunk_size: int,
    newlines: frozenset[int] = frozenset(),
    blank_lines: frozenset[int] | None = None,
) -> Iterator[Sequence[int]]:
    """Chunks of at most `chunk_size` ids, each cut after the last newline token in reach if there is one.

    With `blank_lines`, the tokens of two line breaks, each is cut after the last blank line in reach, if there is one.
    Raises ValueError for a `chunk_size` below 1.

    >>> [list(c) for c in split([1, 2, 3, 4, 5], 2)]
    [[1, 2], [3, 4], [5]]
    >>> [list(c) for c in split([1, 0, 3, 4, 0, 5], 4, newlines=frozenset({0}))]
    [[1, 0], [3, 4, 0, 5]]
    >>> [list(c) for c in split([1, 0, 0, 3, 0, 4, 9, 5, 0, 6], 5, frozenset({0, 9}), frozenset({9}))]
    [[1, 0, 0], [3, 0, 4, 9], [5, 0, 6]]
    """

    def ends_paragraph(i: int) -> bool:
        return ids[i] in (blank_lines or ()) or (ids[i] in newlines and ids[i - 1] in newlines)

    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}: use 1 or more")
    start = 0
    while start < len(ids):
        end = limit = min(start + chunk_size, len(ids))
        if end < len(ids):
            end = next((i + 1 for i in range(limit - 1, start, -1) if ids[i] in newlines), limit)
        if end < len(ids) and blank_lines is not None:
            end = next((i + 1 for i in range(limit - 1, start, -1) if ends_paragraph(i)), end)
        yield ids[start:end]
        start = end
