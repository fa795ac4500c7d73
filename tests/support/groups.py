"""Small groups of episodes."""

from __future__ import annotations

from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn


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
