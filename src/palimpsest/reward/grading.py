"""Graders and reward layers, with several questions on one reading graded separately.

    Grades    grades an episode, at once or later: string comparison, a judge, a user's own function
    Layer     modifies a grade: rewards of single turns, penalties

Only what waits is a coroutine, so simple layers need none. `reward/compose.py` combines them. `graded` splits an
episode with several questions, so that graders and layers see one question with its golds and its answer, and averages:

    question_1, question_2...   in the breakdown: the value of each answer
    questions                   how many there are
    every other part            the mean over the questions that have it

If one question cannot be graded (its judge is down), the whole episode is ungraded, with the reason: a mean over the
others would compare rollouts of a group by different questions.

Guaranteed: the event loop is free while a grade is awaited; an error of a shipped grader is raised unchanged; a problem
of one question gets its grader's grade unchanged.
Not covered: a shipped grader that blocks, and so delays every episode (reward/custom_reward.py lets a user's function
block); a value over all questions together (all right or nothing).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from inspect import isawaitable
from statistics import fmean
from typing import Any, Protocol, TypeVar

from palimpsest.errors import closed_after
from palimpsest.reward.custom_reward import fault_of
from palimpsest.types import Grade, Problem, Trajectory

# ---- Several questions on one reading ------------------------------------------------------------------------


def by_question(problem: Problem, trajectory: Trajectory) -> list[tuple[Problem, Trajectory]]:
    """Each question as a problem of its own, with the episode as if it had answered that one alone."""
    answers = trajectory.answers or (None,) * len(problem.questions)
    single = [replace(trajectory, answer=answer, answers=()) for answer in answers]
    return list(zip(problem.by_question, single, strict=True))


def mean_grade(grades: Sequence[Grade]) -> Grade:
    """The grade of an episode from those of its questions.

    >>> mean_grade([Grade(1.0, breakdown={"em": 1.0}), Grade(0.0, breakdown={"em": 0.0})]).breakdown
    {'em': 0.5, 'question_1': 1.0, 'question_2': 0.0, 'questions': 2.0}
    >>> mean_grade([Grade(1.0), Grade(None, "judge: no reply")]).reason
    'question 2 of 2: judge: no reply'
    """
    values = [grade.value for grade in grades if grade.value is not None]
    if len(values) < len(grades):
        return _ungraded(grades)
    names = dict.fromkeys(name for grade in grades for name in grade.breakdown)
    means = {name: fmean(g.breakdown[name] for g in grades if name in g.breakdown) for name in names}
    per_question = {f"question_{number}": value for number, value in enumerate(values, 1)}
    return Grade(
        fmean(values),
        breakdown={**means, **per_question, "questions": float(len(values))},
        per_turn=_over_turns(grades, lambda grade: grade.per_turn, absent=0.0),
        turn_weights=_over_turns(grades, lambda grade: grade.turn_weights, absent=1.0),
        spans=tuple(replace(span, value=span.value / len(grades)) for grade in grades for span in grade.spans),
    )


def _ungraded(grades: Sequence[Grade]) -> Grade:
    number, reason = next((n, grade.reason) for n, grade in enumerate(grades, 1) if grade.value is None)
    if all(grade.reason == reason for grade in grades):
        return Grade(None, reason)  # it lies with the episode, not with a question
    return Grade(None, f"question {number} of {len(grades)}: {reason}")


def _over_turns(
    grades: Sequence[Grade], part: Callable[[Grade], tuple[float, ...] | None], absent: float
) -> tuple[float, ...] | None:
    """[turns] the mean over the questions, None where none of them has such values."""
    rows = [part(grade) for grade in grades]
    turns = next((len(values) for values in rows if values is not None), None)
    if turns is None:
        return None
    return tuple(map(fmean, zip(*((absent,) * turns if values is None else values for values in rows), strict=True)))


# ---- Graders and layers --------------------------------------------------------------------------------------


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
    """The grade, awaited where it has to be; of several questions, the mean of theirs (this file).

    Without a gold there is none. A value, a part or a turn's reward that is no finite number leaves the episode
    ungraded, with the reason.
    """
    if problem.questions:
        return await _graded_by_question(grader, problem, trajectory)
    if not problem.answers:
        return Grade(None, reason=NO_GOLD)
    result = grader.grade(problem, trajectory)
    grade = await result if isawaitable(result) else result
    fault = fault_of(grade, trajectory) if grade.graded else None
    return Grade(None, reason=f"{type(grader).__name__} gave {fault}") if fault else grade


async def _graded_by_question(grader: Grades, problem: Problem, trajectory: Trajectory) -> Grade:
    grades = await asyncio.gather(
        *(graded(grader, question, answered) for question, answered in by_question(problem, trajectory)),
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
