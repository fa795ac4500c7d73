"""Advantages of one group, against numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.credit.grpo_rloo import leave_one_out_advantages, mean_advantages, mean_std_advantages

REWARDS = st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), min_size=2, max_size=16)


def test_mean_of_one_success_in_four() -> None:
    assert mean_advantages([1, 0, 0, 0]) == [0.75, -0.25, -0.25, -0.25]


def test_mean_std_divides_by_the_sample_standard_deviation() -> None:
    # deviations .75 and three times -.25: sum of squares .75, over G - 1 = 3 is .25, so std = .5
    expected = [0.75 / 0.500001, *[-0.25 / 0.500001] * 3]
    assert mean_std_advantages([1, 0, 0, 0]) == pytest.approx(expected, rel=1e-12)


def test_leave_one_out_compares_with_the_others_only() -> None:
    # the success against (0 + 0 + 0) / 3, each failure against (1 + 0 + 0) / 3
    assert leave_one_out_advantages([1, 0, 0, 0]) == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("baseline", [mean_advantages, mean_std_advantages])
def test_a_group_of_one_keeps_its_raw_reward(baseline: Any) -> None:
    assert baseline([0.7]) == [0.7]


def test_leave_one_out_refuses_a_group_of_one() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        leave_one_out_advantages([1.0])


@given(REWARDS)
def test_advantages_of_every_baseline_sum_to_zero(rewards: list[float]) -> None:
    rules = (mean_advantages, mean_std_advantages, leave_one_out_advantages)
    for baseline in rules:
        assert math.isclose(sum(baseline(rewards)), 0, abs_tol=1e-9)


@given(st.floats(-5, 5), st.integers(2, 16))
def test_equal_rewards_are_exactly_no_signal_to_the_standard_deviation(reward: float, count: int) -> None:
    assert mean_std_advantages([reward] * count) == [0.0] * count


@given(REWARDS)
def test_leave_one_out_is_the_mean_baseline_stretched(rewards: list[float]) -> None:
    stretch = len(rewards) / (len(rewards) - 1)
    expected = [stretch * a for a in mean_advantages(rewards)]
    assert leave_one_out_advantages(rewards) == pytest.approx(expected, abs=1e-9)


@given(REWARDS, st.floats(-5, 5))
def test_a_bonus_for_everybody_changes_nothing(rewards: list[float], bonus: float) -> None:
    for baseline in (mean_advantages, mean_std_advantages):
        shifted = baseline([r + bonus for r in rewards])
        assert shifted == pytest.approx(baseline(rewards), abs=1e-9)
