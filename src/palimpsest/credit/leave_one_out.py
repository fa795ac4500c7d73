"""The mean of the others: RLOO.

    A_i = R_i - mean(R_j, j != i) = G / (G - 1) * (R_i - mean(R))

Ahmadian et al., "Back to Basics" (arXiv 2402.14740, eq. 8), after Kool et al. 2019. A reward never stands in
its own baseline, so the gradient is unbiased. verl computes it per row, which puts segments of the same
trajectory into its baseline; here a reward is a trajectory's. A group of one has no others and is refused in
the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum


def advantages(rewards: Sequence[float]) -> list[float]:
    """[G] rewards of one group, G of at least 2, to [G] advantages.

    >>> advantages([1.0, 0.0, 0.0, 1.0, 0.0])
    [0.75, -0.5, -0.5, 0.75, -0.5]
    """
    if len(rewards) < 2:
        raise ValueError("leave-one-out needs at least 2 rewards in a group: train.group_size of at least 2")
    total = fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]
