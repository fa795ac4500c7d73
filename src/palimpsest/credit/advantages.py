"""Advantages that a credit rule returns: their types and checks.

    mean, mean_std, leave_one_out   the shipped rules (grpo_rloo.py)
    my_module:my_rule               a function (group) -> advantages, or a class with the method `turn_advantages`

Guaranteed: a rule's result is finite and of the right lengths, or the run ends with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from palimpsest import plugins
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.text.display_text import ordinal
from palimpsest.types import Group, Segment, Trajectory

TurnAdvantage = float | tuple[float, ...]
"""A number for all sampled tokens of a turn, or [T] one for each."""
TurnAdvantages = Sequence[float | Sequence[float | Sequence[float]]]
"""[trajectories] a number for all turns, or [turns]."""
Rule = Callable[[Group], TurnAdvantages]
"""Called with a group of graded trajectories."""


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


def spread(segments: Sequence[Segment], turns: Sequence[TurnAdvantage]) -> list[tuple[float, ...]]:
    """[segments][N] from advantages of [turns] or of their tokens."""
    trained: set[int] = set()
    rows = []
    for segment in segments:
        places: dict[int, int] = {}  # progress within each turn's completion
        row: list[float] = []
        for start, end, turn in segment.sampled:
            value, place = turns[turn], places.get(turn, 0)
            places[turn] = place + end - start
            if isinstance(value, float) or turn in trained:
                row += [turn_mean(value)] * (end - start)
            else:
                row += value[place : places[turn]]
        trained |= places.keys()
        rows.append(tuple(row))
    return rows
