"""Credit where one reading answers several questions."""

from __future__ import annotations

from statistics import fmean

import pytest

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import assign
from palimpsest.reward.grading import mean_grade
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Question, StopReason, Trajectory, Turn
from support.credit import only

PROBLEM = Problem.asking("p", [Question("Where?", ("Rome",)), Question("Who?", ("Anna",))])
VALUES = ((1.0, 0.0), (0.0, 0.0))
"""[rollouts][questions] what each answer is worth."""


def by_question(group: Group) -> list[list[float]]:
    """A user's rule: an answer is compared with the group's answers to its question, a reading turn with the means."""
    advantages = []
    for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
        row = []
        for turn in trajectory.turns:
            asked = turn.notes.get("question")
            names = ["question_1", "question_2"] if asked is None else [f"question_{asked + 1}"]
            own = fmean(grade.breakdown[name] for name in names)
            row.append(own - fmean(other.breakdown[name] for other in group.grades for name in names))
        advantages.append(row)
    return advantages


def rollout(number: int) -> Trajectory:
    """A reading turn and an answer a question, of one token each."""
    notes: tuple[dict[str, int], ...] = ({}, {"question": 0}, {"question": 1})
    turns = tuple(
        Turn(
            (9, step),
            Completion((number, step), (-0.5, -0.5), StopReason.STOP),
            step,
            "read" if not note else "answer",
            note,
        )
        for step, note in enumerate(notes)
    )
    return Trajectory("p", "g", number, turns, Outcome.ANSWERED)


def advantages(rule: str) -> list[list[float]]:
    """[rollouts][turns] of the tokens that are trained."""
    grades = tuple(mean_grade([Grade(value) for value in values]) for values in VALUES)
    group = Group(PROBLEM, (rollout(0), rollout(1)), grades)
    rows = only(assign([group], CreditConfig(adv_estimator=rule), 1)).segments
    each = [row.advantages[0] for row in rows]
    return [each[:3], each[3:]]


def test_of_several_questions_every_turn_gets_the_means_advantage_and_an_own_rule_may_tell_them_apart() -> None:
    assert advantages("mean") == [[0.25] * 3, [-0.25] * 3]
    assert advantages(f"{__name__}:by_question") == [
        pytest.approx([0.25, 0.5, 0.0]),
        pytest.approx([-0.25, -0.5, 0.0]),
    ]
