"""DCPO, compared with its formula over rows as the authors compute it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from palimpsest.config.schema import CreditConfig, LossConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.credit.aggregate import Aggregate, CreditedSegment, weigh
from palimpsest.credit.assign import credit_group
from palimpsest.credit.dcpo import effective_weights, sample_segments
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.seeding import Key
from palimpsest.types import Grade, Group
from support.credit import group, group_of, one_batch, trajectory
from support.models import build_llama


def random_group(draw: random.Random) -> Group:
    size = draw.randrange(2, 9)
    rewards = [draw.choice([0.0, 1.0, -0.1, draw.random()]) for _ in range(size)]
    return group(rewards, [[draw.randrange(1, 5) for _ in range(draw.randrange(1, 7))] for _ in range(size)])


def credit(played: Group, key: tuple[Key, ...], n: int | None = None) -> tuple[CreditedSegment, ...]:
    return credit_group(played, CreditConfig(adv_estimator="mean_std", segments_per_group=n), key).rows


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
    for number in range(100):
        played = random_group(random.Random(number))
        n = None if spare is None else len(played.grades) + spare
        rows = credit(played, (0, "dcpo", number, "p"), n)
        expected = by_rows([(rollout_of(row), played.grades[rollout_of(row)].value or 0.0) for row in rows])
        for row, advantage in zip(rows, expected, strict=True):
            assert row.advantages == pytest.approx((advantage,) * len(row.segment.positions), abs=1e-6)


@pytest.mark.parametrize(
    ("rewards", "advantages"),
    [
        ([0.7], [0.7]),  # a group of one: mean 0, deviation 1
        ([0.7, None], [0.0]),  # nothing left to compare with
        ([None, None], []),
        ([0.1, 0.1, 0.1], [0.0] * 3),  # exactly: a rounded mean over the epsilon would be a signal
        ([1.0, None, 0.0], [math.sqrt(0.5), -math.sqrt(0.5)]),
    ],
)
def test_lone_ungraded_and_equal_trajectories(rewards: list[float | None], advantages: list[float]) -> None:
    rows = credit(group(rewards), (0,))
    assert [row.advantages[-1] for row in rows] == pytest.approx(advantages, abs=2e-6)
    graded = {rollout for rollout, reward in enumerate(rewards) if reward is not None}
    sampled = credit(group(rewards), (0,), 6)
    assert len(sampled) == (6 if graded else 0)
    assert {rollout_of(row) for row in sampled} == graded


def test_the_sampling_contract_over_2000_groups() -> None:
    draw = random.Random(5)
    for number in range(2000):
        counts = {rollout: draw.randrange(0, 6) for rollout in draw.sample(range(12), draw.randrange(1, 9))}
        n = draw.randrange(1, 17)
        picks = sample_segments(counts, n, 0, "dcpo", number)
        holders = [rollout for rollout, count in counts.items() if count]
        assert len(picks) == (n if holders else 0)
        assert all(0 <= index < counts[rollout] for rollout, index in picks)
        rows = Counter(rollout for rollout, _ in picks)
        if n <= len(holders):
            assert set(rows.values()) == {1}  # as many trajectories as rows
        elif holders:
            assert set(rows) == set(holders)
            assert {*rows.values()} <= {n // len(holders), -(-n // len(holders))}
        for rollout, drawn in rows.items():
            distinct = len({index for other, index in picks if other == rollout})
            assert distinct == min(drawn, counts[rollout])


def test_every_rollout_and_every_segment_is_equally_likely() -> None:
    drawn: Counter[tuple[int, int]] = Counter()
    for seed in range(6000):
        drawn.update(sample_segments({0: 2, 1: 1, 2: 4}, 2, seed))
    for rollout in range(3):
        times = sum(count for (other, _), count in drawn.items() if other == rollout)
        assert abs(times - 4000) < 5 * math.sqrt(6000 * 2 / 9)
    assert all(abs(drawn[2, index] - 1000) < 5 * math.sqrt(1000) for index in range(4))


def test_draws_depend_only_on_the_key() -> None:
    counts = dict.fromkeys(range(6), 4)
    drawn = sample_segments(counts, 9, 0, "dcpo", 1)
    assert drawn == sample_segments(dict(reversed(counts.items())), 9, 0, "dcpo", 1)
    assert drawn != sample_segments(counts, 9, 0, "dcpo", 2)


@pytest.mark.parametrize("n", [None, 3])
def test_the_order_of_trajectories_changes_nothing(n: int | None) -> None:
    for number in range(50):
        draw = random.Random(number)
        played = random_group(draw)
        order = draw.sample(range(len(played.grades)), len(played.grades))
        shuffled = group_of([played.grades[i] for i in order], *(played.trajectories[i] for i in order))
        both = [sorted(credit(g, (number,), n), key=lambda row: row.segment.token_ids) for g in (played, shuffled)]
        for row, other in zip(*both, strict=True):
            assert row.segment == other.segment  # prompts name their rollout
            assert row.advantages == pytest.approx(other.advantages, abs=1e-12)


def test_effective_weights_of_the_documented_group() -> None:
    def share(aggregate: Aggregate, n: int | None, seed: int = 0) -> float:
        rows = credit(group([1.0, 0.0], [(3, 2, 1), (2,)]), (seed,), n)
        shares = effective_weights(rows, weigh(rows, aggregate))
        assert sum(shares.values()) == pytest.approx(1)
        return round(shares[0, 0], 2)

    modes: tuple[Aggregate, ...] = ("token", "prompt", "segment", "trajectory")
    assert [share(mode, None) for mode in modes] == [0.75, 0.75, 0.75, 0.5]
    assert share("segment", 4) == 0.5  # two rows each: the only segment of the second twice
    assert {share("token", 4, seed) for seed in range(40)} == {0.56, 0.5, 0.43}
    assert {share("prompt", 4, seed) for seed in range(40)} == {0.56, 0.5, 0.43}


def test_invalid_samples_are_rejected() -> None:
    with pytest.raises(ValueError, match="n=0"):
        sample_segments({0: 4}, 0, 0)
    with pytest.raises(ValueError, match="group p: two trajectories"):
        credit(group_of([Grade(1.0), Grade(0.0)], trajectory(1), trajectory(2)), (0,), 3)
    reason = r"credit\.segments_per_group=12 .*credit\.agg_mode=trajectory.*token, segment or"
    with pytest.raises(ValidationError, match=reason):
        CreditConfig(segments_per_group=12, agg_mode="trajectory")
    assert CreditConfig(agg_mode="trajectory").segments_per_group is None


def test_a_segment_drawn_twice_is_computed_once_with_twice_the_gradient() -> None:
    first, second, third = one_batch(group([1, 0], [(4, 2), (200,)]), agg_mode="segment").segments
    heavy = TrainSegment(third.segment, third.advantages, tuple(2 * w for w in third.weights))
    twice, once = learn([first, second, third, third]), learn([first, second, heavy])
    assert twice[1] == once[1]
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(twice[0], once[0], strict=True))


def learn(rows: Sequence[TrainSegment]) -> tuple[list[Any], float]:
    """Gradients and the number of tokens computed."""
    model = build_llama(1024)
    learner = ForestLearner(model, optim=OptimConfig(), loss=LossConfig(), micro_batch_tokens=4096)
    stats = learner.accumulate(StepBatch(tuple(rows)))
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], stats.physical_tokens
