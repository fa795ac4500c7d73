"""Tries a user's credit rule and says in words what it does: `palimpsest check my_module:my_rule`. Checked:

- advantages: finite, one a turn or one a trajectory, for groups of even and uneven turns and for a single trajectory;
- determinism: the same group gets the same advantages;
- order: trajectories in another order get their own advantages in that order;
- equal rewards: nothing to learn from a group whose rewards are all equal;
- direction: a higher reward never has a lower advantage, summed over a trajectory's turns.

Not covered: bias and variance of the gradient; the last two are broken on purpose by some rules: judge for yourself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum, isclose
from typing import Any

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.outcome import Rule, TurnAdvantage, asked, turn_mean
from palimpsest.credit.rules import build_rule
from palimpsest.errors import RunError
from palimpsest.memory.check import Finding
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn

REWARDS = (1.0, 0.0, 0.25, 0.5)
_TOLERANCE = 1e-9


def check_rule(name: str, options: Mapping[str, Any]) -> list[Finding]:
    """All findings, in the order of this module's docstring. Raises ConfigError if it can't be made."""
    config = CreditConfig(rule=name, options=dict(options))
    rule = build_rule(config)
    groups = {
        "even turns": _group(REWARDS, (2, 2, 2, 2)),
        "uneven turns": _group(REWARDS, (1, 3, 2, 5)),
        "a single trajectory": _group((1.0,), (2,)),
    }
    try:
        given = {title: asked(rule, group, name) for title, group in groups.items()}
    except RunError as error:
        return [Finding("advantages", False, str(error))]
    total = sum(map(len, given.values()))
    return [
        Finding("advantages", True, f"{total} trajectories in {len(groups)} groups"),
        _determinism(name, config, given, groups),
        _order(rule, name, groups["uneven turns"], given["uneven turns"]),
        _equal(rule, name),
        _direction(given["even turns"]),
    ]


def _group(rewards: Sequence[float], turns: Sequence[int]) -> Group:
    completion = Completion((1, 2), (-0.5, -0.5), StopReason.STOP)
    played = tuple(
        Trajectory(
            "check",
            "check",
            place,
            tuple(Turn((0,), completion, step, "act") for step in range(count)),
            Outcome.ANSWERED,
        )
        for place, count in enumerate(turns)
    )
    grades = (Grade(reward, per_turn=(0.0,) * count) for reward, count in zip(rewards, turns, strict=True))
    return Group(Problem("check", "Which?", ("this",)), played, tuple(grades))


def _determinism(name: str, config: CreditConfig, given: Mapping[str, Any], groups: Mapping[str, Group]) -> Finding:
    again = build_rule(config)
    changed = [title for title in list(groups)[::-1] if asked(again, groups[title], name) != given[title]]
    if changed:
        return Finding("determinism", False, f"other advantages when made and asked again: {', '.join(changed)}")
    return Finding("determinism", True, "the same advantages when made and asked again, in another order of groups")


def _order(rule: Rule, name: str, group: Group, given: Sequence[tuple[TurnAdvantage, ...]]) -> Finding:
    turned = Group(group.problem, group.trajectories[::-1], group.grades[::-1])
    other = asked(rule, turned, name)[::-1]
    same = all(
        isclose(turn_mean(left), turn_mean(right), abs_tol=_TOLERANCE)
        for mine, theirs in zip(given, other, strict=True)
        for left, right in zip(mine, theirs, strict=True)
    )
    if same:
        return Finding("order", True, "each trajectory keeps its advantages in another order of the group")
    return Finding("order", False, "advantages depend on the order of the group, which is that of rollout numbers")


def _equal(rule: Rule, name: str) -> Finding:
    given = asked(rule, _group((0.5,) * 3, (1, 2, 3)), name)
    largest = max(abs(turn_mean(value)) for turns in given for value in turns)
    if largest <= _TOLERANCE:
        return Finding("equal rewards", True, "advantages of 0")
    return Finding("equal rewards", False, f"a group of equal rewards gets advantages of up to {largest:g}")


def _direction(given: Sequence[tuple[TurnAdvantage, ...]]) -> Finding:
    ranked = sorted(zip(REWARDS, (fsum(map(turn_mean, turns)) for turns in given), strict=True))
    for (less, below), (more, above) in pairwise(ranked):
        if above < below - _TOLERANCE:
            return Finding("direction", False, f"a reward of {more:g} has less advantage than one of {less:g}")
    return Finding("direction", True, "a higher reward never has a lower advantage")
