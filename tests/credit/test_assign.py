"""Batches of optimizer steps from graded groups, compared with weights computed by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import assign, unread_rewards
from palimpsest.types import Grade, Group, SpanReward
from support.credit import advantages, group, group_of, one_batch, state_mix, trained, trajectory
from support.groups import make_episode, make_turn

# Two groups; trajectories of (1 + 3), (2), and (4), (1 + 1 + 2) tokens: 14 tokens in 7 segments.
LENGTHS_A, LENGTHS_B = [(1, 3), (2,)], [(4,), (1, 1, 2)]
WEIGHTS = {
    # the weight of one token in each segment, in order
    "token": [Fraction(1, 14)] * 7,
    "segment": [Fraction(1, 7 * n) for n in (1, 3, 2, 4, 1, 1, 2)],
    "trajectory": [Fraction(1, 4 * n) for n in (4, 4, 2, 4, 4, 4, 4)],
    "prompt": [Fraction(1, 2 * n) for n in (6, 6, 6, 8, 8, 8, 8)],
}


@pytest.mark.parametrize("aggregate", WEIGHTS)
def test_weights_of_two_uneven_groups(aggregate: str) -> None:
    batch = one_batch(group([1, 0], LENGTHS_A), group([0, 1], LENGTHS_B), agg_mode=aggregate)
    for segment, weight in zip(batch.segments, WEIGHTS[aggregate], strict=True):
        assert segment.weights == pytest.approx([float(weight)] * len(trained(segment)))
    signs = (1, 1, -1, -1, 1, 1, 1)
    assert [{*segment.advantages} for segment in batch.segments] == [{0.5 * sign} for sign in signs]


@pytest.mark.parametrize(("baseline", "success"), [("mean", 0.75), ("mean_std", 1.5), ("leave_one_out", 1.0)])
def test_a_trajectory_counts_once_whatever_its_number_of_segments(baseline: str, success: float) -> None:
    # counted by rows, the 6 segments of the success and 6 of failures would give .5, .96 and .55
    rewards = group([1, 0, 0, 0], [(1,) * 6, (1,) * 2, (1,) * 2, (1,) * 2])
    assert advantages(rewards, adv_estimator=baseline)[0] == pytest.approx(success, abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, None, 0], [(0.5, 0.5), (-0.5, 0.5)]),
        ([1, None, None], [(0.0, 1.0)]),  # a lone survivor has no baseline
        ([1], [(1.0, 1.0)]),  # a group of one: REINFORCE without a baseline
    ],
)
def test_an_ungraded_trajectory_is_excluded_and_counted(rewards: list[float | None], expected: list[Any]) -> None:
    batch = one_batch(group(rewards), agg_mode="trajectory")
    assert [pair for segment in batch.segments for pair in trained(segment)] == expected
    assert batch.counts["ungraded"] == rewards.count(None)
    assert batch.means["reward_mean"] == fmean(reward for reward in rewards if reward is not None)


def test_a_graded_episode_without_a_turn_counts_only_in_the_baseline() -> None:
    batch = one_batch(group([1, 0], [(2,), ()]), agg_mode="trajectory")
    assert [trained(segment) for segment in batch.segments] == [[(0.5, 0.5)] * 2]


@pytest.mark.parametrize(
    ("groups", "sizes"), [(8, [2, 2, 2, 2]), (7, [2, 2, 2, 1]), (5, [2, 1, 1, 1]), (4, [1] * 4), (2, [1, 1, 0, 0])]
)
def test_mini_batches_are_complete_groups_of_nearly_equal_number(groups: int, sizes: list[int]) -> None:
    batches = assign([group([1, 0], [(1,) * (n + 1), (1,)]) for n in range(groups)], CreditConfig(), 4)
    assert [batch.counts["groups"] for batch in batches] == sizes
    starts = [sum(sizes[:i]) for i in range(4)]
    lengths = [sum(n + 2 for n in range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    assert [len(batch.segments) for batch in batches] == [batch.counts["segments"] for batch in batches] == lengths
    assert ["reward_mean" in batch.means for batch in batches] == [size > 0 for size in sizes]


def test_no_groups_give_empty_batches_and_no_batches_are_an_error() -> None:
    assert [len(batch.segments) for batch in assign([], CreditConfig(), 3)] == [0, 0, 0]
    with pytest.raises(ValueError, match="num_minibatches=0"):
        assign([], CreditConfig(), 0)


def test_the_denominator_of_a_mini_batch_is_its_token_count() -> None:
    batches = assign([group([1, 0], [(3,), (1,)]), group([1, 0], [(10,), (10,)])], CreditConfig(), 2)
    assert [{w for s in batch.segments for w in s.weights} for batch in batches] == [{1 / 4}, {1 / 20}]


def test_a_group_without_a_grade_is_counted_outside_the_mini_batches() -> None:
    batches = assign([group([None, None]), group([1, 0])], CreditConfig(), 2)
    assert [len(batch.segments) for batch in batches] == [2, 0]
    assert (batches[0].counts["groups_untrainable"], batches[0].counts["ungraded"]) == (1, 2)


def test_metrics_of_a_batch() -> None:
    batch = one_batch(group([1, 0, None], [(1, 3), (2,), (9,)]), group([1, 1]))
    groups = {"groups": 2, "groups_with_signal": 1, "groups_dropped": 0, "groups_untrainable": 0}
    tokens = {"trained_tokens": 8, "sampled_tokens": 17, "untrained_tokens": 9}
    assert batch.counts == {**groups, **tokens, "trajectories": 4, "ungraded": 1, "segments": 5}
    means = {"advantage_abs_mean": 0.25, "segments_per_trajectory": 1.25}  # 5 segments of 4 graded trajectories
    assert batch.means == pytest.approx({"reward_mean": 0.75, "reward_std": math.sqrt(3) / 4, **means})
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


@given(uneven(), st.sampled_from(sorted(WEIGHTS)), st.sampled_from(["mean", "mean_std"]), st.integers(1, 6))
@settings(max_examples=50)
def test_uneven_groups_give_every_nonempty_batch_a_total_weight_of_one(
    groups: list[Group], aggregate: Any, baseline: str, steps: int
) -> None:
    batches = assign(groups, CreditConfig(agg_mode=aggregate, adv_estimator=baseline), steps)
    assert len(batches) == steps
    for batch in batches:
        total = sum(w for s in batch.segments for w in s.weights)
        assert math.isclose(total, 1 if batch.segments else 0, abs_tol=1e-9)
    graded = [t for one in groups for t, grade in zip(one.trajectories, one.grades, strict=True) if grade.graded]
    sampled = sum(len(turn.completion.token_ids) for trajectory in graded for turn in trajectory.turns)
    assert sum(batch.counts["trained_tokens"] for batch in batches) == sampled
    assert sum(batch.counts["ungraded"] for batch in batches) == sum(len(one.grades) for one in groups) - len(graded)


def test_repeated_and_unused_rows_are_counted() -> None:
    played, key = group([1, 0], [(10, 2), (2,)]), (0, "dcpo", 1)
    many = one_batch(played, key=key, adv_estimator="mean_std", segments_per_group=6).counts
    assert (many["segments"], many["segments_repeated"], many["segments_unused"]) == (6, 3, 0)
    assert many["untrained_tokens"] == 0
    few = one_batch(played, key=key, segments_per_group=1)
    assert (few.counts["segments_repeated"], few.counts["segments_unused"]) == (0, 2)
    assert few.counts["untrained_tokens"] == few.counts["sampled_tokens"] - few.counts["trained_tokens"] > 0
    assert few.minima["effective_weight_min"] == 0  # the trajectory that was not drawn
    assert few.maxima["effective_weight_max"] == 2


def test_draws_depend_on_the_group_and_not_its_position_in_the_batch() -> None:

    def drawn(names: str, step: int = 1) -> dict[int, set[tuple[int, ...]]]:
        groups = []
        for name in names:
            played = [
                make_episode(
                    *(make_turn((ord(name), g, i), (g, i, 0), i) for i in range(4)),
                    rollout=g, problem_id=name, group_id=f"1/0/{name}",
                )
                for g in range(4)
            ]  # fmt: skip
            groups.append(group_of([Grade(value) for value in (1.0, 0.0, 0.5, 0.0)], *played, name=name))
        rows: dict[int, set[tuple[int, ...]]] = {}
        batch = one_batch(*groups, key=(0, "dcpo", step), adv_estimator="mean_std", segments_per_group=6)
        for row in batch.segments:
            rows.setdefault(row.segment.token_ids[0], set()).add(row.segment.token_ids)
        return rows

    assert drawn("abc") == drawn("cab")
    assert drawn("a") == {ord("a"): drawn("abc")[ord("a")]}  # draws of other groups don't interfere
    assert drawn("a", step=2) != drawn("a")


@pytest.mark.parametrize("aggregate", ["token", "segment", "prompt"])
def test_batches_of_drawn_rows_weigh_one_and_have_exactly_n_rows_per_group(aggregate: Any) -> None:
    overlong = {"max_tokens": 4, "buffer": 2}
    config: dict[str, Any] = {"adv_estimator": "mean_std", "dynamic_sampling": {}, "overlong": overlong}
    groups = [group([1, 0], [(10, 2), (2,)]) for _ in range(5)] + [group([1, 1], [(10, 2), (2,)])]
    drawn = CreditConfig(agg_mode=aggregate, segments_per_group=5, **config)
    batches = assign(groups, drawn, 2, (0, "dcpo", 1))
    assert [len(batch.segments) for batch in batches] == [15, 10]  # 3 and 2 groups; the sixth has no signal
    for batch in batches:
        assert sum(w for row in batch.segments for w in row.weights) == pytest.approx(1)


def test_rewards_of_turns_that_the_rule_ignores_are_reported() -> None:
    spans = group_of(
        [Grade(1.0, spans=(SpanReward(0, 0, 1, 4.0),)), Grade(0.0)], trajectory(2), trajectory(2, rollout=1)
    )
    unread = {"parts": "spans", "rule": "credit.adv_estimator=mean"}
    assert advantages(spans) == advantages(spans, **state_mix(1.0)) == [0.5, 0.5, -0.5, -0.5]
    assert unread_rewards([spans], CreditConfig()) == unread
    assert unread_rewards([spans], CreditConfig(**state_mix(1.0))) == unread | {"rule": "credit.options.alpha=1"}
    for credit in (state_mix(0.5), {"adv_estimator": f"{__name__}:custom"}):
        assert unread_rewards([spans], CreditConfig(**credit)) is None
    assert unread_rewards([group([1.0, 0.0])], CreditConfig()) is None


def custom(group: Group) -> list[float]:
    return [0.0] * len(group.trajectories)
