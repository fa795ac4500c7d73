"""The CUDA path's mask and kernel call, on the CPU as far as torch has them there (no backward pass)."""

from __future__ import annotations

import random

import pytest
import torch
import torch._dynamo.config as dynamo
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from palimpsest.engines.embedded.forest import attention as forest_flex
from palimpsest.engines.embedded.forest.attention import AttentionPlan, dense, on_path, plan_of
from palimpsest.engines.embedded.forest.layout import Forest, build_forests
from support.forests import batch_of_rows, grown


def laid_out(seed: int, length: int, depth: int = 3) -> Forest:
    draw = random.Random(seed)
    rows = grown(draw, depth=depth, length=length)[:12]
    return build_forests(batch_of_rows(rows, draw).segments, 100_000, 10_000, min_shared=1)[0]


def tensors(plan: AttentionPlan) -> list[torch.Tensor]:
    torch.manual_seed(0)
    places = len(plan.exits)
    return [torch.randn(1, 4, len(plan.places), 16), torch.randn(1, 2, places, 16), torch.randn(1, 2, places, 16)]


@given(seed=st.integers(0, 2**31), depth=st.integers(0, 5), everywhere=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_mask_sees_the_path_and_nothing_else(seed: int, depth: int, everywhere: bool) -> None:
    forest = laid_out(seed, 8, depth)
    plan = plan_of(forest, torch.float32, None if everywhere else forest.places)
    queries, keys = torch.arange(len(plan.places))[:, None], torch.arange(forest.physical_tokens)[None]
    zero = torch.tensor(0)
    mask = forest_flex.mask_mod(plan.exits, plan.places)(zero, zero, queries, keys)
    assert torch.equal(mask, on_path(plan.exits, plan.places, keys[0]))


@given(seed=st.integers(0, 2**31), window=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_the_mask_of_a_window_sees_so_far_back_on_the_path_as_the_cpus_does(seed: int, window: int) -> None:
    forest = laid_out(seed, 8)
    plan = plan_of(forest, torch.float32, window=window)
    queries, keys = torch.arange(len(plan.places))[:, None], torch.arange(forest.physical_tokens)[None]
    zero = torch.tensor(0)
    mask = forest_flex.mask_mod(plan.exits, plan.places, forest.positions, window)(zero, zero, queries, keys)
    back = forest.positions[:, None] - forest.positions[None]
    assert torch.equal(mask, on_path(plan.exits, plan.places, keys[0]) & (back < window))
    if plan.window is None:
        assert int(forest.positions.max()) < window
    else:
        assert torch.equal(mask, plan.near[0, 0] == 0)


def test_uncompiled_flex_attention_with_that_mask_is_the_reference() -> None:
    forest = laid_out(0, 60)
    for places in (None, forest.places):
        plan = plan_of(forest, torch.float32, places)
        mask = forest_flex.mask_mod(plan.exits, plan.places)
        blocks = create_block_mask(mask, None, None, len(plan.places), forest.physical_tokens, device="cpu")
        query, key, value = tensors(plan)
        with torch.no_grad():
            found = flex_attention(query, key, value, block_mask=blocks, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(found.transpose(1, 2), dense(query, key, value, plan, 0.3), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_compiled_kernel_is_the_reference_and_new_lengths_compile_nothing() -> None:
    graphs = []
    for seed, length in enumerate((20, 60, 90, 33, 150)):
        forest = laid_out(seed, length)
        for places in (None, forest.places):
            plan = plan_of(forest, torch.float32, places)
            with torch.no_grad():
                query, key, value = tensors(plan)
                blocks = forest_flex.block_mask(plan.exits, plan.places)
                found = forest_flex.flex(query, key, value, blocks, 0.3)
            torch.testing.assert_close(found, dense(query, key, value, plan, 0.3), atol=1e-5, rtol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs[1:])) == 1, "after the first forest nothing is compiled anew"


@pytest.mark.slow
def test_more_variants_than_torch_allows_are_compiled_all_the_same() -> None:
    """Beyond its limit torch goes on uncompiled, with all pairs in memory, and says so in a warning alone."""
    torch._dynamo.reset()
    forest, graphs = laid_out(0, 20), [counters["stats"]["unique_graphs"]]
    for gradient in (True, False):
        plan = plan_of(forest, torch.float32)
        with torch.set_grad_enabled(gradient), dynamo.patch(recompile_limit=1):
            query, key, value = tensors(plan)
            found = forest_flex.flex(query, key, value, forest_flex.block_mask(plan.exits, plan.places), 0.3)
        torch.testing.assert_close(found, dense(query, key, value, plan, 0.3), atol=1e-5, rtol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[2] - graphs[1] == graphs[1] - graphs[0] > 0


@pytest.mark.slow
def test_the_compiled_kernel_with_a_window_is_the_reference() -> None:
    forest = laid_out(0, 60)
    plan = plan_of(forest, torch.float32, window=9)
    query, key, value = tensors(plan)
    with torch.no_grad():
        blocks = forest_flex.block_mask(plan.exits, plan.places, forest.positions, 9)
        found = forest_flex.flex(query, key, value, blocks, 0.3)
        mask = plan.near == 0
        wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found, wanted.transpose(1, 2), atol=1e-5, rtol=1e-5)
