"""Grades of several questions on one reading."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.reward import FinalAnswerConfig, RewardConfig
from palimpsest.errors import JudgeError
from palimpsest.reward.answer_match import FinalAnswerGrader
from palimpsest.reward.grading import Reward, build_reward, graded
from palimpsest.types import Grade, Outcome, Problem, Question, SpanReward, Trajectory
from support.agents import base_codec, played
from support.fakes import YesGrader, answered

PROBLEM = Problem.asking("p", [Question("Who?", ("Anna",)), Question("Where?", ("Rome",))], "Anna lives in Rome.")
EPISODE = Trajectory(
    "p", "g", 0, answered().turns, Outcome.ANSWERED, "both", answers=("\\boxed{Anna}", "\\boxed{Oslo}")
)


def grade(grader: Any, problem: Problem = PROBLEM, trajectory: Trajectory = EPISODE) -> Grade:
    return asyncio.run(graded(grader, problem, trajectory))


def test_the_grade_is_the_mean_over_questions_graded_as_separate_problems() -> None:
    reward = build_reward(RewardConfig(), base_codec())
    result = grade(reward)
    alone = [
        grade(reward, Problem("p", one.text, one.answers), replace(EPISODE, answer=answer, answers=()))
        for one, answer in zip(PROBLEM.questions, EPISODE.answers, strict=True)
    ]
    assert [one.value for one in alone] == [1.0, 0.0]
    assert result.value == 0.5
    assert (result.breakdown["question_1"], result.breakdown["question_2"]) == (1.0, 0.0)
    assert all(
        result.breakdown[name] == pytest.approx(sum(one.breakdown[name] for one in alone) / 2)
        for name in alone[0].breakdown
    )


def test_the_gold_of_one_question_is_no_answer_to_another() -> None:
    swapped = replace(EPISODE, answers=tuple(reversed(("\\boxed{Anna}", "\\boxed{Rome}"))))
    assert grade(build_reward(RewardConfig(name="sub_em"), base_codec()), trajectory=swapped).value == 0.0


def test_an_episode_that_never_answered_is_zero_and_a_lost_one_is_ungraded() -> None:
    reward = build_reward(RewardConfig(), base_codec())
    assert grade(reward, trajectory=Trajectory("p", "g", 0, (), Outcome.EMPTY_CONTEXT)).value == 0.0
    lost = grade(reward, trajectory=Trajectory("p", "g", 0, (), Outcome.TIMED_OUT))
    assert (lost.value, lost.reason) == (None, "episode ended as timed_out")


class HalfJudge:
    """Fails on the second question."""

    async def value(self, question: str, golds: Sequence[str], answer: str, absent: bool = False) -> tuple[float, bool]:
        await asyncio.sleep(0)
        if question == "Where?":
            raise JudgeError("no reply")
        return 1.0, False

    async def close(self) -> None: ...


def test_a_judge_that_fails_on_one_question_leaves_the_episode_ungraded() -> None:
    answered_both = replace(EPISODE, answers=("FINAL_ANSWER: Anna", "FINAL_ANSWER: Rome"))
    result = grade(FinalAnswerGrader(FinalAnswerConfig(match="judge"), HalfJudge()), trajectory=answered_both)
    assert (result.value, result.reason) == (None, "question 2 of 2: judge: no reply")


def test_a_layer_gets_every_question_and_its_turn_rewards_are_averaged() -> None:
    def layer(problem: Problem, trajectory: Trajectory, below: Grade) -> Grade:
        assert not problem.questions
        worth = float(problem.question == "Who?")
        return replace(below, value=worth, per_turn=(worth,), spans=(SpanReward(0, 0, 1, worth),))

    result = grade(Reward(YesGrader(), (layer,)))
    assert (result.value, result.per_turn) == (0.5, (0.5,))
    assert sum(span.value for span in result.spans) == 0.5


def test_an_error_of_a_grader_is_raised() -> None:
    class Broken:
        def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
            raise ZeroDivisionError(problem.question)

    with pytest.raises(ZeroDivisionError, match=r"Who\?"):
        grade(Broken())


def test_the_state_reward_matches_the_golds_of_every_question() -> None:
    from palimpsest.memory.recall import RecallPolicy

    policy = RecallPolicy(prompts="short", chunk_size=64, question_tokens=40, memory_tokens=60, answer_tokens=20)
    trajectory, _ = played(policy, ["<update> Anna</update>", "\\boxed{Anna}", "\\boxed{Oslo}"], PROBLEM)
    config = RewardConfig.model_validate({"state": {}})
    result = grade(build_reward(config, base_codec()), trajectory=trajectory)
    assert result.value == 0.5
    assert result.breakdown["state_update"] == pytest.approx(0.5 / 3)  # one of two golds, in one of three turns
