"""GRPO, Dr. GRPO and RLOO: advantages from the rewards of a group, one per trajectory.

A_i is the advantage of trajectory i, R_i its reward, G the number of graded trajectories in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean, stdev

from palimpsest.types import Group

EPSILON = 1e-6


def mean_advantages(rewards: Sequence[float]) -> list[float]:
    """[G] rewards of one group to [G] advantages: the group's mean is the baseline (MemAgent, Dr. GRPO).

        A_i = R_i - mean(R_1 .. R_G)

    MemAgent (arXiv 2507.02259) takes it from Dr. GRPO (arXiv 2503.20783), which shows that dividing by the standard
    deviation favours problems that are nearly always or nearly never solved. A group of one keeps its raw reward
    (REINFORCE without a baseline), as in MemAgent's code.

    >>> mean_advantages([1.0, 0.0, 0.0, 0.0])
    [0.75, -0.25, -0.25, -0.25]
    >>> mean_advantages([1.0])
    [1.0]
    """
    mean = fmean(rewards) if len(rewards) > 1 else 0.0
    return [reward - mean for reward in rewards]


def mean_std_advantages(rewards: Sequence[float]) -> list[float]:
    """[G] rewards of one group to [G] advantages: mean and standard deviation of the group (GRPO).

        A_i = (R_i - mean(R)) / (std(R) + 1e-6)

    DeepSeekMath (arXiv 2402.03300, section 4.1.2) does not say which standard deviation. verl, TRL and MemAct divide by
    G - 1 (torch's default); so does this function, with verl's epsilon. A group of one keeps its raw reward.

    >>> [round(a, 3) for a in mean_std_advantages([1.0, 0.0, 0.0, 0.0])]
    [1.5, -0.5, -0.5, -0.5]
    >>> mean_std_advantages([1.0])
    [1.0]
    """
    if len(rewards) == 1:
        return list(rewards)
    if min(rewards) == max(rewards):  # the mean's rounding error over the epsilon would be a signal
        return [0.0] * len(rewards)
    mean, deviation = fmean(rewards), stdev(rewards)
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]


def leave_one_out_advantages(rewards: Sequence[float]) -> list[float]:
    """[G] rewards of one group, G of at least 2, to [G] advantages: the mean of the others is the baseline (RLOO).

        A_i = R_i - mean(R_j, j != i) = G / (G - 1) * (R_i - mean(R))

    Ahmadian et al., "Back to Basics" (arXiv 2402.14740, eq. 8), after Kool et al. 2019. A reward is never part of its
    own baseline, so the gradient is unbiased. verl computes it per row, which puts segments of the same trajectory
    into its baseline; here a reward belongs to a trajectory. The configuration rejects groups of one.

    >>> leave_one_out_advantages([1.0, 0.0, 0.0, 1.0, 0.0])
    [0.75, -0.5, -0.5, 0.75, -0.5]
    """
    if len(rewards) < 2:
        raise ValueError("leave-one-out needs at least 2 rewards in a group: train.group_size of at least 2")
    total = fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """A rule that uses only the rewards."""

    advantages: Callable[[Sequence[float]], Sequence[float]]
    """[G] rewards to [G] advantages."""

    def __call__(self, group: Group) -> Sequence[float]:
        rewards = [grade.value for grade in group.grades if grade.value is not None]
        if len(rewards) > 1 and min(rewards) == max(rewards):
            return [0.0] * len(rewards)  # exactly 0, without a rounding error of the mean
        return self.advantages(rewards)


mean = OutcomeRule(mean_advantages)
mean_std = OutcomeRule(mean_std_advantages)
leave_one_out = OutcomeRule(leave_one_out_advantages)
