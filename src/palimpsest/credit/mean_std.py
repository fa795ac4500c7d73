"""Group mean and standard deviation: GRPO.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)

DeepSeekMath (arXiv 2402.03300, section 4.1.2) doesn't say which standard deviation. verl, TRL and MemAct
divide by G - 1 (torch's default); so do we, with verl's epsilon. A group of one takes mean 0 and deviation 1,
as in verl.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

EPSILON = 1e-6


def advantages(rewards: Sequence[float]) -> list[float]:
    """[G] rewards of one group to [G] advantages.

    >>> [round(a, 3) for a in advantages([1.0, 0.0, 0.0, 0.0])]
    [1.5, -0.5, -0.5, -0.5]
    >>> advantages([1.0])
    [1.0]
    """
    if len(rewards) == 1:
        return list(rewards)
    if min(rewards) == max(rewards):  # the mean's rounding error over the epsilon would be a signal
        return [0.0] * len(rewards)
    mean, deviation = fmean(rewards), stdev(rewards)
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]
