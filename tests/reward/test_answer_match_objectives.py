"""Grades of final answers: one question, several, penalties, layers, asynchronous graders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
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
    named = tuple({"name": name, "question": f"{name}?", "answers": [gold]} for name, gold in golds.items())
    return Problem("several", "Q1: ...", (json.dumps(golds),), metadata={"objectives": named})


def ended(answer: str | None, outcome: Outcome = Outcome.ANSWERED) -> Trajectory:
    return Trajectory("p", "g", 0, (), outcome, answer)


def grade(problem: Problem, answer: str | None, judge: Any = None, **config: Any) -> Grade:
    grader = FinalAnswerGrader(FinalAnswerConfig(**config), judge)
    return asyncio.run(grader.grade(problem, ended(answer)))


class Scripted:
    """A judge with a verdict, or an error, for each answer or first gold."""

    def __init__(self, **verdicts: float | Exception) -> None:
        self.verdicts, self.requests = verdicts, list[tuple[str, tuple[str, ...], str]]()

    async def value(self, question: str, golds: Sequence[str], answer: str, absent: bool = False) -> tuple[float, bool]:
        self.requests.append((question, tuple(golds), answer))
        await asyncio.sleep(0)
        verdict = self.verdicts[answer if answer in self.verdicts else golds[0]]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict, 0 < verdict < 1

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("FINAL_ANSWER: oslo.", (1, 1, 1)),
        ("FINAL_ANSWER:\nKristiania", (1, 1, 1)),
        ("FINAL_ANSWER: Oslo, Norway", (0, 2 / 3, 1)),
        ("FINAL_ANSWER: Bergen", (0, 0, 0)),
        ("Oslo", (0, 0, 0)),
        ("FINAL_ANSWER:", (0, 0, 0)),
        (None, (0, 0, 0)),
    ],
)
def test_one_question_by_every_rule(answer: str | None, expected: tuple[float, ...]) -> None:
    values = dict(zip(("em", "f1", "sub_em"), expected, strict=True))
    for rule, value in values.items():
        result = grade(ONE, answer, match=rule)
        assert result.value == pytest.approx(value)
        assert {name: result.breakdown[name] for name in values} == pytest.approx(values)


def test_objectives_all_needs_every_answer_and_each_takes_the_mean() -> None:
    answer = 'FINAL_ANSWER:\n{"Q1": "brian virtue", "Q2": "Bill Monroe", "Q3": 1905}'
    strict, mean = (grade(several(GOLDS), answer, objectives=mode) for mode in ("all", "each"))
    assert strict.value == 0.0
    assert mean.value == pytest.approx(2 / 3)
    assert strict.breakdown == mean.breakdown
    names = ("objectives", "objectives_right", "answered")
    assert [mean.breakdown[name] for name in names] == [3, 2, 1]
    assert grade(several(GOLDS), "FINAL_ANSWER: " + json.dumps(GOLDS)).value == 1.0


def test_objectives_all_takes_the_minimum_of_fractional_values() -> None:
    result = grade(several({"Q1": "a b", "Q2": "c"}), 'FINAL_ANSWER: {"Q1": "a b d e", "Q2": "c"}', match="f1")
    # Q1: precision 1/2... "a" is an article and does not count: b of b d e, 2*1/(3+1); Q2: 1
    assert result.value == pytest.approx(0.5)
    assert result.breakdown["each"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"Q1": "Brian Virtue"}', {"each": 1 / 3, "answered": 1 / 3, "keys_missing": 2, "malformed": 0}),
        (json.dumps({**GOLDS, "Q4": "x"}), {"each": 1, "keys_extra": 1, "keys_missing": 0, "malformed": 0}),
        ("Brian Virtue", {"each": 0, "answered": 0, "keys_missing": 3, "malformed": 1}),
        ('{"Q1": "", "Q2": " ", "Q3": "."}', {"each": 0, "answered": 0, "keys_missing": 0, "malformed": 0}),
    ],
)
def test_missing_and_extra_keys_are_counted(answer: str, expected: dict[str, float]) -> None:
    result = grade(several(GOLDS), f"FINAL_ANSWER: {answer}")
    assert {name: result.breakdown[name] for name in expected} == pytest.approx(expected)


def test_a_question_marked_as_invalid_is_left_out_or_graded_literally() -> None:
    problem = several({"Q1": "Oslo", "Q2": "the question is invalid."})
    answer = 'FINAL_ANSWER: {"Q1": "Oslo", "Q2": "Rome"}'
    assert grade(problem, answer).value == 1.0
    assert grade(problem, answer).breakdown["objectives"] == 1
    assert grade(problem, answer, invalid_golds="gold").value == 0.0
    lone = Problem("p", "?", ("the question is invalid.",))
    assert grade(lone, "FINAL_ANSWER: Rome").value is None
    assert grade(lone, "FINAL_ANSWER: The question is invalid", invalid_golds="gold").value == 1.0


def test_the_invalid_golds_of_the_published_data_are_left_out(real_data: Path) -> None:
    import pyarrow.parquet as parquet

    file = real_data / "wiki_train_multi_object_2_3.parquet"
    models = parquet.read_table(file, columns=["reward_model"]).column(0).to_pylist()
    golds = [json.loads(model["ground_truth"]) for model in models]
    leaving_out, literal = (FinalAnswerGrader(FinalAnswerConfig(invalid_golds=how)) for how in ("leave_out", "gold"))

    async def objectives(grader: FinalAnswerGrader) -> list[float]:
        trajectories = [ended("FINAL_ANSWER: " + json.dumps(row)) for row in golds]
        grades = [await grader.grade(several(row), t) for row, t in zip(golds, trajectories, strict=True)]
        assert {grade.value for grade in grades} == {1.0}
        return [grade.breakdown["objectives"] for grade in grades]

    pairs = zip(golds, asyncio.run(objectives(leaving_out)), asyncio.run(objectives(literal)), strict=True)
    marked = [(row, counted) for row, counted, total in pairs if counted < total]
    assert all(counted == len(row) - 1 for row, counted in marked)
    assert (len(golds), len(marked)) == (2048, 45)


def test_the_judge_gets_only_answers() -> None:
    judge = Scripted(Virtue=1.0, Scene=0.5)
    answer = 'I searched.\nFINAL_ANSWER: {"Q1": "Virtue", "Q2": "Scene", "Q3": ""}'
    result = grade(several(GOLDS), answer, judge, match="judge", objectives="each")
    assert sorted(judge.requests) == [("Q1?", ("Brian Virtue",), "Virtue"), ("Q2?", ("The Seldom Scene",), "Scene")]
    assert result.value == pytest.approx(0.5)
    assert result.breakdown["partial"] == pytest.approx(1 / 3)
    assert result.breakdown["em"] == 0.0
    assert grade(ONE, "no marker", judge, match="judge").value == 0.0
    assert len(judge.requests) == 2


@pytest.mark.parametrize(
    ("answer", "judged"),
    [
        (r"So it is \boxed{Oslo}.", ["Oslo"]),
        ("The answer is Oslo", ["Oslo"]),
        (r"FINAL_ANSWER: Bergen, not \boxed{Oslo}", [r"Bergen, not \boxed{Oslo}"]),
        (r"FINAL_ANSWER: \boxed{Oslo}", [r"\boxed{Oslo}"]),
        (r"\boxed{Oslo} FINAL_ANSWER:", []),
        ("I believe Oslo.", []),
    ],
)
def test_where_found_accepts_boxes_and_answer_phrases(answer: str, judged: list[str]) -> None:
    judge = Scripted(**dict.fromkeys(judged, 1.0))
    result = grade(ONE, answer, judge, match="judge", where="found")
    assert [request[2] for request in judge.requests] == judged
    assert result.value == float(bool(judged))
    named = grade(several({"Q1": "Oslo"}), answer, Scripted(), match="judge", where="found")
    assert named.value == 0.0, "several answers have names, which a box doesn't give"


def test_a_failed_judge_leaves_the_episode_ungraded_with_the_reason() -> None:
    judge = Scripted(Virtue=1.0, Scene=JudgeError("down"))
    result = grade(several(GOLDS), 'FINAL_ANSWER: {"Q1": "Virtue", "Q2": "Scene"}', judge, match="judge")
    assert (result.value, result.reason, result.breakdown) == (None, "judge: down", {})


def test_a_judge_gets_every_answer_that_has_a_character() -> None:
    """Comparison of strings drops articles, so it reads "A" as no answer."""
    problem = Problem("p", "Which blood type?", ("Type A",))
    judge = Scripted(A=1.0)
    results = [grade(problem, f"FINAL_ANSWER: {answer}", judge, match="judge") for answer in ("A", "")]
    assert [(result.value, result.breakdown["answered"]) for result in results] == [(1.0, 1.0), (0.0, 0.0)]
    assert len(judge.requests) == 1


def test_the_judge_gets_the_points_of_a_rubric_one_by_one_and_their_mean_counts() -> None:
    judge = Scripted(**{"a car": 1.0, "red": 0.5, "new": 0.0})
    problem = Problem("p", "What is it?", ("a car", "red", "new"))
    result = grade(problem, "FINAL_ANSWER: a car, reddish", judge, match="judge", golds="each")
    assert result.value == pytest.approx(0.5)
    assert result.breakdown["partial"] == 1.0
    assert [golds for _, golds, _ in judge.requests] == [("a car",), ("red",), ("new",)]
    down = grade(problem, "FINAL_ANSWER: x", Scripted(x=JudgeError("down")), match="judge", golds="each")
    assert (down.value, down.reason) == (None, "judge: down")
    assert grade(problem, "FINAL_ANSWER: a new car", match="sub_em", golds="each").value == pytest.approx(2 / 3)
    listed = replace(problem, metadata={"every_gold": True})
    assert grade(listed, "FINAL_ANSWER: a car, reddish", judge, match="judge").value == 0.0
    assert grade(problem, "FINAL_ANSWER: a new car", match="sub_em").value == 1.0


def test_an_error_in_the_judges_code_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        grade(ONE, "FINAL_ANSWER: x", Scripted(x=ZeroDivisionError()), match="judge")


def test_a_marker_in_a_tool_result_is_no_answer() -> None:
    text, prompt = "I found nothing.", "result: FINAL_ANSWER: Oslo"
    completion = Completion(tuple(map(ord, text)), (0.0,) * len(text), StopReason.STOP)
    turn = Turn(tuple(map(ord, prompt)), completion, 0, "act")
    trajectory = Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, text)
    result = asyncio.run(FinalAnswerGrader(FinalAnswerConfig()).grade(ONE, trajectory))
    assert (result.value, result.breakdown["answered"]) == (0.0, 0.0)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.gradable])
def test_a_lost_episode_is_ungraded(outcome: Outcome) -> None:
    result = asyncio.run(FinalAnswerGrader(FinalAnswerConfig()).grade(ONE, ended("FINAL_ANSWER: Oslo", outcome)))
    assert (result.value, result.breakdown) == (None, {})


@pytest.mark.parametrize(
    ("outcome", "value"),
    [
        (Outcome.OUT_OF_TURNS, -0.1),
        (Outcome.OUT_OF_CONTEXT, -0.1),
        (Outcome.ANSWER_TRUNCATED, 0.5),
        (Outcome.ANSWERED, 0.5),
    ],
)
def test_the_constraint_penalty_applies_only_to_broken_limits(outcome: Outcome, value: float) -> None:
    layer = ConstraintLayer(0.1)
    result = layer(ONE, ended(None, outcome), Grade(0.5, breakdown={"em": 0.5}))
    assert (result.value, result.breakdown) == (value, {"em": 0.5, "outcome": 0.5})
    lost = layer(ONE, ended(None, outcome), Grade(None, reason="judge: down"))
    assert (lost.value, lost.reason) == (None, "judge: down")
    assert layer(ONE, ended(None, outcome), Grade(0.3, breakdown={"outcome": 0.7})).breakdown == {"outcome": 0.7}


def test_a_truncated_answer_loses_its_share_only_in_training(tiny_codec: Any) -> None:
    config = RewardConfig(name="em", truncated_penalty=0.25)
    reward = build_reward(config, tiny_codec)
    cut, complete = (ended("\\boxed{Anna}", outcome) for outcome in (Outcome.ANSWER_TRUNCATED, Outcome.ANSWERED))
    problem = Problem("p", "Who?", ("Anna",))
    result = asyncio.run(reward.grade(problem, cut))
    assert (result.value, result.breakdown["outcome"]) == (0.75, 1.0)
    assert asyncio.run(reward.grade(problem, complete)).value == 1.0
    assert asyncio.run(graded(reward.answer, problem, cut)).value == 1.0
    assert training_layers(config) == ["reward.truncated_penalty=0.25"]


@pytest.mark.parametrize("penalty", [1.0, 0.25])
@pytest.mark.parametrize("reward", [-1.0, 0.0, 0.5, 3.0])
def test_a_penalty_never_raises_a_reward(penalty: float, reward: float) -> None:
    layer = TruncatedLayer(penalty)
    cut = layer(ONE, ended(None, Outcome.ANSWER_TRUNCATED), Grade(reward)).value
    assert cut == (reward * (1 - penalty) if reward > 0 else reward)
    assert layer(ONE, ended(None, Outcome.ANSWERED), Grade(reward)).value == reward


class Later:
    """An asynchronous grader; `most` is how many grades were awaited at the same time."""

    now = most = 0

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
    player = Player(group_size=8, sampling=SamplingConfig(), grader=grader, **options)
    return asyncio.run(player.batch(problems, key=(0,)))


def evaluate(grader: Any) -> Any:
    problems = [Problem(f"p{i}", "yes? ", ("yes",)) for i in range(8)]
    entry = Entry(Cell("eval", None, None, "two_turns"), TwoTurnPolicy(), problems)
    return asyncio.run(play_entries([entry], Arena(SeedSampler(), CODEC, grader, SamplingConfig(), (0,))))


@pytest.mark.parametrize(("work", "together"), [(play, 24), (evaluate, 8)])
def test_asynchronous_grades_are_awaited_together_and_equal_synchronous_ones(work: Any, together: int) -> None:
    later = Later()
    assert work(later) == work(AtOnce())
    assert later.most == together


def test_an_error_in_an_asynchronous_grade_ends_the_batch_unchanged() -> None:
    class Faulty:
        async def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
            raise ZeroDivisionError("judge")

    with pytest.raises(ZeroDivisionError, match="judge"):
        play(Faulty())


def test_layers_apply_to_asynchronous_grades() -> None:
    trajectory = ended("yes", Outcome.OUT_OF_TURNS)
    rewards = [Reward(answer, (ConstraintLayer(0.1),)) for answer in (Later(), AtOnce())]
    grades = [asyncio.run(graded(reward, ONE, trajectory)) for reward in rewards]
    assert grades[0] == grades[1] == Grade(-0.1, breakdown={"em": 1.0, "outcome": 1.0})


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("{name: final_answer, final_answer: {match: judge}}", "reward.judge.url"),
        ("{judge: {url: 'http://x/v1', model: m}}", "drop reward.judge"),
        ("{name: em, final_answer: {objectives: each}}", "reward.name=em"),
        ("{name: final_answer, final_answer: {match: judge}, judge: {url: 'x:9527', model: m}}", "reward.judge.url"),
        ("{name: final_answer, final_answer: {constraint_penalty: -0.1}}", "constraint_penalty"),
    ],
)
def test_meaningless_combinations_are_rejected(reward: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(f"reward: {reward}")
    assert len(str(caught.value).splitlines()) == 1
