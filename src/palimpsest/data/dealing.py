"""Which of a file's problems a training step gets, as a pure function of seed, step and round.

An epoch is a shuffle of its own; what doesn't fill a step is left out. Rounds after the first (in place of dropped
groups) page through one more shuffle of the step's own.
"""

from __future__ import annotations

from functools import lru_cache

from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random


def window(total: int, *, step: int, count: int, round: int, path: str) -> tuple[tuple[str, int], list[int]]:
    """The shuffle to take from, as (what, number) for `shuffled`, and the `count` places of it.

    Raises DataError if the file holds fewer than a step asks for.

    >>> window(5, step=3, count=2, round=0, path="questions.json")
    (('epoch', 1), [2, 3])
    """
    if count > total:
        raise DataError(
            f"{path} holds {total} problems, a step asks for {count}: lower train.prompts_per_step "
            "or data.limit, or read a larger file"
        )
    if round == 0:
        steps = total // count  # in an epoch
        start = step % steps * count
        return ("epoch", step // steps), list(range(start, start + count))
    start = (round - 1) * max(count, total // 4)
    return ("refill", step), [(start + i) % total for i in range(count)]


@lru_cache(maxsize=8)
def shuffled(size: int, seed: int, what: str, number: int) -> tuple[int, ...]:
    """A permutation of range(size) of its own for (seed, what, number)."""
    order = list(range(size))
    keyed_random(seed, what, number).shuffle(order)
    return tuple(order)
