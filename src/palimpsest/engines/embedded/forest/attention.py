"""Attention over prefix forests, through transformers' attention interface.

Three ways to the same result: `parts` (CPU: flash attention on ranges of queries and keys, merged by their log-sum-
exps), `flex` (CUDA, see forest_flex.py) and `dense` (any device, a mask of all pairs; the reference, and for what the
others can't do: keys and values of different sizes, sliding windows on a CPU).

The backward pass of `parts` needs nothing that the forward pass of each part kept: with the merged result and log-sum-
exp, each part's share of the gradients is exact and they add up (as in ring attention, Liu et al., arXiv 2310.01889).

Guaranteed: equal to attention over each segment on its own, to rounding; the same bytes for the same forest. A model
call without a forest is plain `sdpa`, or the class's own eager attention where its scores are capped or have sinks,
which `sdpa` would leave out. A forest is refused such attention, never computed without.
Not covered: dropout (it is switched off where the model is loaded).

Axes: H query heads, G key-value heads, T places, Q queries, D head size.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from palimpsest.engines.embedded.forest.flex import flex
from palimpsest.engines.embedded.forest.plan import Plan, seen
from palimpsest.errors import ModelError

NAME, PRECISE = "palimpsest_forest", "palimpsest_precise"
FOREIGN = ("softcap", "s_aux", "position_bias")  # arguments that change scores in ways no path here computes
DROPPED = ("softcap", "s_aux")  # those that transformers' sdpa takes and leaves out

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def register() -> None:
    """Make `NAME` known to transformers, and `PRECISE`, by which its rounding is judged."""
    for name, function in ((NAME, _interface), (PRECISE, _precise)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, sdpa_mask)


def _interface(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    forest: Plan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What a model's attention layers call, with [1, H, Q, D] queries and [1, G, T, D] keys; gives [1, Q, H, D]."""
    if forest is None:
        if any(options.get(name) is not None for name in DROPPED):
            return eager(module, query, key, value, attention_mask, scaling=scaling, **options)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    refused = [name for name in FOREIGN if options.get(name) is not None]
    if refused:
        raise ModelError(f"attention with {refused[0]} is not supported")
    window = options.get("sliding_window")
    if window is None or forest.window is None:
        return attend(query, key, value, forest, scaling), None
    if window != forest.window:
        raise ModelError(f"a layer with a window of {window} beside those of {forest.window} is not supported")
    if query.is_cuda:
        return flex(query, key, value, forest.near, scaling), None
    return _masked(query, key, value, forest.near, scaling), None


def eager(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The attention that the module's class is written with; `attention_mask` as `sdpa` takes it."""
    mask = attention_mask
    if mask is None:  # causal
        size = query.shape[2], key.shape[2]
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril(size[1] - size[0])[None, None]
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    own = sys.modules[type(module).__module__].eager_attention_forward
    return own(module, query, key, value, mask, **options)[0], None


def _precise(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """`eager` in twice the precision, its result rounded once."""
    wider = torch.float64 if query.dtype == torch.float32 else torch.promote_types(query.dtype, torch.float32)
    result = eager(module, query.to(wider), key.to(wider), value.to(wider), attention_mask, **options)[0]
    return result.to(query.dtype), None


def attend(query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float | None = None) -> Tensor:
    """[1, Q, H, D] attention of `query` [1, H, Q, D] over the paths of its places in `key` and `value` [1, G, T, D]."""
    if query.is_cuda:
        return flex(query, key, value, plan.blocks, scale)
    if key.shape[-1] != value.shape[-1]:
        return dense(query, key, value, plan, scale)
    result: Tensor = _Parts.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
    return result


def dense(query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float | None = None) -> Tensor:
    """`attend` with a mask of all pairs."""
    return _masked(
        query, key, value, seen(plan.exits, plan.places, torch.arange(len(plan.exits), device=query.device)), scale
    )


def _masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return result.transpose(1, 2)


class _Parts(torch.autograd.Function):
    """`attend` part by part, on the CPU."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float | None) -> Tensor:
        rows, exact = query.transpose(1, 2), torch.promote_types(query.dtype, torch.float32)
        total = torch.zeros(rows.shape, dtype=exact).transpose(1, 2)
        norm = torch.full(rows.shape[:3], -torch.inf, dtype=exact).transpose(1, 2)  # log of the sum of exponentials
        for part in plan.parts:
            q, k, v = query[:, :, part.queries], key[:, :, part.keys], value[:, :, part.keys]
            result, size = _forward(q, k, v, 0.0, part.causal, attn_mask=part.mask, scale=scale)
            so_far = norm[:, :, part.queries]
            share = torch.sigmoid(size - so_far)[..., None]
            total[:, :, part.queries].lerp_(result.to(exact), share)
            torch.logaddexp(so_far, size, out=so_far)
        total = total.to(query.dtype)
        ctx.save_for_backward(query, key, value, total, norm)
        ctx.plan, ctx.scale = plan, scale
        return total.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, total, norm = ctx.saved_tensors
        grad = grads[0].transpose(1, 2)
        exact = torch.promote_types(query.dtype, torch.float32)
        sums = [torch.zeros(x.transpose(1, 2).shape, dtype=exact).transpose(1, 2) for x in (query, key, value)]
        for part in ctx.plan.parts:
            own, seen = part.queries, part.keys
            shares = _backward(
                grad[:, :, own],
                query[:, :, own],
                key[:, :, seen],
                value[:, :, seen],
                total[:, :, own],
                norm[:, :, own],
                0.0,
                part.causal,
                attn_mask=part.mask,
                scale=ctx.scale,
            )
            for whole, share, where in zip(sums, shares, (own, seen, seen), strict=True):
                whole[:, :, where] += share
        return *(s.to(query.dtype) for s in sums), None, None
