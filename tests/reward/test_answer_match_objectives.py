"""Grades of the final answer: one question, several, penalties, layers over grades that are awaited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import parse_config
from palimpsest.config.reward import FinalAnswerConfig, RewardConfig
from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import ConfigError, JudgeError
from palimpsest.evaluation.runner import Arena, Entry, play_entries
from palimpsest.evaluation.sample_log import Cell
from palimpsest.reward.answer_match import ConstraintLayer, FinalAnswerGrader, TruncatedLayer
from palimpsest.reward.grading import Reward, build_reward, graded, training_layers
from palimpsest.rollout.group import Player
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.fakes import LetterCodec, SeedSampler, TwoTurnPolicy

CODEC: Any = LetterCodec()
ONE = Problem("one", "Where?", ("Oslo", "Kristiania"))
GOLDS = {"Q1": "Brian Virtue", "Q2": "The Seldom Scene", "Q3": "1905"}


def several(golds: dict[str, str]) -> Problem:
    """A problem as the contract of search data has it."""
    named = tuple({"name": name, "question": f"{name}?", "answers": [gold]} for name, gold in golds.items())
    return Problem("several", "Q1: ...", (json.dumps(golds),), metadata={"objectives": named})


def ended(answer: str | None, outcome: Outcome = Outcome.ANSWERED) -> Trajectory:
    return Trajectory("p", "g", 0, (), outcome, answer)


def grade(problem: Problem, answer: str | None, judge: Any = None, **config: Any) -> Grade:
    grader = FinalAnswerGrader(FinalAnswerConfig(**config), judge)
    return asyncio.run(grader.grade(problem, ended(answer)))


class Scripted:
    """A judge that has a verdict, or a failure, by answer."""

    def __init__(self, **verdicts: float | Exception) -> None:
        self.verdicts, self.asked = verdicts, list[tuple[str, tuple[str, ...], str]]()

    async def value(self, question: str, golds: Sequence[str], answer: str, absent: bool = False) -> tuple[float, bool]:
        self.asked.append((question, tuple(golds), answer))
        await asyncio.sleep(0)
        found = self.verdicts[answer]
        if isinstance(found, Exception):
            raise found
        return found, 0 < found < 1

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("answer", "em", "f1", "sub_em"),
    [
        ("FINAL_ANSWER: oslo.", 1.0, 1.0, 1.0),
        ("FINAL_ANSWER:\nKristiania", 1.0, 1.0, 1.0),
        ("FINAL_ANSWER: Oslo, Norway", 0.0, 2 / 3, 1.0),
        ("FINAL_ANSWER: Bergen", 0.0, 0.0, 0.0),
        ("Oslo", 0.0, 0.0, 0.0),
        ("FINAL_ANSWER:", 0.0, 0.0, 0.0),
        (None, 0.0, 0.0, 0.0),
    ],
)
def test_one_question_by_each_rule(answer: str | None, em: float, f1: float, sub_em: float) -> None:
    for rule, value in {"em": em, "f1": f1, "sub_em": sub_em}.items():
        found = grade(ONE, answer, match=rule)
        assert found.value == pytest.approx(value)
        assert {k: found.breakdown[k] for k in ("em", "f1", "sub_em")} == pytest.approx(
            {"em": em, "f1": f1, "sub_em": sub_em}
        )


def test_of_several_questions_all_is_all_or_nothing_and_each_the_mean() -> None:
    """C9.19: credit for a part is there where it is asked for."""
    answer = 'FINAL_ANSWER:\n{"Q1": "brian virtue", "Q2": "Bill Monroe", "Q3": 1905}'
    all_of_them, each = (grade(several(GOLDS), answer, objectives=how) for how in ("all", "each"))
    assert all_of_them.value == 0.0
    assert each.value == pytest.approx(2 / 3)
    assert all_of_them.breakdown == each.breakdown
    assert each.breakdown["objectives"] == 3
    assert each.breakdown["objectives_right"] == 2
    assert each.breakdown["answered"] == 1.0
    right = "FINAL_ANSWER: " + json.dumps(GOLDS)
    assert grade(several(GOLDS), right).value == 1.0


def test_the_worst_answer_is_the_value_where_values_are_shares() -> None:
    found = grade(several({"Q1": "a b", "Q2": "c"}), 'FINAL_ANSWER: {"Q1": "a b d e", "Q2": "c"}', match="f1")
    # Q1: precision 1/2... "a" is an article and does not count: b of b d e, 2*1/(3+1); Q2: 1
    assert found.value == pytest.approx(0.5)
    assert found.breakdown["each"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"Q1": "Brian Virtue"}', {"each": 1 / 3, "answered": 1 / 3, "keys_missing": 2, "malformed": 0}),
        (json.dumps({**GOLDS, "Q4": "x"}), {"each": 1, "keys_extra": 1, "keys_missing": 0, "malformed": 0}),
        ("Brian Virtue", {"each": 0, "answered": 0, "keys_missing": 3, "malformed": 1}),
        ('{"Q1": "", "Q2": " ", "Q3": "."}', {"each": 0, "answered": 0, "keys_missing": 0, "malformed": 0}),
    ],
)
def test_missing_and_extra_keys_are_counted_and_no_errors(answer: str, expected: dict[str, float]) -> None:
    found = grade(several(GOLDS), f"FINAL_ANSWER: {answer}")
    assert {name: found.breakdown[name] for name in expected} == pytest.approx(expected)


def test_a_question_that_the_data_marks_as_invalid_is_left_out_or_taken_at_its_word() -> None:
    problem = several({"Q1": "Oslo", "Q2": "the question is invalid."})
    answer = 'FINAL_ANSWER: {"Q1": "Oslo", "Q2": "Rome"}'
    assert grade(problem, answer).value == 1.0
    assert grade(problem, answer).breakdown["objectives"] == 1
    assert grade(problem, answer, invalid_golds="gold").value == 0.0
    lone = Problem("p", "?", ("the question is invalid.",))
    assert grade(lone, "FINAL_ANSWER: Rome").value is None
    assert grade(lone, "FINAL_ANSWER: The question is invalid", invalid_golds="gold").value == 1.0


def test_the_invalid_golds_of_the_published_data_are_seen(real_data: Path) -> None:
    import pyarrow.parquet as parquet

    file = real_data / "wiki_train_multi_object_2_3.parquet"
    models = parquet.read_table(file, columns=["reward_model"]).column(0).to_pylist()
    golds = [json.loads(model["ground_truth"]) for model in models]
    leaving_out, literal = (FinalAnswerGrader(FinalAnswerConfig(invalid_golds=how)) for how in ("leave_out", "gold"))

    async def asked(grader: FinalAnswerGrader) -> list[float]:
        trajectories = [ended("FINAL_ANSWER: " + json.dumps(row)) for row in golds]
        grades = [await grader.grade(several(row), t) for row, t in zip(golds, trajectories, strict=True)]
        assert {grade.value for grade in grades} == {1.0}
        return [grade.breakdown["objectives"] for grade in grades]

    pairs = zip(golds, asyncio.run(asked(leaving_out)), asyncio.run(asked(literal)), strict=True)
    marked = [(row, counted) for row, counted, all_of_them in pairs if counted < all_of_them]
    assert all(counted == len(row) - 1 for row, counted in marked)
    assert (len(golds), len(marked)) == (2048, 45)


def test_the_judge_is_asked_about_answers_alone_and_not_where_there_is_none() -> None:
    judge = Scripted(Virtue=1.0, Scene=0.5)
    answer = 'I searched.\nFINAL_ANSWER: {"Q1": "Virtue", "Q2": "Scene", "Q3": ""}'
    found = grade(several(GOLDS), answer, judge, match="judge", objectives="each")
    assert sorted(judge.asked) == [("Q1?", ("Brian Virtue",), "Virtue"), ("Q2?", ("The Seldom Scene",), "Scene")]
    assert found.value == pytest.approx(0.5)
    assert found.breakdown["partial"] == pytest.approx(1 / 3)
    assert found.breakdown["em"] == 0.0
    assert grade(ONE, "no marker", judge, match="judge").value == 0.0
    assert len(judge.asked) == 2


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (r"So it is \boxed{Oslo}.", ["Oslo"]),
        ("The answer is Oslo", ["Oslo"]),
        (r"FINAL_ANSWER: Bergen, not \boxed{Oslo}", [r"Bergen, not \boxed{Oslo}"]),
        (r"FINAL_ANSWER: \boxed{Oslo}", [r"\boxed{Oslo}"]),
        (r"\boxed{Oslo} FINAL_ANSWER:", []),
        ("I believe Oslo.", []),
    ],
)
def test_what_is_boxed_is_an_answer_where_it_is_looked_for(answer: str, asked: list[str]) -> None:
    judge = Scripted(**dict.fromkeys(asked, 1.0))
    found = grade(ONE, answer, judge, match="judge", where="found")
    assert [each[2] for each in judge.asked] == asked
    assert found.value == float(bool(asked))
    named = grade(several({"Q1": "Oslo"}), answer, Scripted(), match="judge", where="found")
    assert named.value == 0.0, "several answers have names, which a box doesn't give"


def test_a_failed_judge_leaves_the_episode_ungraded_with_the_reason() -> None:
    """C9.13: a network failure was reward 0, indistinguishable from a wrong answer."""
    judge = Scripted(Virtue=1.0, Scene=JudgeError("down"))
    found = grade(several(GOLDS), 'FINAL_ANSWER: {"Q1": "Virtue", "Q2": "Scene"}', judge, match="judge")
    assert (found.value, found.reason, found.breakdown) == (None, "judge: down", {})


def test_a_judge_is_asked_about_every_answer_that_has_a_character() -> None:
    """Comparison by strings drops articles: to it "A" says nothing."""
    problem = Problem("p", "Which blood type?", ("Type A",))
    found = grade(problem, "FINAL_ANSWER: A", Scripted(A=1.0), match="judge")
    assert (found.value, found.breakdown["answered"]) == (1.0, 1.0)
    silent = Scripted()
    found = grade(problem, "FINAL_ANSWER: ", silent, match="judge")
    assert (found.value, found.breakdown["answered"], silent.asked) == (0.0, 0.0, [])


def test_points_of_a_rubric_are_asked_about_one_by_one_and_their_mean_counts() -> None:
    class Points:
        """A judge to whom the answer makes one point, half of another and not the third."""

        asked: list[tuple[str, ...]] = []  # noqa: RUF012

        async def value(
            self, question: str, golds: Sequence[str], answer: str, absent: bool = False
        ) -> tuple[float, bool]:
            self.asked.append(tuple(golds))
            (point,) = golds
            return {"a car": 1.0, "red": 0.5, "new": 0.0}[point], point == "red"

        async def close(self) -> None: ...

    problem = Problem("p", "What of it?", ("a car", "red", "new"))
    found = grade(problem, "FINAL_ANSWER: a car, reddish", Points(), match="judge", golds="each")
    assert found.value == pytest.approx(0.5)
    assert found.breakdown["partial"] == 1.0
    assert Points.asked == [("a car",), ("red",), ("new",)]
    down = grade(problem, "FINAL_ANSWER: x", Scripted(x=JudgeError("down")), match="judge", golds="each")
    assert (down.value, down.reason) == (None, "judge: down")
    assert grade(problem, "FINAL_ANSWER: a new car", match="sub_em", golds="each").value == pytest.approx(2 / 3)
    assert grade(problem, "FINAL_ANSWER: a new car", match="sub_em").value == 1.0


def test_an_error_of_the_judges_own_code_is_no_grade_but_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        grade(ONE, "FINAL_ANSWER: x", Scripted(x=ZeroDivisionError()), match="judge")


def test_a_marker_in_the_text_of_a_tool_is_no_answer() -> None:
    """C9.13: the published reward searched the whole decoded segment, tool results included."""
    said, seen = "I found nothing.", "result: FINAL_ANSWER: Oslo"
    completion = Completion(tuple(map(ord, said)), (0.0,) * len(said), StopReason.STOP)
    turn = Turn(tuple(map(ord, seen)), completion, 0, "act")
    trajectory = Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, said)
    found = asyncio.run(FinalAnswerGrader(FinalAnswerConfig()).grade(ONE, trajectory))
    assert (found.value, found.breakdown["answered"]) == (0.0, 0.0)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.gradable])
def test_an_episode_that_the_machinery_lost_is_ungraded(outcome: Outcome) -> None:
    found = asyncio.run(FinalAnswerGrader(FinalAnswerConfig()).grade(ONE, ended("FINAL_ANSWER: Oslo", outcome)))
    assert (found.value, found.breakdown) == (None, {})


@pytest.mark.parametrize(
    ("outcome", "value"),
    [
        (Outcome.OUT_OF_TURNS, -0.1),
        (Outcome.OUT_OF_CONTEXT, -0.1),
        (Outcome.ANSWER_TRUNCATED, 0.5),
        (Outcome.ANSWERED, 0.5),
    ],
)
def test_the_penalty_is_for_broken_limits_alone(outcome: Outcome, value: float) -> None:
    found = ConstraintLayer(0.1)(ONE, ended(None, outcome), Grade(0.5, breakdown={"em": 0.5}))
    assert found.value == value
    assert found.breakdown == {"em": 0.5, "outcome": 0.5}
    lost = ConstraintLayer(0.1)(ONE, ended(None, outcome), Grade(None, reason="judge: down"))
    assert (lost.value, lost.reason) == (None, "judge: down")


@pytest.mark.parametrize("penalty", [1.0, 0.25])
def test_a_truncated_answer_loses_its_share_in_training_alone(penalty: float, tiny_codec: Any) -> None:
    config = RewardConfig(name="em", truncated_penalty=penalty)
    rewarding = build_reward(config, tiny_codec)
    cut, whole = (ended("\\boxed{Anna}", outcome) for outcome in (Outcome.ANSWER_TRUNCATED, Outcome.ANSWERED))
    problem = Problem("p", "Who?", ("Anna",))
    found = asyncio.run(rewarding.grade(problem, cut))
    assert found.value == pytest.approx(1 - penalty)
    assert found.breakdown["outcome"] == 1.0
    assert asyncio.run(rewarding.grade(problem, whole)).value == 1.0
    assert asyncio.run(graded(rewarding.answer, problem, cut)).value == 1.0
    assert training_layers(config) == [f"reward.truncated_penalty={penalty:g}"]


@pytest.mark.parametrize("penalty", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("reward", [-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0])
def test_a_penalty_never_raises_a_reward(penalty: float, reward: float) -> None:
    cut = TruncatedLayer(penalty)(ONE, ended(None, Outcome.ANSWER_TRUNCATED), Grade(reward))
    whole = TruncatedLayer(penalty)(ONE, ended(None, Outcome.ANSWERED), Grade(reward))
    assert cut.value is not None
    assert cut.value == (reward * (1 - penalty) if reward > 0 else reward)
    assert whole.value == reward
    wrong = [-1.0, -1.0, -1.0, cut.value]
    assert reward != -1.0 or len(set(wrong)) == 1  # no advantage for running over the budget


def test_the_worth_of_the_answer_below_another_layer_is_kept() -> None:
    below = Grade(0.3, breakdown={"outcome": 0.5})
    found = ConstraintLayer(0.1)(ONE, ended(None, Outcome.OUT_OF_TURNS), below)
    assert (found.value, found.breakdown) == (-0.1, {"outcome": 0.5})


# ---- grades that are awaited ---------------------------------------------------------------------------------


class Later:
    """Grades after a while; keeps how many grades were awaited at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        return Grade(float(trajectory.answer == "yes"), breakdown={"em": 1.0})


class AtOnce:
    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        return Grade(float(trajectory.answer == "yes"), breakdown={"em": 1.0})


def play(grader: Any) -> list[Group]:
    problems = [Problem(name, "yes? ", ("yes",)) for name in "abc"]
    options: dict[str, Any] = {"policy": TwoTurnPolicy(), "sampler": SeedSampler(), "codec": LetterCodec()}
    return asyncio.run(
        Player(group_size=8, sampling=SamplingConfig(), grader=grader, **options).batch(problems, key=(0,))
    )


def test_grades_that_are_awaited_are_the_same_and_are_awaited_together() -> None:
    later = Later()
    assert play(later) == play(AtOnce())
    assert later.most == 24


def test_an_error_in_an_awaited_grade_ends_the_batch_as_itself() -> None:
    class Faulty:
        async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
            raise ZeroDivisionError("judge")

    with pytest.raises(ZeroDivisionError, match="judge"):
        play(Faulty())


def test_evaluation_awaits_grades() -> None:
    problems = [Problem(f"p{i}", "yes? ", ("yes",)) for i in range(8)]
    entry = Entry(Cell("eval", None, None, "two_turns"), TwoTurnPolicy(), problems)

    def run(grader: Any) -> Any:
        arena = Arena(SeedSampler(), CODEC, grader, SamplingConfig(), (0,))
        return asyncio.run(play_entries([entry], arena))

    assert run(Later()) == run(AtOnce())


def test_layers_work_over_a_grade_that_is_awaited_as_over_one_that_is_not() -> None:
    trajectory = ended("yes", Outcome.OUT_OF_TURNS)
    rewards = [Reward(answer, (ConstraintLayer(0.1),)) for answer in (Later(), AtOnce())]
    grades = [asyncio.run(graded(reward, ONE, trajectory)) for reward in rewards]
    assert grades[0] == grades[1] == Grade(-0.1, breakdown={"em": 1.0, "outcome": 1.0})


# ---- configuration -------------------------------------------------------------------------------------------


def test_the_recipe_names_the_grader() -> None:
    config = RewardConfig.model_validate({"name": "final_answer", "final_answer": {"match": "f1"}})
    assert build_reward(config, CODEC).answer == FinalAnswerGrader(FinalAnswerConfig(match="f1"))


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("{name: final_answer, final_answer: {match: judge}}", "reward.judge.url"),
        ("{judge: {url: 'http://x/v1', model: m}}", "drop reward.judge"),
        ("{name: em, final_answer: {objectives: each}}", "reward.name=em"),
        ("{name: final_answer, final_answer: {match: judge}, judge: {url: 'x:9527', model: m}}", "reward.judge.url"),
        ("{name: final_answer, final_answer: {constraint_penalty: -0.1}}", "constraint_penalty"),
    ],
)
def test_combinations_without_a_meaning_are_refused(reward: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_config(f"reward: {reward}")
    assert len(str(caught.value).splitlines()) == 1
