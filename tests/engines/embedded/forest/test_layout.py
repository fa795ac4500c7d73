"""The layout of a prefix forest, compared with its definition."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.engines.embedded.forest.layout import CUT_OVERHEAD, Forest, build_forests, cut
from palimpsest.engines.protocol import StepBatch
from support.forests import batch_of_rows, credited, grown
from support.work import calls_of

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=7), min_size=1, max_size=12)


def built(batch: StepBatch, tokens: int = 10_000, **options: Any) -> list[Forest]:
    return build_forests(batch.segments, tokens, 10_000, **{"min_shared": 1, **options})


def path(forest: Forest, position: int) -> list[int]:
    """Token ids from the root to `position`, by the definition of exits."""
    exits = forest.exits.tolist()
    return [int(forest.input_ids[j]) for j in range(position + 1) if position < exits[j]]


@given(ROWS, st.integers(0, 2**31), st.integers(1, 40))
@settings(max_examples=50)
def test_every_trained_token_is_predicted_once_from_its_context(rows: list[list[int]], seed: int, tokens: int) -> None:
    batch = batch_of_rows(rows, random.Random(seed))
    forests = built(batch, tokens)
    assert sorted(i for forest in forests for i in forest.indices) == list(range(len(rows)))
    for forest in forests:
        spread = iter(range(len(forest.targets)))
        assert forest.positions.tolist() == [len(path(forest, j)) - 1 for j in range(forest.physical_tokens)]
        for index, count in zip(forest.indices, forest.counts, strict=True):
            item = batch.segments[index]
            trained = item.segment.positions
            assert count == len(trained)
            columns = zip(item.advantages, item.weights, item.segment.logprobs, strict=True)
            for t, wanted, n in zip(trained, columns, spread, strict=False):
                position = int(forest.places[forest.predicts[n]])
                assert path(forest, position) == list(item.segment.token_ids[:t])
                assert int(forest.targets[n]) == item.segment.token_ids[t]
                credit = (forest.advantages[n], forest.weights[n], forest.sampler_logprobs[n])
                assert torch.allclose(torch.stack(credit), torch.tensor(wanted))


@given(ROWS, st.integers(0, 2**31))
@settings(max_examples=40)
def test_every_distinct_prefix_is_computed_once(rows: list[list[int]], seed: int) -> None:
    batch = batch_of_rows(rows, random.Random(seed))
    (forest,) = built(batch)
    read = [item.segment.token_ids[: item.segment.positions[-1]] for item in batch.segments]
    prefixes = {row[:size] for row in read for size in range(1, len(row) + 1)}
    assert forest.physical_tokens == len(prefixes)
    assert forest.logical_tokens == sum(map(len, read))
    assert forest.reuse == forest.logical_tokens / len(prefixes)
    assert forest.places.tolist() == sorted(set(forest.places.tolist()))


def test_a_branch_at_a_sampled_token_predicts_every_continuation_with_its_credit() -> None:
    draw = random.Random(0)
    left, right = (credited([1, 2, 5, last], [False, False, True, True], draw) for last in (6, 7))
    (forest,) = built(StepBatch((left, right)))
    assert forest.input_ids.tolist() == [1, 2, 5]
    assert forest.places.tolist() == [1, 2]
    assert forest.predicts.tolist() == [0, 1, 0, 1]
    assert forest.targets.tolist() == [5, 6, 5, 7]
    assert torch.allclose(forest.advantages, torch.tensor([*left.advantages, *right.advantages]))


@given(ROWS, st.integers(0, 2**31), st.integers(3, 30))
@settings(max_examples=40)
def test_forests_stay_within_the_budget_unless_one_segment_is_longer(
    rows: list[list[int]], seed: int, tokens: int
) -> None:
    for forest in built(batch_of_rows(rows, random.Random(seed)), tokens):
        longest = int(forest.positions.max()) + 1
        assert forest.physical_tokens <= max(tokens, longest)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9), st.integers(6, 25))
@settings(max_examples=50)
def test_cuts_recompute_as_little_as_possible(rows: list[tuple[int, int]], budget: int) -> None:
    lengths = np.array([length for length, _ in rows])
    shared = np.array([0] + [min(k, a, b - (a != b)) for (a, _), (b, k) in itertools.pairwise(rows)])

    def cost(begins: tuple[int, ...]) -> float:
        ends = [*begins[1:], len(rows)]
        for a, b in zip(begins, ends, strict=True):
            size = lengths[a] + (lengths - shared)[a + 1 : b].sum()
            if size > max(budget, lengths[a:b].max()):
                return float("inf")
        return float(sum(shared[list(begins[1:])])) + 5 * (len(begins) - 1)

    inner = range(1, len(rows))
    best = min(cost((0, *chosen)) for n in range(len(rows)) for chosen in itertools.combinations(inner, n))
    assert cost(tuple(cut(lengths, shared, budget, overhead=5))) == best


def test_the_layout_does_not_depend_on_the_order_of_the_segments() -> None:
    batch = batch_of_rows(grown(random.Random(1), depth=4, length=6), random.Random(2))
    shuffled = list(enumerate(batch.segments))
    random.Random(3).shuffle(shuffled)
    one, other = built(batch, 60), built(StepBatch(tuple(item for _, item in shuffled)), 60)
    assert len(one) == len(other) > 1
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.input_ids, b.input_ids)
        assert torch.equal(a.exits, b.exits)


def test_short_common_prefixes_are_not_worth_sharing() -> None:
    draw = random.Random(0)
    batch = StepBatch(tuple(credited([1, 2, 3, k, 5, 6], [False] * 5 + [True], draw) for k in range(4)))
    assert built(batch)[0].physical_tokens == 3 + 4 * 2
    assert built(batch, min_shared=4)[0].physical_tokens == 4 * 5


def test_segments_without_a_trained_token_are_left_out() -> None:
    draw = random.Random(0)
    batch = StepBatch(tuple(credited([1, 2, 3], [False, False, last], draw) for last in (False, True)))
    (forest,) = built(batch)
    assert forest.indices == (1,)
    assert built(StepBatch(batch.segments[:1])) == []


def test_a_segment_longer_than_the_window_is_rejected_by_its_index() -> None:
    draw = random.Random(0)
    batch = StepBatch((credited([1, 2], [False, True], draw), credited([1] * 9, [False] * 8 + [True], draw)))
    with pytest.raises(ValueError, match="segment 1 has 9 tokens, the model's window has 8"):
        build_forests(batch.segments, 100, 8)


@pytest.mark.parametrize(("count", "prompt", "tail"), [(64, 1500, 1500), (1000, 40, 30)])
def test_building_takes_work_per_segment_not_per_token(count: int, prompt: int, tail: int) -> None:
    draw = random.Random(0)
    start = [draw.randrange(5000) for _ in range(prompt)]
    rows = [[*start, 5000 + k, *(draw.randrange(5000) for _ in range(tail - 1))] for k in range(count)]
    batch = StepBatch(tuple(credited(row, [False] * (prompt + 1) + [True] * (tail - 1), draw) for row in rows))
    forests: list[Forest] = []
    calls = calls_of(lambda: forests.extend(build_forests(batch.segments, 1 << 20, 1 << 20)))
    assert forests[0].physical_tokens == prompt + count * (tail - 1)
    assert calls < 100 * count  # in the first case a loop over tokens makes fifteen times as many


def test_a_cut_has_a_cost_even_if_nothing_is_shared() -> None:
    lengths, shared = np.full(6, 10), np.zeros(6, np.int64)
    assert cut(lengths, shared, budget=30, overhead=CUT_OVERHEAD) == [0, 3]
