"""From graded groups to weighed batches, against weights worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import assign, has_signal
from palimpsest.engines.protocol import TrainSegment
from palimpsest.types import Grade, Group, SpanReward
from support.credit import group, only, state_mix, trained


def credit(**changes: Any) -> CreditConfig:
    return CreditConfig(**changes)


def pull(segments: Sequence[TrainSegment]) -> float:
    """Sum of |advantage| times weight: how hard these segments pull on the weights of the model."""
    return sum(abs(a) * w for segment in segments for a, w in trained(segment))


# Two groups; trajectories of (1 + 3), (2), and (4), (1 + 1 + 2) tokens: 14 tokens in 7 segments.
LENGTHS_A, LENGTHS_B = [(1, 3), (2,)], [(4,), (1, 1, 2)]
BY_HAND = {
    # the weight of one token in each segment, in order
    "token": [Fraction(1, 14)] * 7,
    "segment": [Fraction(1, 7 * n) for n in (1, 3, 2, 4, 1, 1, 2)],
    "trajectory": [Fraction(1, 4 * n) for n in (4, 4, 2, 4, 4, 4, 4)],
    "prompt": [Fraction(1, 2 * n) for n in (6, 6, 6, 8, 8, 8, 8)],
}


@pytest.mark.parametrize("aggregate", BY_HAND)
def test_weights_of_two_uneven_groups(aggregate: str) -> None:
    groups = [group([1, 0], LENGTHS_A), group([0, 1], LENGTHS_B)]
    batch = only(assign(groups, credit(agg_mode=aggregate), 1))
    for segment, weight in zip(batch.segments, BY_HAND[aggregate], strict=True):
        assert [w for _, w in trained(segment)] == pytest.approx([float(weight)] * len(trained(segment)))
    assert math.isclose(sum(w for s in batch.segments for w in s.weights), 1)


def test_advantages_reach_every_trained_token_and_no_other() -> None:
    batch = only(assign([group([1, 0, 0], [(1, 3), (2,), (1,)])], credit(), 1))
    advantages = [[a for a, _ in trained(segment)] for segment in batch.segments]
    assert advantages == [[pytest.approx(2 / 3)] * n for n in (1, 3)] + [[pytest.approx(-1 / 3)] * n for n in (2, 1)]


@pytest.mark.parametrize(
    ("aggregate", "ratio"), [("token", 5.0), ("segment", 5.0), ("trajectory", 1.0), ("prompt", 5.0)]
)
def test_ten_segments_against_two_pull_as_published(aggregate: str, ratio: float) -> None:
    # two trajectories of 10 and 2 segments of 200 tokens, advantages +.5 and -.5
    batch = only(assign([group([1, 0], [(200,) * 10, (200,) * 2])], credit(agg_mode=aggregate), 1))
    assert pull(batch.segments[:10]) / pull(batch.segments[10:]) == pytest.approx(ratio)


@pytest.mark.parametrize(("baseline", "success"), [("mean", 0.75), ("mean_std", 1.5), ("leave_one_out", 1.0)])
def test_each_trajectory_counts_once_however_many_segments_it_has(baseline: str, success: float) -> None:
    # counting rows, the success of 6 segments would stand beside 6 failures and get .5, .96 and .55
    lengths = [(1,) * 6, (1,) * 2, (1,) * 2, (1,) * 2]
    batch = only(assign([group([1, 0, 0, 0], lengths)], credit(adv_estimator=baseline), 1))
    assert trained(batch.segments[0])[0][0] == pytest.approx(success, abs=1e-5)


def test_an_ungraded_trajectory_is_left_out_and_counted_never_a_zero() -> None:
    batch = only(assign([group([1, None, 0])], credit(agg_mode="trajectory"), 1))
    assert [trained(s) for s in batch.segments] == [[(0.5, 0.5)], [(-0.5, 0.5)]]
    assert batch.counts["ungraded"] == 1
    assert batch.means["reward_mean"] == 0.5


def test_the_only_graded_trajectory_of_a_group_that_failed_is_not_rewarded_for_surviving() -> None:
    batch = only(assign([group([1, None, None])], credit(), 1))
    assert [trained(s) for s in batch.segments] == [[(0.0, 1.0)]]
    single = only(assign([group([1])], credit(), 1))  # played alone on purpose: REINFORCE without a baseline
    assert [trained(s) for s in single.segments] == [[(1.0, 1.0)]]


@pytest.mark.parametrize("baseline", ["mean", "mean_std", "leave_one_out"])
def test_equal_rewards_give_exactly_no_advantage(baseline: str) -> None:
    batch = only(assign([group([0.1] * 7)], credit(adv_estimator=baseline), 1))
    assert {a for s in batch.segments for a in s.advantages} == {0.0}


def test_a_graded_episode_without_a_turn_counts_in_the_baseline_alone() -> None:
    batch = only(assign([group([1, 0], [(2,), ()])], credit(agg_mode="trajectory"), 1))
    assert [trained(s) for s in batch.segments] == [[(0.5, 0.5)] * 2]


@pytest.mark.parametrize(("groups", "sizes"), [(8, [2, 2, 2, 2]), (7, [2, 2, 2, 1]), (5, [2, 1, 1, 1]), (4, [1] * 4)])
def test_mini_batches_are_whole_groups_of_nearly_equal_number(groups: int, sizes: list[int]) -> None:
    made = [group([1, 0], [(1,) * (n + 1), (1,)]) for n in range(groups)]  # agents fracture more and more
    batches = assign(made, credit(), 4)
    assert [b.counts["groups"] for b in batches] == sizes
    assert [b.counts["segments"] for b in batches] == [len(b.segments) for b in batches]
    lengths = [n + 2 for n in range(groups)]
    starts = [sum(sizes[:i]) for i in range(4)]
    assert [len(b.segments) for b in batches] == [
        sum(lengths[start : start + size]) for start, size in zip(starts, sizes, strict=True)
    ]


def test_each_mini_batch_has_its_own_denominator() -> None:
    batches = assign([group([1, 0], [(3,), (1,)]), group([1, 0], [(10,), (10,)])], credit(), 2)
    assert [{w for s in b.segments for _, w in trained(s)} for b in batches] == [{1 / 4}, {1 / 20}]


def test_with_fewer_groups_than_steps_the_last_batches_are_empty() -> None:
    batches = assign([group([1, 0]), group([0, 1])], credit(), 4)
    assert [len(b.segments) for b in batches] == [2, 2, 0, 0]
    assert "reward_mean" not in batches[3].means
    assert [len(b.segments) for b in assign([], credit(), 3)] == [0, 0, 0]


def test_a_group_without_a_grade_takes_up_no_place_in_a_mini_batch() -> None:
    batches = assign([group([None, None]), group([1, 0])], credit(), 2)
    assert [len(b.segments) for b in batches] == [2, 0]
    assert batches[0].counts["groups_untrainable"] == 1
    assert batches[0].counts["ungraded"] == 2


def test_dynamic_sampling_drops_groups_of_equal_reward_from_batch_and_denominator() -> None:
    groups = [group([1, 1], [(5,), (5,)]), group([1, 0]), group([0, 0]), group([1, None])]
    plain = only(assign(groups, credit(), 1))
    dynamic = only(assign(groups, credit(dynamic_sampling={}), 1))
    assert len(plain.segments) == 7
    assert [trained(s) for s in dynamic.segments] == [[(0.5, 0.5)], [(-0.5, 0.5)]]
    assert (dynamic.counts["groups"], dynamic.counts["groups_dropped"]) == (1, 3)
    assert plain.counts["groups_with_signal"] == 1


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([1, 0], True),
        ([0.5, 0.5, 0.25], True),
        ([1, 1], False),
        ([0, 0, None], False),
        ([1, None], False),  # nothing to compare with
        ([None, None], False),
        ([1], True),  # a group of one has baseline 0
        ([0], False),
    ],
)
def test_signal(rewards: list[float | None], signal: bool) -> None:
    one = group(rewards)
    assert has_signal(one, credit()) is signal
    batch = only(assign([one], credit(), 1))
    assert any(a for s in batch.segments for a in s.advantages) is signal  # what it means
    assert only(assign([one], credit(dynamic_sampling={}), 1)).counts["groups_dropped"] == (not signal)
    assert batch.counts["groups_with_signal"] == (signal and not batch.counts["groups_untrainable"])


@pytest.mark.parametrize(
    ("turns", "spans", "rule", "signal"),
    [
        ([2.0, 0.0], ([], []), state_mix(0.5), True),
        ([2.0, 2.0], ([], []), state_mix(0.5), False),
        ([2.0, 0.0], ([], []), state_mix(1.0), False),
        ([2.0, 0.0], ([], []), {}, False),
        ([2.0, 2.0], ([SpanReward(0, 0, 1, 1.0)], []), state_mix(0.5), True),
    ],
)
def test_rewards_of_turns_are_a_signal_under_a_rule_that_reads_them(
    turns: list[float], spans: tuple[list[SpanReward], ...], rule: dict[str, Any], signal: bool
) -> None:
    equal = group([1, 1], [(2,), (2,)])
    grades = [Grade(1.0, per_turn=(reward,), spans=tuple(each)) for reward, each in zip(turns, spans, strict=True)]
    one = replace(equal, grades=tuple(grades))
    for dynamic in list[Any]((None, {})):
        batch = only(assign([one], credit(dynamic_sampling=dynamic, **rule), 1))
        assert any(a for s in batch.segments for a in s.advantages) is signal
        assert batch.counts["groups_dropped"] == (dynamic is not None and not signal)
        assert batch.counts["groups_with_signal"] == signal


def test_overlong_penalty_enters_the_rewards_before_the_statistics() -> None:
    # lengths 6, 8, 10 and 12 with max 10 and buffer 4: penalties 0, .5, 1, 1 times .2; all four were right
    config = credit(overlong={"max_tokens": 10, "buffer": 4, "penalty": 0.2})
    batch = only(assign([group([1] * 4, [(6,), (8,), (10,), (12,)])], config, 1))
    rewards = [1, 0.9, 0.8, 0.8]
    assert [trained(s)[0][0] for s in batch.segments] == pytest.approx([r - 0.875 for r in rewards])
    assert batch.means["reward_mean"] == 1
    assert batch.means["overlong_penalty_mean"] == pytest.approx(0.125)


def test_dynamic_sampling_looks_at_rewards_before_the_overlong_penalty() -> None:
    config = credit(overlong={"max_tokens": 10, "buffer": 4}, dynamic_sampling={})
    assert only(assign([group([1, 1], [(12,), (1,)])], config, 1)).segments == ()


def test_one_overlong_turn_of_four_costs_a_quarter() -> None:
    config = credit(overlong={"max_tokens": 10, "buffer": 4, "penalty": 1.0})
    batch = only(assign([group([1, 1], [(12, 1, 1, 1), (1, 1, 1, 1)])], config, 1))
    assert trained(batch.segments[0])[0][0] == pytest.approx(-0.125)


def test_a_buffer_above_the_maximum_is_refused_naming_key_and_fix() -> None:
    with pytest.raises(ValidationError, match=r"overlong\.buffer=5 .*max_tokens=4.*lower"):
        credit(overlong={"max_tokens": 4, "buffer": 5})
    assert credit(overlong={"max_tokens": 4, "buffer": 4}).overlong is not None


def test_metrics_of_a_batch() -> None:
    batch = only(assign([group([1, 0, None], [(1, 3), (2,), (9,)]), group([1, 1])], credit(), 1))
    assert batch.counts == {
        "groups": 2,
        "groups_with_signal": 1,
        "trajectories": 4,
        "ungraded": 1,
        "segments": 5,
        "trained_tokens": 8,
        "sampled_tokens": 17,
        "untrained_tokens": 9,
        "groups_dropped": 0,
        "groups_untrainable": 0,
    }
    assert batch.means == pytest.approx(
        {
            "reward_mean": 0.75,
            "reward_std": math.sqrt(3) / 4,
            "advantage_abs_mean": 0.25,
            "segments_per_trajectory": 1.25,  # 5 segments of the 4 graded trajectories
        }
    )
    assert batch.maxima == {"effective_weight_max": 2}  # 4 tokens of 8 in one trajectory of four
    assert batch.minima == {"effective_weight_min": 0.5}


@st.composite
def uneven(draw: st.DrawFn) -> list[Group]:
    groups = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 5))
        rewards = draw(st.lists(st.sampled_from([0, 0.5, 1, None]), min_size=size, max_size=size))
        lengths = [draw(st.lists(st.integers(0, 4), max_size=4)) for _ in range(size)]
        groups.append(group(rewards, lengths, name=str(number)))
    return groups


@given(uneven(), st.sampled_from(sorted(BY_HAND)), st.sampled_from(["mean", "mean_std"]), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_uneven_groups_give_every_nonempty_batch_a_total_weight_of_one(
    groups: list[Group], aggregate: str, baseline: str, steps: int
) -> None:
    batches = assign(groups, credit(agg_mode=aggregate, adv_estimator=baseline), steps)
    assert len(batches) == steps
    for batch in batches:
        total = sum(w for s in batch.segments for w in s.weights)
        assert math.isclose(total, 1 if batch.segments else 0, abs_tol=1e-9)
    sampled = sum(
        len(turn.completion.token_ids)
        for one in groups
        for played, grade in zip(one.trajectories, one.grades, strict=True)
        if grade.graded
        for turn in played.turns
    )
    assert sum(b.counts["trained_tokens"] for b in batches) == sampled
    assert sum(b.counts["ungraded"] for b in batches) == sum(g.value is None for one in groups for g in one.grades)
