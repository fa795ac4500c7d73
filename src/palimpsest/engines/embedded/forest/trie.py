"""The trie of a set of token rows, in depth-first order: which rows share what, where each token is laid out once.

Rows in lexicographic order are the depth-first order of their trie, so all of it follows from how much each row shares
with the one before (`shared`): a row adds the tokens behind that to the layout, and the rows that go on through a
token are neighbours. No loop here runs over tokens.

Guaranteed: within a tree every distinct prefix has exactly one place; the descendants of a token are the places from
it up to its exit. The same rows give the same layout, in whatever order they come.
Not covered: prefixes that begin anywhere but at the first token.

Axes: R rows, T places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def in_order(rows: Sequence[Ids]) -> list[int]:
    """Indices of `rows` in lexicographic order, a prefix before what it is a prefix of, equal rows by index.

    >>> in_order([np.array([5, 1]), np.array([2, 300, 7]), np.array([2, 300]), np.array([2, 4])])
    [3, 2, 1, 0]
    """
    keys = [row.astype(">i8").tobytes() for row in rows]  # big-endian bytes compare like the ids
    return sorted(range(len(rows)), key=lambda i: (keys[i], i))


def shared_lengths(rows: Sequence[Ids]) -> Ids:
    """[R] tokens that each row has in common with the one before it, from the start; 0 for the first.

    >>> shared_lengths([np.array([1, 2]), np.array([1, 2, 3]), np.array([1, 4]), np.array([7])]).tolist()
    [0, 2, 1, 0]
    """
    shared = np.zeros(len(rows), np.int64)
    for r in range(1, len(rows)):
        left, right = rows[r - 1], rows[r]
        size = min(len(left), len(right))
        differs = left[:size] != right[:size]
        first = int(differs.argmax()) if size else 0
        shared[r] = first if size and differs[first] else size
    return shared


def cut(lengths: Ids, shared: Ids, budget: int, overhead: int) -> list[int]:
    """Rows at which a new forest begins, so that each stays within `budget` places at the least cost.

    A cut costs what its two neighbours share, which is computed twice then, and `overhead` for the call of its own.
    A row longer than the budget gets a forest of its own; a row that is a prefix of the next one costs nothing beside
    it and stays there. Four rows of 4 tokens, of which the middle two share only 1:

    >>> cut(np.full(4, 4), np.array([0, 3, 1, 3]), budget=8, overhead=2)
    [0, 2]
    """
    count = len(lengths)
    added = np.cumsum(lengths - shared)
    allowed = np.ones(count, np.bool_)
    allowed[1:] = shared[1:] < lengths[:-1]
    price = np.where(allowed, shared + overhead, np.iinfo(np.int64).max // 4)
    price[0] = 0
    cost = np.zeros(count + 1, np.int64)  # of the first so many rows
    origin = np.zeros(count, np.int64)
    low = 0
    for r in range(count):
        while low < r and lengths[low] + added[r] - added[low] > budget:
            low += 1
        while low and not allowed[low]:
            low -= 1  # no longer for it: all of these rows lie on one path
        origin[r] = low + int(np.argmin(cost[low : r + 1] + price[low : r + 1]))
        cost[r + 1] = cost[origin[r]] + price[origin[r]]
    begins, end = [], count
    while end:
        end = int(origin[end - 1])
        begins.append(end)
    return begins[::-1]


@dataclass(frozen=True, slots=True)
class Trie:
    """Rows laid out together; see `lay_out`."""

    places: list[Ids]
    """For each row, the place of each of its tokens."""
    owner: Ids
    """[T] row that a place was laid out for: the first that has it."""
    depths: Ids
    """[T] tokens before it on the path from its root."""
    exits: Ids
    """[T] one past the last place that descends from it."""


def lay_out(lengths: Ids, shared: Ids) -> Trie:
    """Places of rows in lexicographic order, of which each shares `shared` tokens with the one before.

    Rows `1 2 3`, `1 2 4` and `1 5` share `1 2` and `1`:

    >>> trie = lay_out(np.array([3, 3, 2]), np.array([0, 2, 1]))
    >>> [places.tolist() for places in trie.places]
    [[0, 1, 2], [0, 1, 3], [0, 4]]
    >>> trie.depths.tolist(), trie.exits.tolist()
    ([0, 1, 2, 2, 1], [5, 4, 3, 4, 5])
    """
    added = lengths - shared
    ends = np.cumsum(added)
    begins = ends - added
    total, deepest = int(ends[-1]), int(lengths.max())
    depths = np.arange(total) - np.repeat(begins - shared, added)
    path, places = np.empty(deepest, np.int64), []
    for begin, end, keep, length in zip(begins, ends, shared, lengths, strict=True):
        path[keep:length] = np.arange(begin, end)
        places.append(path[:length].copy())
    exits, stop = np.empty(total, np.int64), np.full(deepest, total)
    for begin, end, keep, length in reversed(list(zip(begins, ends, shared, lengths, strict=True))):
        exits[begin:end] = stop[keep:length]
        stop[keep:] = begin  # what the rows before have at these depths ends here
    return Trie(places, np.repeat(np.arange(len(lengths)), added), depths, exits)
