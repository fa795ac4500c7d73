"""Turns, episodes and small groups of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn


def make_turn(prompt: Sequence[int], sampled: Sequence[int], step: int = 0, name: str = "act", **fields: Any) -> Turn:
    """A turn whose tokens have the log-probability -0.5; `fields` are further ones of `Turn`."""
    completion = Completion(tuple(sampled), (-0.5,) * len(sampled), StopReason.STOP)
    return Turn(tuple(prompt), completion, step, name, **fields)


def make_episode(*turns: Turn, rollout: int = 0, **fields: Any) -> Trajectory:
    """An answered episode of problem p; `fields` are further ones of `Trajectory`."""
    given = {"problem_id": "p", "group_id": "g", "outcome": Outcome.ANSWERED, **fields}
    return Trajectory(rollout=rollout, turns=turns, **given)


def sample_groups(count: int = 3) -> list[Group]:
    completion = Completion((5, 6), (-0.1, -0.2), StopReason.STOP, 3)
    return [
        Group(
            Problem(f"p{i}", "who?", ("Ann", "Bo"), "a long document", {"hops": 2}),
            tuple(
                Trajectory(
                    f"p{i}", f"1/0/p{i}", r, (Turn((1, 2, 3), completion, 0, "read", {"chunk": 0}),), Outcome.ANSWERED
                )
                for r in range(2)
            ),
            (Grade(1.0, breakdown={"em": 1.0}), Grade(None, "judge down")),
        )
        for i in range(count)
    ]
