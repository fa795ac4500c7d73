"""Group mean without the standard deviation: MemAgent and Dr. GRPO.

    A_i = R_i - mean(R_1 .. R_G)

MemAgent (arXiv 2507.02259) takes it from Dr. GRPO (arXiv 2503.20783), which shows that dividing by the
standard deviation favours problems that are nearly always or nearly never solved. The authors' code of
MemAgent takes the mean of a group of one as 0, so that its advantage is the raw reward (REINFORCE without a
baseline); so do we.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def advantages(rewards: Sequence[float]) -> list[float]:
    """[G] rewards of one group to [G] advantages.

    >>> advantages([1.0, 0.0, 0.0, 0.0])
    [0.75, -0.25, -0.25, -0.25]
    >>> advantages([1.0])
    [1.0]
    """
    mean = fmean(rewards) if len(rewards) > 1 else 0.0
    return [reward - mean for reward in rewards]
