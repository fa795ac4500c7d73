"""How an update is divided among ranks, without a rank."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.engines.embedded.forest.layout import Forest, build_forests, pack, row_of
from palimpsest.engines.protocol import StepBatch, UpdateStats
from palimpsest.engines.ray.rank_batches import RankPlan, cost, deal, merged, padding, plan
from support.forests import batch_of_rows, grown


def dealt(steps: list[StepBatch], ranks: int, tokens: int = 60) -> RankPlan:
    return plan(steps, ranks, number=1, micro_batch_tokens=tokens, max_context=512, skips_silent=False)


def trees(seed: int, count: int = 2) -> list[StepBatch]:
    draw = random.Random(seed)
    return [batch_of_rows(grown(draw, depth=draw.randint(0, 3), length=12), draw) for _ in range(count)]


@given(st.integers(0, 10_000), st.integers(1, 5))
@settings(max_examples=30)
def test_every_trained_token_is_on_one_rank_with_its_credit_in_as_many_passes(seed: int, ranks: int) -> None:
    steps = trees(seed)
    parts = dealt(steps, ranks).parts
    assert len({(part.number, tuple(part.passes)) for part in parts}) == 1
    assert {len(part.rows) for part in parts} == {int(parts[0].passes.sum())}
    forests = [part.forests("cpu", torch.float32) for part in parts]
    for number, batch in enumerate(steps):
        trained = Counter(
            (index, *token)
            for rank in forests
            for forest in rank[number]
            for index, targets, weights in columns(forest)
            for token in zip(targets.tolist(), rounded(weights), strict=True)
        )
        wanted = Counter(
            (index, item.segment.token_ids[t], weight)
            for index, item in enumerate(batch.segments)
            for t, weight in zip(item.segment.positions, rounded(torch.tensor(item.weights)), strict=True)
        )
        assert trained == wanted


def columns(forest: Forest) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Index, targets and weights of each segment; padding has none."""
    tensors = (column[: sum(forest.counts)].split(forest.counts) for column in (forest.targets, forest.weights))
    return zip(forest.indices, *tensors, strict=True)


def rounded(weights: torch.Tensor) -> list[float]:
    return [round(weight, 6) for weight in weights.tolist()]


def test_one_rank_has_the_forests_of_one_process() -> None:
    (batch,) = trees(3, 1)
    mine = dealt([batch], 1).parts[0].forests("cpu", torch.float32)[0]
    theirs = build_forests(batch.segments, 60, 512)
    assert sorted(forest.indices for forest in mine) == sorted(forest.indices for forest in theirs)
    for forest in mine:
        twin = next(other for other in theirs if other.indices == forest.indices)
        for name in ("input_ids", "positions", "exits", "predicts", "targets", "weights", "sampler_logprobs"):
            assert torch.equal(getattr(forest, name), getattr(twin, name))


def test_forests_are_cut_if_there_are_fewer_than_ranks() -> None:
    draw = random.Random(1)
    batch = batch_of_rows([[draw.randrange(99) for _ in range(20)] for _ in range(8)], draw)
    parts = dealt([batch], 4, tokens=10_000).parts
    assert all(part.rows.all() for part in parts)


def test_a_rank_without_a_forest_gets_padding_without_weight() -> None:
    draw = random.Random(1)
    four = dealt([batch_of_rows([[1, 2, 3, 4]], draw)], 4)
    assert [part.rows.tolist() for part in four.parts] == [[1], [0], [0], [0]]
    (forest,) = four.parts[1].forests("cpu", torch.float32)[0]
    assert (forest.indices, forest.counts, forest.weights.tolist(), len(forest.input_ids)) == ((), (), [0.0], 2)
    assert four.metrics == {"learner/idle_share": 0.75, "learner/padding_share": 0.75}
    assert padding("cpu", torch.float32).indices == ()


def test_the_most_expensive_forests_go_first_to_the_least_loaded_rank() -> None:
    draw = random.Random(0)
    sizes = (5, 40, 10, 35, 20)
    segments = [batch_of_rows([[draw.randrange(99) for _ in range(size)]], draw).segments[0] for size in sizes]
    packed = [pack([row], 100)[0] for segment in segments if (row := row_of(segment, 0)) is not None]
    hands = [[forest.physical_tokens + 1 for forest in hand] for hand in deal(packed, 2)]
    assert hands == [[40, 10, 5], [35, 20]]
    assert cost(packed[1]) > packed[1].physical_tokens


def test_a_token_takes_few_bytes() -> None:
    draw = random.Random(0)
    batch = batch_of_rows([[draw.randrange(99) for _ in range(400)] for _ in range(20)], draw, share=0.1)
    (part,) = dealt([batch], 1, tokens=100_000).parts
    arrays = [value for name in type(part).__slots__ if isinstance(value := getattr(part, name), np.ndarray)]
    assert sum(array.nbytes for array in arrays) / (20 * 400) == pytest.approx(4 + 0.1 * 16, rel=0.1)


def test_a_rank_without_a_maximum_does_not_count() -> None:
    parts = [UpdateStats(maxima={"logprob_drop": -0.02}), UpdateStats(maxima={})]
    assert merged(parts, {}).maxima == {"logprob_drop": -0.02}
