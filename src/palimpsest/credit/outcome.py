"""Credit rules: their contract, and the rules that use only the outcome, with one advantage per trajectory.

    mean, mean_std, leave_one_out   the shipped rules
    my_module:my_rule               a function (group) -> advantages, or a class with the method `turn_advantages`

In the formulas A_i is the advantage of trajectory i, R_i its reward, G the number of graded trajectories in the group.

Guaranteed: a rule's result is finite and of the right lengths, or the run ends with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from numbers import Real
from statistics import fmean, stdev
from typing import Any

from palimpsest import plugins
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.text.display_text import ordinal
from palimpsest.types import Group, Trajectory

# ---- Baselines of outcome rewards ----------------------------------------------------------------------------


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


# ---- What a credit rule is, and the rules that look at the outcome alone, giving each trajectory one advantage


TurnAdvantage = float | tuple[float, ...]
"""A number for all sampled tokens of a turn, or [T] one for each."""
TurnAdvantages = Sequence[float | Sequence[float | Sequence[float]]]
"""[trajectories] a number for all turns, or [turns]."""
Rule = Callable[[Group], TurnAdvantages]
"""Called with a group of graded trajectories."""


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


def rule_advantages(rule: Rule, group: Group, name: str) -> list[tuple[TurnAdvantage, ...]]:
    """[trajectories][turns] the rule's advantages for graded trajectories. Raises RunError if they are invalid."""
    where = f"credit.adv_estimator={name}: group {group.problem.id}"
    try:
        result: Any = list(rule(group))
    except PalimpsestError:
        raise
    except (Exception, SystemExit) as error:
        raise RunError(f"{where}: it raised {plugins.error_text(error)}") from error
    if len(result) != len(group.trajectories):
        raise RunError(f"{where}: {len(group.trajectories)} trajectories, advantages of {len(result)}")
    return [
        _of_turns(advantages, trajectory, f"{where}, rollout {trajectory.rollout}")
        for advantages, trajectory in zip(result, group.trajectories, strict=True)
    ]


def turn_mean(advantage: TurnAdvantage) -> float:
    """
    >>> turn_mean(0.1), turn_mean((1.0, 0.0)), turn_mean(())
    (0.1, 0.5, 0.0)
    """
    if isinstance(advantage, float):
        return advantage
    return math.fsum(advantage) / len(advantage) if advantage else 0.0


def _of_turns(returned: Any, trajectory: Trajectory, where: str) -> tuple[TurnAdvantage, ...]:
    values = [returned] * len(trajectory.turns) if isinstance(returned, Real) else _listed(returned)
    if values is None:
        shown = repr(returned)[:60] if isinstance(returned, str | None) else f"a {type(returned).__name__}"
        raise RunError(f"{where}: {shown} is neither a number nor a list of numbers, one per turn")
    if len(values) != len(trajectory.turns):
        raise RunError(f"{where}: {len(trajectory.turns)} turns, {len(values)} advantages")
    return tuple(
        _of_tokens(value, len(turn.completion.token_ids), f"{where}, turn {ordinal(number)}")
        for number, (value, turn) in enumerate(zip(values, trajectory.turns, strict=True))
    )


def _of_tokens(returned: Any, sampled: int, where: str) -> TurnAdvantage:
    tokens = None if isinstance(returned, Real) else _listed(returned)
    if tokens is None:
        return _number(returned, where)
    if len(tokens) != sampled:
        raise RunError(f"{where}: {sampled} sampled tokens, {len(tokens)} advantages")
    return tuple(_number(value, f"{where}, token {number}") for number, value in enumerate(tokens))


def _number(value: Any, where: str) -> float:
    if not plugins.finite(value):
        shown = repr(value) if isinstance(value, float) else type(value).__name__
        raise RunError(f"{where}: the advantage is {shown}; use a finite number")
    return float(value)


def _listed(returned: Any) -> list[Any] | None:
    try:
        return None if isinstance(returned, str) else list(returned)
    except TypeError:
        return None
