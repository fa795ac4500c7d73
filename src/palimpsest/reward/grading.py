"""What a grader is, and how graders are put on top of each other.

    Grader    grades at once: string comparison, and whatever looks at the trajectory alone
    Grades    what rollouts and evaluation take: a Grader, or one whose grade has to be awaited (a judge)
    Layered   Graders on top of Grades: awaits the grade below, once, and lets them work on it as if it were given

So only what waits is a coroutine, and a layer (rewards of turns, penalties) is written and tested without one.

Guaranteed: the event loop goes on while a grade is awaited; an error of a grader comes out as itself.
Not covered: a Grader that blocks; it would hold up every episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from palimpsest.types import Grade, Problem, Trajectory

T = TypeVar("T")


class Grader(Protocol):
    """Grades at once."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """The reward of a trajectory, or why it has none."""
        ...


class Grades(Protocol):
    """Grades at once or later."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade | Awaitable[Grade]:
        """The reward of a trajectory, or why it has none."""
        ...


async def graded(grader: Grades, problem: Problem, trajectory: Trajectory) -> Grade:
    """The grade, awaited where it has to be."""
    grade = grader.grade(problem, trajectory)
    return await grade if isawaitable(grade) else grade


@dataclass(frozen=True, slots=True)
class Given:
    """A grade that is known, as a grader."""

    value: Grade

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return self.value


@dataclass(frozen=True, slots=True)
class Layered:
    """`base`, with graders on top of it."""

    base: Grades
    layers: Callable[[Grader], Grader]
    """Puts the layers on a grader."""

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        """What the topmost layer says."""
        below = await graded(self.base, problem, trajectory)
        return self.layers(Given(below)).grade(problem, trajectory)


async def closing(grader: Grades, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, then close what the grader has open."""
    try:
        return await work
    finally:
        close = getattr(grader, "close", None)
        if close is not None:
            await close()
