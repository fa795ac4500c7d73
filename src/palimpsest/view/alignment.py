"""Which words of two texts are the same ones, in order: what a difference of them keeps.

What both begin and end with is kept; between, words that stand once in either part the texts, and what is between two
of these is compared in the same way (patience diff). Small rests without such words are compared exactly.

Guaranteed: runs ascend in both texts and are equal in them; the cost is near linear in the words, so that a text that
was written anew costs no more than one that was kept.
Not covered: the longest common subsequence. Of repeated words in long stretches fewer may be kept than could be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

_SMALL = 4096  # pairs of words that are compared exactly
_DEPTH = 12


class Run(NamedTuple):
    """Equal words."""

    before: int
    """Where it begins in the text before."""
    after: int
    """Where it begins in the text after."""
    length: int


class _Part(NamedTuple):
    before: tuple[int, int]
    after: tuple[int, int]


def aligned(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Run]:
    """Runs of words that are kept.

    >>> aligned("the cat sat on the mat".split(), "a cat sat on a mat".split())
    [Run(before=1, after=1, length=3), Run(before=5, after=5, length=1)]
    """
    pairs = list(_pairs(before, after, _Part((0, len(before)), (0, len(after))), _DEPTH))
    return _legible(_runs(pairs), len(before), len(after))


def _runs(pairs: Sequence[tuple[int, int]]) -> list[Run]:
    runs: list[Run] = []
    for a, b in pairs:
        if runs and (last := runs[-1]).before + last.length == a and last.after + last.length == b:
            runs[-1] = last._replace(length=last.length + 1)
        else:
            runs.append(Run(a, b, 1))
    return runs


def _legible(runs: list[Run], before: int, after: int) -> list[Run]:
    """Without runs that are shorter than what changed on either side: a word that two texts share by chance."""
    ends = [Run(0, 0, 0), *runs, Run(before, after, 0)]
    changed = [max(b.before - a.before - a.length, b.after - a.after - a.length) for a, b in pairwise(ends)]
    return [run for run, left, right in zip(runs, changed, changed[1:], strict=False) if run.length >= min(left, right)]


def _pairs(before: Sequence[Hashable], after: Sequence[Hashable], part: _Part, depth: int) -> Iterator[tuple[int, int]]:
    """Places of equal words in a part of both texts."""
    (a, a_end), (b, b_end) = part
    while a < a_end and b < b_end and before[a] == after[b]:
        yield a, b
        a, b = a + 1, b + 1
    tail = 0
    while a < a_end - tail and b < b_end - tail and before[a_end - tail - 1] == after[b_end - tail - 1]:
        tail += 1
    yield from _middle(before, after, _Part((a, a_end - tail), (b, b_end - tail)), depth)
    yield from ((a_end - left, b_end - left) for left in range(tail, 0, -1))


def _middle(
    before: Sequence[Hashable], after: Sequence[Hashable], part: _Part, depth: int
) -> Iterator[tuple[int, int]]:
    (a, a_end), (b, b_end) = part
    anchors = _anchors(before[a:a_end], after[b:b_end]) if depth and a < a_end and b < b_end else []
    if not anchors:
        if 0 < (a_end - a) * (b_end - b) <= _SMALL:
            yield from _exact(before[a:a_end], after[b:b_end], a, b)
        return
    for x, y in anchors:
        yield from _pairs(before, after, _Part((a, part.before[0] + x), (b, part.after[0] + y)), depth - 1)
        yield part.before[0] + x, part.after[0] + y
        a, b = part.before[0] + x + 1, part.after[0] + y + 1
    yield from _pairs(before, after, _Part((a, a_end), (b, b_end)), depth - 1)


def _exact(
    before: Sequence[Hashable], after: Sequence[Hashable], at_before: int, at_after: int
) -> Iterator[tuple[int, int]]:
    for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        yield from ((at_before + block.a + n, at_after + block.b + n) for n in range(block.size))


def _anchors(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Words that stand once in both, as many as ascend in both.

    >>> _anchors("abcxc", "bacdc")
    [(1, 0)]
    """
    once = {word for word, count in Counter(before).items() if count == 1}
    once &= {word for word, count in Counter(after).items() if count == 1}
    place = {word: number for number, word in enumerate(after) if word in once}
    return _ascending([(number, place[word]) for number, word in enumerate(before) if word in once])


def _ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """A longest part of pairs, ordered by the first, whose second ascends."""
    tops: list[int] = []  # the smallest second that ends a sequence of each length
    ends: list[int] = []  # its pair
    earlier: list[int | None] = []
    for number, (_, second) in enumerate(pairs):
        length = bisect_left(tops, second)
        earlier.append(ends[length - 1] if length else None)
        tops[length : length + 1], ends[length : length + 1] = [second], [number]
    chosen: list[tuple[int, int]] = []
    at = ends[-1] if ends else None
    while at is not None:
        chosen.append(pairs[at])
        at = earlier[at]
    return chosen[::-1]
