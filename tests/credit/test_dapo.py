"""Dynamic sampling and the overlong penalty."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from palimpsest.config.schema import CreditConfig, OverlongConfig
from palimpsest.credit.assign import has_signal
from palimpsest.credit.dapo import penalty
from palimpsest.types import Completion, Grade, Outcome, SpanReward, StopReason, Trajectory, Turn
from support.credit import advantages, group, group_of, one_batch, state_mix, trajectory


def test_dynamic_sampling_drops_groups_of_equal_reward_from_batch_and_denominator() -> None:
    groups = [group([1, 1], [(5,), (5,)]), group([1, 0]), group([0, 0]), group([1, None])]
    plain, dynamic = one_batch(*groups), one_batch(*groups, dynamic_sampling={})
    assert (len(plain.segments), plain.counts["groups_with_signal"]) == (7, 1)
    assert [(s.advantages, s.weights) for s in dynamic.segments] == [((0.5,), (0.5,)), ((-0.5,), (0.5,))]
    assert (dynamic.counts["groups"], dynamic.counts["groups_dropped"]) == (1, 3)


GAIN = [Grade(1.0, per_turn=(2.0,)), Grade(1.0, per_turn=(0.0,))]
SPAN = [Grade(1.0, per_turn=(2.0,), spans=(SpanReward(0, 0, 1, 1.0),)), Grade(1.0, per_turn=(2.0,))]


@pytest.mark.parametrize(
    ("grades", "rule", "signal"),
    [
        ([1, 0], {}, True),
        ([0.5, 0.5, 0.25], {}, True),
        ([1, 1], {}, False),
        ([0, 0, None], {}, False),
        ([1, None], {}, False),  # nothing to compare with
        ([None, None], {}, False),
        ([1], {}, True),  # a group of one has baseline 0
        ([0], {}, False),
        (GAIN, state_mix(0.5), True),
        (GAIN, state_mix(1.0), False),
        (GAIN, {}, False),  # the rule ignores rewards of turns
        (GAIN[:1] * 2, state_mix(0.5), False),
        (SPAN, state_mix(0.5), True),
    ],
)
def test_a_group_has_a_signal_where_an_advantage_is_not_zero(grades: Any, rule: dict[str, Any], signal: bool) -> None:
    grades = [grade if isinstance(grade, Grade) else Grade(grade) for grade in grades]
    group = group_of(grades, *(trajectory(2, rollout=number) for number in range(len(grades))))
    assert has_signal(group, CreditConfig(**rule)) is signal
    for dynamic in list[Any]((None, {})):
        batch = one_batch(group, dynamic_sampling=dynamic, **rule)
        assert any(a for s in batch.segments for a in s.advantages) is signal
        assert batch.counts["groups_dropped"] == (dynamic is not None and not signal)
        assert batch.counts["groups_with_signal"] == signal


def test_the_overlong_penalty_is_subtracted_before_the_group_statistics() -> None:
    # lengths 6, 8, 10 and 12 with max 10 and buffer 4: penalties 0, .5, 1, 1 times .2; all four are right
    penalized = {"overlong": {"max_tokens": 10, "buffer": 4, "penalty": 0.2}}
    batch = one_batch(group([1] * 4, [(6,), (8,), (10,), (12,)]), **penalized)
    rewards = [1, 0.9, 0.8, 0.8]
    assert [s.advantages[0] for s in batch.segments] == pytest.approx([r - 0.875 for r in rewards])
    assert batch.means["reward_mean"] == 1
    assert batch.means["overlong_penalty_mean"] == pytest.approx(0.125)


def test_dynamic_sampling_uses_rewards_before_the_overlong_penalty() -> None:
    overlong = {"max_tokens": 10, "buffer": 4}
    assert one_batch(group([1, 1], [(12,), (1,)]), overlong=overlong, dynamic_sampling={}).segments == ()


def test_one_overlong_turn_of_four_costs_a_quarter() -> None:
    overlong = {"max_tokens": 10, "buffer": 4, "penalty": 1.0}
    rewards = advantages(group([1, 1], [(12, 1, 1, 1), (1, 1, 1, 1)]), overlong=overlong)
    assert rewards[0] == pytest.approx(-0.125)


def test_turns_of_frozen_roles_do_not_count_for_the_penalty() -> None:
    turns = [Turn((1,), Completion((2,) * n, (0.0,) * n, StopReason.STOP), 0, "act", trained=n < 50) for n in (8, 50)]
    played = Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED)
    assert penalty(played, OverlongConfig(max_tokens=10, buffer=4)) == 0.5


def test_a_buffer_above_the_maximum_is_rejected_with_key_and_fix() -> None:
    with pytest.raises(ValidationError, match=r"overlong\.buffer=5 .*max_tokens=4.*lower"):
        OverlongConfig(max_tokens=4, buffer=5)
    assert OverlongConfig(max_tokens=4, buffer=4).buffer == 4
