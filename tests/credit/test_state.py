"""Credit of turns and of spans under the state mix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.credit.state import state_advantages
from palimpsest.errors import RunError
from palimpsest.types import Grade, Group, SpanReward
from support.credit import advantages, group_of, state_mix, trajectory

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


def with_grades(group: Group, change: Callable[[int, Grade], Grade]) -> Group:
    return replace(group, grades=tuple(change(index, grade) for index, grade in enumerate(group.grades)))


@settings(max_examples=50)
@given(group=groups_with_spans(), rewards=st.lists(VALUES, min_size=12, max_size=12))
def test_a_span_over_a_whole_turn_equals_a_reward_of_that_turn(group: Group, rewards: list[float]) -> None:
    def as_turns(index: int, grade: Grade) -> Grade:
        per_turn = grade.per_turn or ()
        return replace(grade, per_turn=tuple(a + b for a, b in zip(per_turn, rewards[3 * index :], strict=False)))

    def as_spans(index: int, grade: Grade) -> Grade:
        turns = enumerate(group.trajectories[index].turns)
        spans = [SpanReward(i, 0, len(turn.completion.token_ids), rewards[3 * index + i]) for i, turn in turns]
        return replace(grade, spans=(*grade.spans, *spans))

    expected = advantages(with_grades(group, as_turns), **CREDIT)
    assert advantages(with_grades(group, as_spans), **CREDIT) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50)
@given(group=groups_with_spans(), at=st.integers(0, 5))
def test_cutting_a_span_in_two_and_adding_empty_ones_changes_nothing(group: Group, at: int) -> None:
    def cut(_: int, grade: Grade) -> Grade:
        pieces = [SpanReward(0, 0, 0, 9.0)]
        for span in grade.spans:
            middle = min(span.start + at, span.end)
            pieces += [replace(span, end=middle), replace(span, start=middle)]
        return replace(grade, spans=tuple(pieces))

    assert advantages(with_grades(group, cut), **CREDIT) == pytest.approx(advantages(group, **CREDIT), abs=1e-9)


@settings(max_examples=50)
@given(group=groups_with_spans())
def test_the_mean_over_the_tokens_of_a_turn_is_its_advantage_with_the_mean_of_its_spans(group: Group) -> None:
    def flat(index: int, grade: Grade) -> Grade:
        rewards = []
        for number, turn in enumerate(group.trajectories[index].turns):
            covered = [s.value * (s.end - s.start) for s in grade.spans if s.turn == number]
            rewards.append((grade.per_turn or ())[number] + math.fsum(covered) / len(turn.completion.token_ids))
        return replace(grade, per_turn=tuple(rewards), spans=())

    tokens, turns = iter(advantages(group, **CREDIT)), iter(advantages(with_grades(group, flat), **CREDIT))
    for played in group.trajectories:
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
