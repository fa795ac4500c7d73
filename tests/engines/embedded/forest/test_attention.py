"""Attention on prefix forests: the plan of parts, the mask, and FlexAttention on a CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from palimpsest.engines.embedded.forest import attention
from palimpsest.engines.embedded.forest.attention import AttentionPlan, dense, on_path, plan_of
from palimpsest.engines.embedded.forest.layout import Forest, build_forests
from support.forests import batch_of_rows, grown


def laid_out(seed: int = 0, length: int = 60, depth: int = 3, **grow: Any) -> Forest:
    draw = random.Random(seed)
    rows = grown(draw, depth=depth, length=length, **grow)[:12]
    return build_forests(batch_of_rows(rows, draw).segments, 100_000, 10_000, min_shared=1)[0]


def tensors(plan: AttentionPlan) -> Any:
    """Query, key and value."""
    torch.manual_seed(0)
    places = len(plan.exits)
    return [torch.randn(1, 4, len(plan.places), 16), torch.randn(1, 2, places, 16), torch.randn(1, 2, places, 16)]


@pytest.mark.parametrize(("square", "everywhere"), [(2, True), (9, False), (128, True), (128, False)])
@given(seed=st.integers(0, 2**31), depth=st.integers(0, 5))
@settings(max_examples=25)
def test_the_plan_computes_every_visible_pair_once_and_no_other(
    square: int, everywhere: bool, seed: int, depth: int
) -> None:
    forest = laid_out(seed, 7, depth, vocab=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SQUARE", square)
        patch.setattr(attention, "TILE", 16)
        plan = plan_of(forest, torch.float32, None if everywhere else forest.places)
    times = torch.zeros(len(plan.places), forest.physical_tokens)
    for part in plan.parts:
        count = torch.ones(part.queries.stop - part.queries.start, part.keys.stop - part.keys.start)
        if part.causal:
            count = count.tril()
        if part.mask is not None:
            count = part.mask[0, 0].exp()
        times[part.queries, part.keys] += count
    keys = torch.arange(forest.physical_tokens)
    assert torch.equal(times, on_path(plan.exits, plan.places, keys).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("everywhere", [True, False])
def test_planned_attention_is_attention_with_a_mask_of_all_pairs(dtype: torch.dtype, everywhere: bool) -> None:
    forest = laid_out()
    plan = plan_of(forest, dtype, None if everywhere else forest.places)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    results = []
    for way in (attention.attend, dense):
        query, key, value = (x.to(dtype).requires_grad_() for x in tensors(plan))
        result = way(query, key, value, plan, 0.3)
        result.float().square().sum().backward()
        results.append([result.detach(), query.grad, key.grad, value.grad])
    for computed, wanted in zip(*results, strict=True):
        assert computed.dtype == dtype
        torch.testing.assert_close(computed, wanted, atol=tolerance, rtol=tolerance)


def test_values_of_another_size_than_keys_take_the_mask_of_all_pairs() -> None:
    plan = plan_of(laid_out(), torch.float32)
    query, key, value = tensors(plan)
    narrow = attention.attend(query, key, value[..., :8], plan)
    torch.testing.assert_close(narrow, attention.attend(query, key, value, plan)[..., :8])


def mask_of(plan: AttentionPlan, *window: Any) -> torch.Tensor:
    """[queries, keys] of FlexAttention's mask function."""
    queries, keys, zero = torch.arange(len(plan.places))[:, None], torch.arange(len(plan.exits))[None], torch.tensor(0)
    return attention.mask_mod(plan.exits, plan.places, *window)(zero, zero, queries, keys)


@given(seed=st.integers(0, 2**31), depth=st.integers(0, 5), everywhere=st.booleans())
@settings(max_examples=25)
def test_the_mask_is_the_path_to_the_root(seed: int, depth: int, everywhere: bool) -> None:
    forest = laid_out(seed, 8, depth)
    plan = plan_of(forest, torch.float32, None if everywhere else forest.places)
    assert torch.equal(mask_of(plan), on_path(plan.exits, plan.places, torch.arange(forest.physical_tokens)))


@given(seed=st.integers(0, 2**31), window=st.integers(1, 12))
@settings(max_examples=25)
def test_the_mask_of_a_window_is_that_of_the_cpu(seed: int, window: int) -> None:
    forest = laid_out(seed, 8)
    plan = plan_of(forest, torch.float32, window=window)
    mask = mask_of(plan, forest.positions, window)
    back = forest.positions[:, None] - forest.positions[None]
    assert torch.equal(mask, on_path(plan.exits, plan.places, torch.arange(forest.physical_tokens)) & (back < window))
    if plan.window is None:
        assert int(forest.positions.max()) < window
    else:
        assert torch.equal(mask, plan.near[0, 0] == 0)


def test_a_window_is_dropped_only_if_every_path_is_shorter() -> None:
    forest = laid_out(0, 8)
    deepest = int(forest.positions.max())
    assert [plan_of(forest, torch.float32, window=w).window for w in (deepest, deepest + 1)] == [deepest, None]


def assert_reference(result: torch.Tensor, plan: AttentionPlan, query: Any, key: Any, value: Any) -> None:
    torch.testing.assert_close(result, dense(query, key, value, plan, 0.3), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("everywhere", [True, False])
def test_uncompiled_flex_attention_with_that_mask_is_the_reference(everywhere: bool) -> None:
    forest = laid_out(0, 40)
    plan = plan_of(forest, torch.float32, None if everywhere else forest.places)
    mask = attention.mask_mod(plan.exits, plan.places)
    blocks = create_block_mask(mask, None, None, len(plan.places), forest.physical_tokens, device="cpu")
    query, key, value = tensors(plan)
    with torch.no_grad():
        result = flex_attention(query, key, value, block_mask=blocks, scale=0.3, enable_gqa=True)
    assert_reference(result.transpose(1, 2), plan, query, key, value)


def flexed(plan: AttentionPlan, states: Any, *window: Any) -> torch.Tensor:
    query, key, value = states
    return attention.flex(query, key, value, attention.block_mask(plan.exits, plan.places, *window), 0.3)


@pytest.mark.slow
def test_the_compiled_kernel_is_the_reference_and_new_lengths_compile_nothing() -> None:
    graphs = []
    for seed, length in enumerate((20, 60, 90, 33, 150)):
        forest = laid_out(seed, length)
        for places in (None, forest.places):
            plan = plan_of(forest, torch.float32, places)
            states = tensors(plan)
            with torch.no_grad():
                assert_reference(flexed(plan, states), plan, *states)
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs[1:])) == 1, "after the first forest nothing is compiled"


@pytest.mark.slow
def test_more_variants_than_torchs_limit_are_compiled() -> None:
    """Beyond its limit torch continues uncompiled, with all pairs in memory, and only warns."""
    torch._dynamo.reset()
    plan, graphs = plan_of(laid_out(0, 20), torch.float32), [counters["stats"]["unique_graphs"]]
    for gradient in (True, False):
        states = tensors(plan)
        with torch.set_grad_enabled(gradient), dynamo.patch(recompile_limit=1):
            assert_reference(flexed(plan, states), plan, *states)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[2] - graphs[1] == graphs[1] - graphs[0] > 0


@pytest.mark.slow
def test_the_compiled_kernel_with_a_window_is_the_reference() -> None:
    forest = laid_out(0, 60)
    plan = plan_of(forest, torch.float32, window=9)
    states = tensors(plan)
    with torch.no_grad():
        result = flexed(plan, states, forest.positions, 9)
        query, key, value = states
        mask = plan.near == 0
        wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(result, wanted.transpose(1, 2), atol=1e-5, rtol=1e-5)
