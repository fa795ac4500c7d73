"""Attention over prefix forests: flash attention on ranges (CPU), FlexAttention (CUDA), a dense mask.

A place attends to its path: earlier places of its node and all places of its ancestors. Three implementations give the
same result:

- `parts` (CPU): flash attention on ranges of queries and keys, merged by their log-sum-exps;
- `flex` (CUDA): FlexAttention with a block mask (Dong et al., arXiv 2412.05496), two comparisons per pair, which skips
  blocks of 128 x 128 places that no path crosses. Compiled with `dynamic=True`; there are a dozen variants;
- `dense` (any device): a mask of all pairs. The reference; also used for keys and values of different sizes.

`parts` divides the forest so that every attending pair is in exactly one part:

- for a long node, a triangle: its places, causal;
- for a node with descendants, a rectangle: the queries of all its descendants, which are one range, on its keys;
- for small adjacent subtrees, one square with a mask, which is faster than many small calls.

If only some places have a query (the last layer), query ranges count only those. Layers with a window narrower than the
forest's depth use `AttentionPlan.near`, on a CPU a mask of all pairs. The backward pass of `parts` stores no partial
results: with the merged result and log-sum-exp, gradients of parts are exact and add up (as in ring attention, Liu et
al., arXiv 2310.01889).

Guaranteed: equal to attention over each separate segment, to rounding; the same bytes for the same forest. Uncompiled
FlexAttention, which would store all pairs, never runs. Without a forest a call is plain `sdpa`, or the class's own
eager attention for capped scores or sinks; with a forest such attention is rejected.
Not covered: dropout (switched off at loading); in `flex`, training on a CPU and heads smaller than 16. Forests of under
about 1,000 tokens gain nothing from `flex`.

Axes: H query heads, G key-value heads, T places, Q queries, D head size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch._dynamo.config as dynamo
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from palimpsest.engines.embedded.forest.layout import Forest, Ids
from palimpsest.errors import ModelError

# ---- FlexAttention on CUDA -----------------------------------------------------------------------------------


VARIANTS = 64  # compiled forms of one function; one model's steps reach torch's default limit of 8
ONE_KERNEL = {"BACKEND": "TRITON"}  # else torch decodes under 128 queries: the probe's kernel would not be a step's
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def mask_mod(exits: Tensor, places: Tensor, depths: Tensor | None = None, window: int = 0) -> Sees:
    """FlexAttention's mask function: True if query `q` sees key `k`; `exits` [T], `places` [Q] of the queries.

    With `depths` [T], at most `window` back.
    """

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        position = places[q]
        return (k <= position) & (position < exits[k])

    if depths is None:
        return sees

    floors = depths[places] - window  # a tensor: as a number, the window would be a symbol that kernels can't take

    def near(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return sees(batch, head, q, k) & (depths[k] > floors[q])

    return near


@cache
def _compiled() -> tuple[Any, Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return (
        torch.compile(create_block_mask, dynamic=True, fullgraph=True),
        torch.compile(flex_attention, dynamic=True, fullgraph=True),  # an error at the limit, not all pairs in memory
    )


def block_mask(exits: Tensor, places: Tensor, depths: Tensor | None = None, window: int = 0) -> Any:
    """The BlockMask for `flex`, built once per forest and used by every layer."""
    create, sees = _compiled()[0], mask_mod(exits, places, depths, window)
    with dynamo.patch(recompile_limit=VARIANTS):
        return create(sees, None, None, len(places), len(exits), device=exits.device)


def flex(query: Tensor, key: Tensor, value: Tensor, blocks: Any, scale: float | None = None) -> Tensor:
    """[1, Q, H, D] attention of `query` [1, H, Q, D] on `key` and `value` [1, G, T, D]."""
    options = {"block_mask": blocks, "scale": scale, "kernel_options": ONE_KERNEL}
    with dynamo.patch(recompile_limit=VARIANTS):
        result: Tensor = _compiled()[1](query, key, value, enable_gqa=query.shape[1] != key.shape[1], **options)
    return result.transpose(1, 2)


# ---- Attention as a list of parts, each a range of queries on a range of keys --------------------------------


SQUARE = 128  # places of a masked square, at most
TILE = 1024  # queries of a rectangle, at most: its partial result is merged while in the cache


@dataclass(frozen=True, slots=True)
class AttentionPart:
    queries: slice
    keys: slice
    causal: bool = False
    mask: Tensor | None = None
    """[1, 1, queries, keys] 0 for visible keys, -inf otherwise; None: all visible, or see `causal`."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Precomputed masks and ranges for the attention of one forest."""

    parts: tuple[AttentionPart, ...]
    """For the CPU; empty on CUDA."""
    exits: Tensor
    """[T]"""
    places: Tensor
    """[Q] place of each query, ascending."""
    blocks: Any = None
    """FlexAttention's BlockMask on CUDA."""
    window: int | None = None
    """Window in places, including the current one; None if no path is longer."""
    near: Any = None
    """For layers with a window: a BlockMask on CUDA, otherwise [1, 1, Q, T] additive mask."""


def plan_of(
    forest: Forest, dtype: torch.dtype, places: Tensor | None = None, *, window: int | None = None
) -> AttentionPlan:
    """Plan for queries at `places` [Q], ascending; None: all places. `dtype` is that of the model.

    `window`: of the sliding layers.
    """
    device, exits, depths = forest.input_ids.device, forest.exits, forest.positions
    where = torch.arange(forest.physical_tokens, device=device) if places is None else places
    if window is not None and int(depths.max()) < window:
        window = None
    near: Any = None
    if device.type == "cuda":
        if window is not None:
            near = block_mask(exits, where, depths, window)
        return AttentionPlan((), exits, where, block_mask(exits, where), window, near)
    if window is not None:
        visible = on_path(exits, where, torch.arange(len(exits))) & (depths[where][:, None] - depths < window)
        near = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)[None, None]
    return AttentionPlan(tuple(_Planner(forest, where.numpy(), dtype).parts), exits, where, None, window, near)


def on_path(exits: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """[Q, K] True if the key's place is on the path of the query's place."""
    return (keys <= queries[:, None]) & (queries[:, None] < exits[keys])


class _Planner:
    def __init__(self, forest: Forest, places: Ids, dtype: torch.dtype) -> None:
        self._places, self._dtype, self._exits = torch.from_numpy(places), dtype, forest.exits
        has_query = np.zeros(forest.physical_tokens + 1, np.int64)
        has_query[places + 1] = 1
        self._before = np.cumsum(has_query)  # queries before each place
        self.parts: list[AttentionPart] = []
        self._walk(forest)

    def _walk(self, forest: Forest) -> None:
        nodes, total = forest.nodes, forest.physical_tokens
        starts, ends, exits = nodes.starts.tolist(), nodes.ends.tolist(), nodes.exits.tolist()
        k = 0
        while k < len(starts):
            start, stop = starts[k], exits[k]
            if stop - start > SQUARE:
                self._triangle(start, ends[k])
                self._rectangle(ends[k], stop, start, ends[k])
                k += 1
                continue
            following = k
            while stop < total:
                following = int(np.searchsorted(nodes.starts, stop))
                if exits[following] - start > SQUARE:
                    break
                stop = exits[following]
            if stop == ends[k]:
                self._triangle(start, stop)
            else:
                self._square(start, stop)
            k = int(np.searchsorted(nodes.starts, stop))

    def _queries(self, begin: int, end: int) -> slice:
        return slice(int(self._before[begin]), int(self._before[end]))

    def _triangle(self, start: int, end: int) -> None:
        """Places of a node on themselves: per run of queries, the places before it, then its own triangle."""
        queries = self._queries(start, end)
        if queries.stop - queries.start == end - start:
            self.parts.append(AttentionPart(queries, slice(start, end), causal=True))
            return
        places = self._places[queries].numpy()
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            if len(run):
                begin, stop = int(run[0]), int(run[-1]) + 1
                self._rectangle(begin, stop, start, begin)
                self.parts.append(AttentionPart(self._queries(begin, stop), slice(begin, stop), causal=True))

    def _rectangle(self, begin: int, stop: int, start: int, end: int) -> None:
        """Queries of places [begin, stop) on the keys [start, end), all of which they see."""
        queries = self._queries(begin, stop)
        for tile in range(queries.start, queries.stop, TILE) if end > start else ():
            self.parts.append(AttentionPart(slice(tile, min(tile + TILE, queries.stop)), slice(start, end)))

    def _square(self, start: int, stop: int) -> None:
        queries = self._queries(start, stop)
        if queries.start < queries.stop:
            hidden = ~on_path(self._exits, self._places[queries], torch.arange(start, stop))
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
            self.parts.append(AttentionPart(queries, slice(start, stop), mask=mask[None, None]))


# ---- transformers' attention interface -----------------------------------------------------------------------


NAME, PRECISE = "palimpsest_forest", "palimpsest_precise"
FOREIGN = ("softcap", "s_aux", "position_bias")  # arguments that change scores in ways no path here computes
DROPPED = ("softcap", "s_aux")  # arguments that transformers' sdpa accepts and ignores

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def register() -> None:
    """Register `NAME` with transformers, and `PRECISE`, the reference for its rounding."""
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
    forest: AttentionPlan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: [1, H, Q, D] queries and [1, G, T, D] keys to [1, Q, H, D]."""
    if forest is None:
        if any(options.get(name) is not None for name in DROPPED):
            return eager(module, query, key, value, attention_mask, scaling=scaling, **options)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    refused = [name for name in FOREIGN if options.get(name) is not None]
    if refused:
        raise ModelError(f"unsupported attention with {refused[0]}")
    window = options.get("sliding_window")
    if window is None or forest.window is None:
        return attend(query, key, value, forest, scaling), None
    if window != forest.window:
        raise ModelError(f"unsupported: layers with windows of {window} and {forest.window}")
    if query.is_cuda:
        return flex(query, key, value, forest.near, scaling), None
    return _masked(query, key, value, forest.near, scaling), None


def eager(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Eager attention of the module's class; `attention_mask` as for `sdpa`."""
    mask = attention_mask
    if mask is None:  # causal
        size = query.shape[2], key.shape[2]
        mask = torch.ones(size, dtype=torch.bool, device=query.device).tril(size[1] - size[0])[None, None]
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    forward = sys.modules[type(module).__module__].eager_attention_forward
    return forward(module, query, key, value, mask, **options)[0], None


def _precise(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """`eager` in twice the precision, with its result rounded once."""
    wider = torch.float64 if query.dtype == torch.float32 else torch.promote_types(query.dtype, torch.float32)
    result = eager(module, query.to(wider), key.to(wider), value.to(wider), attention_mask, **options)[0]
    return result.to(query.dtype), None


def attend(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float | None = None) -> Tensor:
    """[1, Q, H, D] attention of `query` [1, H, Q, D] over the paths of its places in `key` and `value` [1, G, T, D]."""
    if query.is_cuda:
        return flex(query, key, value, plan.blocks, scale)
    if key.shape[-1] != value.shape[-1]:
        return dense(query, key, value, plan, scale)
    result: Tensor = _Parts.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
    return result


def dense(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float | None = None) -> Tensor:
    """`attend` with a mask of all pairs."""
    return _masked(
        query, key, value, on_path(plan.exits, plan.places, torch.arange(len(plan.exits), device=query.device)), scale
    )


def _masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return result.transpose(1, 2)


class _Parts(torch.autograd.Function):
    """`attend` part by part, on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float | None
    ) -> Tensor:
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
            queries, keys = part.queries, part.keys
            shares = _backward(
                grad[:, :, queries],
                query[:, :, queries],
                key[:, :, keys],
                value[:, :, keys],
                total[:, :, queries],
                norm[:, :, queries],
                0.0,
                part.causal,
                attn_mask=part.mask,
                scale=ctx.scale,
            )
            for target, share, where in zip(sums, shares, (queries, keys, keys), strict=True):
                target[:, :, where] += share
        return *(s.to(query.dtype) for s in sums), None, None
