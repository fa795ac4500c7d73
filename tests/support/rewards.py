"""A reward of one's own that every group has a signal under."""

from __future__ import annotations

from palimpsest.types import Problem, Trajectory


def every_second(problem: Problem, trajectory: Trajectory) -> float:
    """1.0 for every second rollout of a group, whatever it says."""
    return float(trajectory.rollout % 2)
