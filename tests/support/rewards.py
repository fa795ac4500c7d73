"""A custom reward that gives every group a signal."""

from __future__ import annotations

from palimpsest.types import Problem, Trajectory


def every_second(problem: Problem, trajectory: Trajectory) -> float:
    """1.0 for every second rollout of a group."""
    return float(trajectory.rollout % 2)
