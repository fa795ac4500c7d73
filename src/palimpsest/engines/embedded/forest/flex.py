"""Attention over prefix forests on CUDA: FlexAttention with a block mask (Dong et al., arXiv 2412.05496).

The mask is two comparisons per pair; blocks of 128 x 128 places that no path crosses are skipped. Kernel and mask are
compiled for all lengths (`dynamic=True`): with fixed shapes every new length would be compiled anew. There are a dozen
variants nevertheless: with and without a gradient, queries at all places or at some, one block of them or several.

Guaranteed: the same pairs as the other paths see; what was not compiled is never computed uncompiled, which would hold
all pairs. Not covered: training on a CPU, for which torch has no backward pass of it; heads smaller than 16, for which
it has no kernel; forests of under about 1,000 tokens gain nothing from it.

Axes: H query heads, G key-value heads, T places, Q queries, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch._dynamo.config as dynamo
from torch import Tensor

VARIANTS = 64  # compiled forms of one function; torch's own limit of 8 is met by one model's steps
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def mask_mod(exits: Tensor, places: Tensor, depths: Tensor | None = None, window: int = 0) -> Sees:
    """Whether query `q` sees key `k`, as FlexAttention asks for it; `exits` [T], `places` [Q] of the queries.

    With `depths` [T], only as far back as `window`.
    """

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        place = places[q]
        return (k <= place) & (place < exits[k])

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
    """The BlockMask that `flex` takes: made once for a forest, used by every layer."""
    create, sees = _compiled()[0], mask_mod(exits, places, depths, window)
    with dynamo.patch(recompile_limit=VARIANTS):
        return create(sees, None, None, len(places), len(exits), device=exits.device)


def flex(query: Tensor, key: Tensor, value: Tensor, blocks: Any, scale: float | None = None) -> Tensor:
    """[1, Q, H, D] attention of `query` [1, H, Q, D] on `key` and `value` [1, G, T, D]."""
    grouped = query.shape[1] != key.shape[1]
    attention = _compiled()[1]
    with dynamo.patch(recompile_limit=VARIANTS):
        result: Tensor = attention(query, key, value, block_mask=blocks, scale=scale, enable_gqa=grouped)
    return result.transpose(1, 2)
