"""Where pieces of evidence stand among numbered slots (documents, chunks), in an order and a distance asked for.

Guaranteed: every admissible choice of slots is equally likely.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from palimpsest.errors import DataError

Order = Literal["any", "forward", "reverse"]
"""Of evidence in reasoning order: any, first hop first, last hop first (ReMemR1's distant evidence)."""


def spaced(rng: random.Random, count: int, slots: int, distance: int) -> list[int]:
    """`count` ascending slots, neighbours at least `distance` >= 1 apart; there must be room for them.

    >>> spaced(random.Random(0), 3, 5, 2)
    [0, 2, 4]
    """
    gap = distance - 1
    drawn = sorted(rng.sample(range(slots - (count - 1) * gap), count))
    return [slot + place * gap for place, slot in enumerate(drawn)]


def room(count: int, distance: int) -> int:
    """Slots that `count` pieces `distance` apart need at the least.

    >>> room(2, 100), room(1, 100), room(3, 1)
    (101, 1, 3)
    """
    return (count - 1) * distance + 1


def ordered(rng: random.Random, slots: Sequence[int], order: Order) -> list[int]:
    """Ascending slots to slots in reasoning order.

    >>> ordered(random.Random(0), [1, 5], "forward"), ordered(random.Random(0), [1, 5], "reverse")
    ([1, 5], [5, 1])
    """
    if order == "any":
        return rng.sample(slots, len(slots))
    return list(slots) if order == "forward" else list(slots)[::-1]


def at_positions(positions: Sequence[float], count: int, slots: int, what: str) -> list[int]:
    """The slot of each of `count` pieces at relative places of 0.0 to 1.0. Raises DataError, which begins with `what`.

    >>> at_positions([0.0, 0.5, 1.0], 3, 101, "")
    [0, 50, 100]
    """
    if len(positions) != count:
        raise DataError(f"{what}: {count} gold documents, but {len(positions)} positions; give one for each")
    chosen = [round(position * (slots - 1)) for position in positions]
    if len(set(chosen)) < count:
        raise DataError(
            f"{what}: two of the positions fall on one of {slots} documents; give others, or more documents"
        )
    return chosen


def distance_between(slots: Sequence[int]) -> int:
    """Least distance of two of them; 0 for fewer than two.

    >>> distance_between([9, 2, 4])
    2
    """
    ranked = sorted(slots)
    return min((later - earlier for earlier, later in pairwise(ranked)), default=0)
