"""Credit rules: from the grades of a group to the advantage of every turn.

    mean, mean_std, leave_one_out   the trajectory's advantage, at each of its turns
    my_module:my_rule               a function (group) -> advantages, or a class with the method `turn_advantages`

A rule is shown the graded trajectories of a group alone, with what counts as their rewards (a penalty for long turns is
off already), and gives for each of them a number, or one number a turn.

Guaranteed, whatever the rule: an ungraded trajectory is in nobody's statistics, as no rule sees it; a lone survivor of
a group that failures thinned out gets 0, as there is nothing to compare it with; what comes back is finite and of the
right lengths, or the run ends with the reason in words; a rule is made anew for each step, so that a resumed run gives
the same.
Not covered: whether a user's rule is unbiased, or gives 0 where all rewards are equal (`palimpsest check` tells).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from palimpsest import plugins
from palimpsest.config.schema import CreditConfig
from palimpsest.credit import leave_one_out, mean, mean_std
from palimpsest.errors import RunError
from palimpsest.types import Group

TurnAdvantages = Sequence[float | Sequence[float]]
Rule = Callable[[Group], TurnAdvantages]
"""[trajectories] of a group, all graded: a number for all turns, or [turns] numbers."""


def build_rule(config: CreditConfig) -> Rule:
    """The rule that `credit.rule` names. Raises ConfigError."""
    if plugins.is_own(config.rule):
        return plugins.build(
            config.rule,
            config.options,
            where=f"credit.rule={config.rule}",
            arguments=("group",),
            method="turn_advantages",
            options_key="credit.options",
        )
    return SHIPPED[config.rule]


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """A rule that looks at the rewards alone."""

    advantages: Callable[[Sequence[float]], Sequence[float]]
    """[G] rewards to [G] advantages."""

    def __call__(self, group: Group) -> Sequence[float]:
        """[G] the advantage of each trajectory, at all of its turns."""
        rewards = [grade.value for grade in group.grades if grade.value is not None]
        if len(rewards) > 1 and min(rewards) == max(rewards):
            return [0.0] * len(rewards)  # exactly 0, where a rounded mean would leave a rest
        return self.advantages(rewards)


SHIPPED: dict[str, Rule] = {
    "mean": OutcomeRule(mean.advantages),
    "mean_std": OutcomeRule(mean_std.advantages),
    "leave_one_out": OutcomeRule(leave_one_out.advantages),
}


def asked(rule: Rule, group: Group, name: str) -> list[tuple[float, ...]]:
    """[trajectories][turns] what the rule says of a group whose trajectories are all graded. RunError if it can't be
    used."""
    where = f"credit.rule={name}: group {group.problem.id}"
    try:
        result: Any = list(rule(group))
    except Exception as error:
        raise RunError(f"{where}: it raised {type(error).__name__}: {error}") from error
    if len(result) != len(group.trajectories):
        raise RunError(f"{where}: {len(group.trajectories)} trajectories, advantages of {len(result)}")
    return [
        _of_turns(given, len(trajectory.turns), f"{where}, rollout {trajectory.rollout}")
        for given, trajectory in zip(result, group.trajectories, strict=True)
    ]


def _of_turns(given: Any, turns: int, where: str) -> tuple[float, ...]:
    values = [given] * turns if isinstance(given, Real) else _listed(given)
    if values is None:
        raise RunError(f"{where}: {given!r:.60} is neither a number nor a list of numbers, one a turn")
    if len(values) != turns:
        raise RunError(f"{where}: {turns} turns, {len(values)} advantages")
    for turn, value in enumerate(values):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise RunError(f"{where}, turn {turn}: the advantage is {value!r:.60}; a finite number is needed")
    return tuple(float(value) for value in values)


def _listed(given: Any) -> list[Any] | None:
    try:
        return None if isinstance(given, str) else list(given)
    except TypeError:
        return None
