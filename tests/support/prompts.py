"""Random prompts for samplers, of ids below 200."""

from __future__ import annotations

import random

VOCAB = 200


def prompts(count: int, *, seed: int = 0, low: int = 3, high: int = 60) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCAB) for _ in range(draw.randint(low, high))] for _ in range(count)]


def grouped(groups: int, size: int) -> list[list[int]]:
    """Prompts that share a long prefix within a group; every third is the prefix alone."""
    heads, tails = prompts(groups, seed=1, low=30, high=40), prompts(groups * size, seed=2, low=1, high=12)
    return [heads[i // size] + (tails[i] if i % 3 else []) for i in range(groups * size)]
