"""What grades episodes, and what works on a grade that was given.

    Grades    grades an episode, at once or later: string comparison, a judge, a user's own function
    Layer     takes a grade further: rewards of single turns, penalties

So only what waits is a coroutine, and a layer is written and tested without one. They are put together in
`reward/compose.py`. Whoever wants a grade asks `graded`, so that graders and layers see one question at a time.

Guaranteed: the event loop goes on while a grade is awaited; an error of a shipped grader comes out as itself.
Not covered: a shipped grader that blocks; it would hold up every episode. A user's own may (`reward/own.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from palimpsest.errors import closed_after
from palimpsest.reward.own import fault_of
from palimpsest.reward.questions import by_question, mean_grade
from palimpsest.types import Grade, Problem, Trajectory

T = TypeVar("T")

NO_GOLD = "the data has no gold answer for it"
"""Why a question without one is ungraded, whatever the grader."""


class Grades(Protocol):
    """Grades at once or later: what rollouts and evaluation take."""

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade | Awaitable[Grade]:
        """The reward of a trajectory, or why it has none."""
        ...


class Layer(Protocol):
    """Takes a grade further."""

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade | Awaitable[Grade]:
        """`grade`, which has a value, with what the layer adds: to the value, to the breakdown, for single turns."""
        ...


async def graded(grader: Grades, problem: Problem, trajectory: Trajectory) -> Grade:
    """The grade, awaited where it has to be; of several questions, the mean of theirs (reward/questions.py).

    Without a gold there is none. A value, a part or a turn's reward that is no finite number leaves the episode
    ungraded, with the reason.
    """
    if problem.questions:
        return await _graded_by_question(grader, problem, trajectory)
    if not problem.answers:
        return Grade(None, reason=NO_GOLD)
    given = grader.grade(problem, trajectory)
    grade = await given if isawaitable(given) else given
    fault = fault_of(grade, trajectory) if grade.graded else None
    return Grade(None, reason=f"{type(grader).__name__} gave {fault}") if fault else grade


async def _graded_by_question(grader: Grades, problem: Problem, trajectory: Trajectory) -> Grade:
    grades = await asyncio.gather(
        *(graded(grader, asked, answered) for asked, answered in by_question(problem, trajectory)),
        return_exceptions=True,  # all have ended before an error comes out
    )
    for failure in grades:
        if isinstance(failure, BaseException):
            raise failure
    return mean_grade([grade for grade in grades if isinstance(grade, Grade)])


async def close(grader: object) -> None:
    """Close what the grader or layer has open, if it has anything."""
    closing_call = getattr(grader, "close", None)
    if closing_call is not None:
        result = closing_call()
        if isawaitable(result):
            await result


async def closing(grader: Grades, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, then close what the grader has open."""
    return await closed_after(work, lambda: close(grader), "the grader")
