"""Credit of turns and spans under the state mix."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.load import parse_config
from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import build_rule
from palimpsest.credit.state import state_advantages
from palimpsest.errors import ConfigError, RunError
from palimpsest.types import Grade, Group, SpanReward
from support.credit import advantages, group, group_of, state_mix, trajectory

CREDIT = state_mix(0.75, state_scale=2.0, lone_step="raw")
VALUES = st.floats(-2, 2, width=32)
LENGTHS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=2, max_size=4)


@st.composite
def groups_with_spans(draw: st.DrawFn) -> Group:
    """Trajectories with rewards of turns and spans of some of their tokens."""
    shapes = draw(LENGTHS)
    grades = []
    for shape in shapes:
        spans = []
        for _ in range(draw(st.integers(0, 3))):
            turn = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[turn]))
            spans.append(SpanReward(turn, start, draw(st.integers(start, shape[turn])), draw(VALUES)))
        per_turn = tuple(draw(VALUES) for _ in shape)
        grades.append(Grade(draw(VALUES), per_turn=per_turn, spans=tuple(spans)))
    return group_of(grades, *(trajectory(*shape, rollout=rollout) for rollout, shape in enumerate(shapes)))


def with_grades(drawn: Group, change: Callable[[int, Grade], Grade]) -> Group:
    return replace(drawn, grades=tuple(change(index, grade) for index, grade in enumerate(drawn.grades)))


@settings(max_examples=50)
@given(drawn=groups_with_spans(), rewards=st.lists(VALUES, min_size=12, max_size=12))
def test_a_span_over_a_whole_turn_equals_a_reward_of_that_turn(drawn: Group, rewards: list[float]) -> None:
    def as_turns(index: int, grade: Grade) -> Grade:
        per_turn = grade.per_turn or ()
        return replace(grade, per_turn=tuple(a + b for a, b in zip(per_turn, rewards[3 * index :], strict=False)))

    def as_spans(index: int, grade: Grade) -> Grade:
        turns = enumerate(drawn.trajectories[index].turns)
        spans = [SpanReward(i, 0, len(turn.completion.token_ids), rewards[3 * index + i]) for i, turn in turns]
        return replace(grade, spans=(*grade.spans, *spans))

    expected = advantages(with_grades(drawn, as_turns), **CREDIT)
    assert advantages(with_grades(drawn, as_spans), **CREDIT) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50)
@given(drawn=groups_with_spans(), at=st.integers(0, 5))
def test_cutting_a_span_in_two_and_adding_empty_ones_changes_nothing(drawn: Group, at: int) -> None:
    def cut(_: int, grade: Grade) -> Grade:
        pieces = [SpanReward(0, 0, 0, 9.0)]
        for span in grade.spans:
            middle = min(span.start + at, span.end)
            pieces += [replace(span, end=middle), replace(span, start=middle)]
        return replace(grade, spans=tuple(pieces))

    assert advantages(with_grades(drawn, cut), **CREDIT) == pytest.approx(advantages(drawn, **CREDIT), abs=1e-9)


@settings(max_examples=50)
@given(drawn=groups_with_spans())
def test_the_mean_over_the_tokens_of_a_turn_is_its_advantage_with_the_mean_of_its_spans(drawn: Group) -> None:
    def flat(index: int, grade: Grade) -> Grade:
        rewards = []
        for number, turn in enumerate(drawn.trajectories[index].turns):
            covered = [s.value * (s.end - s.start) for s in grade.spans if s.turn == number]
            rewards.append((grade.per_turn or ())[number] + math.fsum(covered) / len(turn.completion.token_ids))
        return replace(grade, per_turn=tuple(rewards), spans=())

    tokens, turns = iter(advantages(drawn, **CREDIT)), iter(advantages(with_grades(drawn, flat), **CREDIT))
    for played in drawn.trajectories:
        for turn in played.turns:
            size = len(turn.completion.token_ids)
            expected = [next(turns) for _ in range(size)]
            assert math.fsum(next(tokens) for _ in range(size)) / size == pytest.approx(expected[0], abs=1e-9)


def test_the_credit_of_a_span_by_hand() -> None:
    """The last of four tokens of the first trajectory is worth 4: m = 1, and the group's mean is 0.5."""
    graded = [Grade(0.0, per_turn=(0.0,), spans=(SpanReward(0, 3, 4, 4.0),)), Grade(0.0, per_turn=(0.0,))]
    both = (trajectory(4), trajectory(4, rollout=1))
    expected = [0.5 * (0.5 + s - 1.0) for s in (0.0, 0.0, 0.0, 4.0)] + [-0.25] * 4
    assert advantages(group_of(graded, *both), **state_mix(0.5)) == expected
    without = [replace(grade, per_turn=None) for grade in graded]
    with pytest.raises(RunError, match="rollout 1: 1 turns, none turn rewards"):
        advantages(group_of(without, *both), **state_mix(0.5))


@pytest.mark.parametrize("value", [0.2, 1 / 9, 0.1, 1 / 3, 0.7])
def test_equal_rewards_of_turns_have_exactly_no_advantage(value: float) -> None:
    """A mean with an error in its last bit would cause an optimizer step."""
    for size in range(2, 26):
        assert state_advantages([[value, value]] * size) == [[0.0, 0.0]] * size


def with_turn_rewards(rewards: Sequence[float | None], per_turn: Sequence[Sequence[float]], **grades: Any) -> Group:
    """Trajectories with one turn of one token for each of their turn rewards."""
    trajectories = [trajectory(*(1,) * len(values), rollout=i) for i, values in enumerate(per_turn)]
    graded = [Grade(reward, per_turn=tuple(values), **grades) for reward, values in zip(rewards, per_turn, strict=True)]
    return group_of(graded, *trajectories)


UNEQUAL = [[2.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 2.0]]  # means 1, 1, 1 and, of one turn only, 1


def test_the_mixed_advantage_of_trajectories_of_unequal_length_by_hand() -> None:
    outcomes, state = [2 / 3, -1 / 3, -1 / 3], [[1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0], [-1.0, 1.0]]
    assert state_advantages(UNEQUAL) == state
    expected = [0.8 * outcome + 0.2 * value for outcome, row in zip(outcomes, state, strict=True) for value in row]
    played = with_turn_rewards([1.0, 0.0, 0.0], UNEQUAL)
    assert advantages(played, **state_mix(0.8)) == pytest.approx(expected)
    raw = advantages(played, **state_mix(0.8, lone_step="raw"))[3]
    assert raw == pytest.approx(0.8 * 2 / 3 + 0.2 * 1.0)  # the published code's value of a turn alone at its step


def test_the_state_advantage_counts_once() -> None:
    """ReMemR1 adds it up over two columns: an effective weight of 0.4 at alpha 0.8."""
    played = with_turn_rewards([0.5, 0.5], [[1.0], [0.0]])
    assert advantages(played, **state_mix(0.8)) == pytest.approx([0.1, -0.1])
    assert advantages(played, **state_mix(0.8, state_scale=2.0)) == pytest.approx([0.2, -0.2])


@settings(max_examples=50)
@given(
    rewards=st.lists(st.floats(0, 1), min_size=2, max_size=5),
    lengths=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    values=st.lists(st.floats(-2, 2), min_size=20, max_size=20),
)
def test_alpha_1_gives_the_advantages_of_the_outcome_rule_exactly(
    rewards: list[float], lengths: list[int], values: list[float]
) -> None:
    lengths = lengths[: len(rewards)]
    per_turn = [values[4 * i : 4 * i + n] for i, n in enumerate(lengths)]
    plain = group(list(rewards), [(1,) * n for n in lengths])
    for baseline in ("mean", "mean_std", "leave_one_out"):
        mix = state_mix(1.0, outcome=baseline)
        assert advantages(with_turn_rewards(rewards, per_turn), **mix) == advantages(plain, adv_estimator=baseline)


@pytest.mark.parametrize("lone_step", ["zero", "raw"])
def test_ungraded_trajectories_and_episodes_without_turns_are_not_in_the_state_means(lone_step: str) -> None:
    mix = state_mix(0.5, lone_step=lone_step)
    assert advantages(with_turn_rewards([1.0, None, 0.0], [[1.0], [9.0], [0.0]]), **mix) == pytest.approx([0.5, -0.5])
    blank = with_turn_rewards([1.0, 0.0, 0.5], [[1.0], [0.0], []])  # a blank document ends before the first turn
    blank = replace(blank, grades=(*blank.grades[:2], Grade(0.5)))
    assert advantages(blank, **mix) == pytest.approx([0.5, -0.5])


@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_turn_weights_multiply_the_advantage_at_any_alpha(alpha: float) -> None:
    played = with_turn_rewards([1.0, 0.0], [[1.0, 1.0], [1.0, 1.0]], turn_weights=(1.5, 1.0))
    expected = [0.75 * alpha, 0.5 * alpha, -0.75 * alpha, -0.5 * alpha]
    assert advantages(played, **state_mix(alpha)) == pytest.approx(expected)


def test_the_state_mix_without_turn_rewards_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"credit.adv_estimator=state_mix mixes in rewards of turns"):
        parse_config("credit: {adv_estimator: state_mix}")
    assert parse_config("credit: {adv_estimator: state_mix}\nreward: {state: {}}").credit.adv_estimator == "state_mix"
    with pytest.raises(RunError, match="group p, rollout 0: 2 turns, none turn rewards"):
        advantages(group([1, 0], [(1, 1), (1, 1)]), **state_mix(0.5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": "half"}, "credit.options.alpha='half': must be a number"),
        ({"alpha": 1.5}, "credit.options.alpha=1.5: must be from 0 to 1"),
        ({"state_scale": 0}, "credit.options.state_scale=0.0: must be greater than 0"),
        ({"lone_step": "row"}, "credit.options.lone_step='row': choose one of zero, raw"),
        ({"alhpa": 0.5}, "credit.options.alhpa is unknown to state_mix; did you mean alpha"),
        ({"outcome": "maen"}, "credit.options.outcome='maen': no such credit rule; did you mean mean"),
        ({"outcome": "state_mix"}, "credit.options.outcome='state_mix': choose one of mean"),
        ({"outcome_options": {"a": 1}}, "credit.options.outcome_options.a is unknown to mean"),
    ],
)
def test_options_of_the_state_mix_are_checked_at_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_rule(CreditConfig(adv_estimator="state_mix", options=options))
