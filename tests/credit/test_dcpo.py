"""DCPO: the formula worked over rows as its authors do, and the contract of the sampling."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.aggregate import Aggregate, CreditedSegment, weigh
from palimpsest.credit.assign import credit_group
from palimpsest.credit.dcpo import effective_weights, sample_segments
from palimpsest.seeding import Key
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn


def trajectory(rollout: int, *lengths: int) -> Trajectory:
    """A segment of each length: prompts are unrelated, as after a prune."""
    turns = [
        Turn((1000 * rollout + i, 1), Completion((7,) * n, (-1.0,) * n, StopReason.STOP), i, "act")
        for i, n in enumerate(lengths)
    ]
    return Trajectory("p", "g", rollout, tuple(turns), Outcome.ANSWERED)


def group(rewards: Sequence[float | None], lengths: Sequence[Sequence[int]]) -> Group:
    played = tuple(trajectory(rollout, *own) for rollout, own in enumerate(lengths))
    return Group(Problem("p", "?", ("a",)), played, tuple(map(Grade, rewards)))


def random_group(draw: random.Random) -> Group:
    size = draw.randrange(2, 9)
    rewards = [draw.choice([0.0, 1.0, -0.1, draw.random()]) for _ in range(size)]
    return group(rewards, [[draw.randrange(1, 5) for _ in range(draw.randrange(1, 7))] for _ in range(size)])


def dcpo(segments: int | None = None, **changes: Any) -> CreditConfig:
    return CreditConfig(adv_estimator="mean_std", segments_per_group=segments, **changes)


def credit(played: Group, key: tuple[Key, ...], n: int | None = None) -> tuple[CreditedSegment, ...]:
    return credit_group(played, dcpo(n), key).rows


def rollout_of(row: CreditedSegment) -> int:
    assert isinstance(row.trajectory, tuple)
    return int(row.trajectory[1])


def by_rows(rows: Sequence[tuple[int, float]]) -> list[float]:
    """The authors' way: rows of (rollout, reward), statistics over the first row of each rollout."""
    first: dict[int, float] = {}
    for rollout, reward in rows:
        first.setdefault(rollout, reward)
    mean, std = 0.0, 1.0
    if len(first) > 1:
        mean = sum(first.values()) / len(first)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in first.values()) / (len(first) - 1))
    return [(reward - mean) / (std + 1e-6) for _, reward in rows]


@pytest.mark.parametrize("spare", [None, 0, 5])
def test_advantages_equal_the_formula_over_deduplicated_rows(spare: int | None) -> None:
    for number in range(300):
        played = random_group(random.Random(number))
        n = None if spare is None else len(played.grades) + spare
        rows = credit(played, (0, "dcpo", number, "p"), n)
        rewards = [float(played.grades[rollout_of(row)].value or 0.0) for row in rows]
        expected = by_rows([(rollout_of(row), reward) for row, reward in zip(rows, rewards, strict=True)])
        for row, advantage in zip(rows, expected, strict=True):
            assert row.advantages == pytest.approx((advantage,) * len(row.segment.positions), abs=1e-6)


def test_a_group_worked_by_hand() -> None:
    rows = credit(group([1.0, 0.0, 0.0, 0.0], [(1, 2, 1), (3,), (1,), (2, 2)]), (0,))
    assert [rollout_of(row) for row in rows] == [0, 0, 0, 1, 2, 3, 3]
    # mean 1/4, sample deviation 1/2: counted once each, though the first trajectory has 3 of 7 rows
    assert [round(row.advantages[-1], 5) for row in rows] == [1.5] * 3 + [-0.5] * 4


def test_statistics_are_over_all_trajectories_though_fewer_are_drawn() -> None:
    rows = credit(group([1.0, 0.0, 0.0, 0.0], [(1,)] * 4), (0,), 1)
    assert len(rows) == 1
    assert abs(rows[0].advantages[-1]) == pytest.approx(1.5 if rollout_of(rows[0]) == 0 else 0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "advantages"),
    [
        ([0.7], [0.7]),  # played alone: mean 0, deviation 1
        ([0.7, None], [0.0]),  # nothing left to compare with
        ([None, None], []),
        ([0.1, 0.1, 0.1], [0.0] * 3),  # exactly: a rounded mean over the epsilon would be a signal
        ([1.0, None, 0.0], [math.sqrt(0.5), -math.sqrt(0.5)]),
    ],
)
def test_lone_ungraded_and_equal_trajectories(rewards: list[float | None], advantages: list[float]) -> None:
    rows = credit(group(rewards, [(1,)] * len(rewards)), (0,))
    assert [row.advantages[-1] for row in rows] == pytest.approx(advantages, abs=2e-6)
    graded = [rollout for rollout, reward in enumerate(rewards) if reward is not None]
    sampled = credit(group(rewards, [(1,)] * len(rewards)), (0,), 6)
    assert len(sampled) == (6 if graded else 0)
    assert {rollout_of(row) for row in sampled} == set(graded)


def test_the_sampling_contract_over_10000_groups() -> None:
    draw = random.Random(5)
    for number in range(10_000):
        counts = {rollout: draw.randrange(0, 6) for rollout in draw.sample(range(12), draw.randrange(1, 9))}
        n = draw.randrange(1, 17)
        picks = sample_segments(counts, n, 0, "dcpo", number)
        holders = [rollout for rollout, own in counts.items() if own]
        assert len(picks) == (n if holders else 0)
        assert all(0 <= place < counts[rollout] for rollout, place in picks)
        rows = Counter(rollout for rollout, _ in picks)
        if n <= len(holders):
            assert set(rows.values()) == {1}  # as many trajectories as rows
        elif holders:
            assert set(rows) == set(holders)
            assert {*rows.values()} <= {n // len(holders), -(-n // len(holders))}
        for rollout, given in rows.items():
            distinct = len({place for own, place in picks if own == rollout})
            assert distinct == given if given <= counts[rollout] else distinct == counts[rollout]


def test_every_rollout_and_every_segment_is_drawn_alike() -> None:
    seen: Counter[tuple[int, int]] = Counter()
    for seed in range(6000):
        seen.update(sample_segments({0: 2, 1: 1, 2: 4}, 2, seed))
    each = {rollout: sum(times for (own, _), times in seen.items() if own == rollout) for rollout in range(3)}
    assert all(abs(times - 4000) < 5 * math.sqrt(6000 * 2 / 9) for times in each.values())
    assert all(abs(seen[2, place] - 1000) < 5 * math.sqrt(1000) for place in range(4))


def test_the_key_alone_decides_what_is_drawn() -> None:
    counts = dict.fromkeys(range(6), 4)
    drawn = sample_segments(counts, 9, 0, "dcpo", 1)
    assert drawn == sample_segments(dict(reversed(counts.items())), 9, 0, "dcpo", 1)
    assert drawn != sample_segments(counts, 9, 0, "dcpo", 2)
    with pytest.raises(ValueError, match="n=0"):
        sample_segments(counts, 0, 0)


@pytest.mark.parametrize("n", [None, 3, 12])
def test_the_order_of_trajectories_changes_nothing(n: int | None) -> None:
    for number in range(50):
        draw = random.Random(number)
        played = random_group(draw)
        order = draw.sample(range(len(played.grades)), len(played.grades))
        shuffled = Group(
            played.problem, tuple(played.trajectories[i] for i in order), tuple(played.grades[i] for i in order)
        )
        one, other = (
            sorted(credit(each, (number,), n), key=lambda row: row.segment.token_ids) for each in (played, shuffled)
        )
        assert [row.segment for row in one] == [row.segment for row in other]  # prompts name their rollout
        for mine, yours in zip(one, other, strict=True):
            assert mine.advantages == pytest.approx(yours.advantages, abs=1e-12)


def test_cutting_a_segment_at_a_turn_changes_no_pull_under_aggregate_trajectory() -> None:
    def pulls(second_prompt: tuple[int, ...]) -> list[float]:
        turns = (
            Turn((1, 2), Completion((7, 8), (-1.0,) * 2, StopReason.STOP), 0, "act"),
            Turn(second_prompt, Completion((9,), (-1.0,), StopReason.STOP), 1, "act"),
            Turn((5, 5), Completion((), (), StopReason.ABORTED), 2, "act"),  # an empty mask
        )
        whole = Trajectory("p", "g", 0, turns, Outcome.ANSWERED)
        played = Group(Problem("p", "?", ("a",)), (whole, trajectory(1, 4)), (Grade(1.0), Grade(0.0)))
        weighed = weigh(credit(played, (0,)), "trajectory")
        return [a * w for one in weighed for a, w in zip(one.advantages, one.weights, strict=True)]

    assert pulls((1, 2, 7, 8, 3)) == pytest.approx(pulls((6, 6)))


@pytest.mark.parametrize(
    ("aggregate", "n", "expected"),
    [
        ("trajectory", None, [1 / 2, 1 / 2]),
        ("segment", None, [3 / 4, 1 / 4]),
        ("token", None, [6 / 8, 2 / 8]),
        ("segment", 4, [1 / 2, 1 / 2]),  # two rows each: the second's only segment twice
        ("token", 4, [1 / 2, 1 / 2]),
    ],
)
def test_effective_weight_of_each_trajectory(aggregate: Aggregate, n: int | None, expected: list[float]) -> None:
    rows = credit(group([1.0, 0.0], [(2, 2, 2), (2,)]), (0,), n)
    shares = effective_weights(rows, weigh(rows, aggregate))
    assert [shares[0, rollout] for rollout in (0, 1)] == pytest.approx(expected)


def test_shares_of_the_documented_group() -> None:
    def share(aggregate: Aggregate, n: int | None, seed: int = 0) -> float:
        rows = credit(group([1.0, 0.0], [(3, 2, 1), (2,)]), (seed,), n)
        return round(effective_weights(rows, weigh(rows, aggregate))[0, 0], 2)

    assert [share(mode, None) for mode in ("token", "prompt", "segment", "trajectory")] == [0.75, 0.75, 0.75, 0.5]
    assert share("segment", 4) == 0.5
    assert {share("token", 4, seed) for seed in range(40)} == {0.56, 0.5, 0.43}
    assert {share("prompt", 4, seed) for seed in range(40)} == {0.56, 0.5, 0.43}


def test_two_trajectories_of_one_rollout_number_are_refused() -> None:
    twice = Group(Problem("p", "?", ("a",)), (trajectory(0, 1), trajectory(0, 2)), (Grade(1.0), Grade(0.0)))
    with pytest.raises(ValueError, match="group p: two trajectories"):
        credit(twice, (0,), 3)
