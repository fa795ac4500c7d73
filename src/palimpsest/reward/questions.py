"""Several questions on one reading: each is graded as a problem of its own, and the episode is worth their mean.

    question_1, question_2...   in the breakdown: the value of each answer
    questions                   how many there are
    every other part            the mean over the questions that have it

So a grader or a layer, a user's own too, sees one question with its golds and the answer to it, whatever else was
asked. A question that can't be graded (its judge is down) leaves the whole episode ungraded, with the reason: a mean
over the others would compare rollouts of a group by different questions.

Guaranteed: a problem of one question gets the grade that its grader gave, untouched.
Not covered: a value of questions taken together (all right or nothing); a layer that wants it can't see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from palimpsest.types import Grade, Problem, Trajectory


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
    each = {f"question_{number}": value for number, value in enumerate(values, 1)}
    return Grade(
        fmean(values),
        breakdown={**means, **each, "questions": float(len(values))},
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
    given = [part(grade) for grade in grades]
    turns = next((len(values) for values in given if values is not None), None)
    if turns is None:
        return None
    return tuple(map(fmean, zip(*((absent,) * turns if values is None else values for values in given), strict=True)))
