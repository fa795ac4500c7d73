"""Advantages of one group, compared with numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.credit.grpo_rloo import leave_one_out_advantages, mean_advantages, mean_std_advantages

REWARDS = st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), min_size=2, max_size=16)


@pytest.mark.parametrize(
    ("baseline", "success", "failure"),
    [
        (mean_advantages, 0.75, -0.25),
        # deviations .75 and three times -.25: sum of squares .75, over G - 1 = 3 is .25, so std = .5
        (mean_std_advantages, 0.75 / 0.500001, -0.25 / 0.500001),
        (leave_one_out_advantages, 1, -1 / 3),  # the success against (0 + 0 + 0) / 3, a failure against (1 + 0 + 0) / 3
    ],
)
def test_one_success_in_four(baseline: Any, success: float, failure: float) -> None:
    assert baseline([1, 0, 0, 0]) == pytest.approx([success, *[failure] * 3], rel=1e-12)


def test_a_group_of_one_gets_its_raw_reward_and_leave_one_out_rejects_it() -> None:
    assert mean_advantages([0.7]) == mean_std_advantages([0.7]) == [0.7]
    with pytest.raises(ValueError, match="at least 2"):
        leave_one_out_advantages([1.0])


@given(REWARDS, st.floats(-5, 5))
@settings(max_examples=50)
def test_advantages_sum_to_zero_and_ignore_a_constant(rewards: list[float], constant: float) -> None:
    for baseline in (mean_advantages, mean_std_advantages, leave_one_out_advantages):
        advantages = baseline(rewards)
        assert math.isclose(sum(advantages), 0, abs_tol=1e-9)
        assert baseline([r + constant for r in rewards]) == pytest.approx(advantages, abs=1e-9)


@given(st.floats(-5, 5), st.integers(2, 16))
@settings(max_examples=50)
def test_equal_rewards_give_exactly_zero_with_the_standard_deviation(reward: float, count: int) -> None:
    assert mean_std_advantages([reward] * count) == [0.0] * count
