"""Log-probabilities of chosen tokens from hidden states, without ever holding all logits.

The vocabulary projection is done for the states that predict only, in chunks of rows; where all logits are more than
`CHUNK_ELEMENTS`, those of each chunk are computed again in the backward pass instead of being kept.

Axes: N trained tokens, U distinct states they follow, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from palimpsest.engines.embedded.sampling.draw import log_probabilities

CHUNK_ELEMENTS = 1 << 23  # logits kept for the backward pass at most: 32 MB in float32
CACHED_ELEMENTS = 1 << 19  # logits of a chunk on a CPU: several passes go over them, which the cache makes cheap

Head = Callable[[Tensor], Tensor]


def token_logprobs(
    hidden: Tensor,
    head: Head,
    rows: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    vocab: int,
) -> tuple[Tensor, Tensor]:
    """[N] nats of `targets` [N], each after the state in row `rows` [N] of `hidden` [U, W]; [N] entropies in nats.

    A row may be asked for several targets; it is projected once. The log-probabilities are differentiable; the
    entropies only with `entropy_gradient`, else they cost no memory.
    """
    order = torch.argsort(rows, stable=True)
    rows, targets = rows[order], targets[order]
    recompute = torch.is_grad_enabled() and len(hidden) * vocab > chunk_elements
    size = max(1, (min(chunk_elements, CACHED_ELEMENTS) if hidden.device.type == "cpu" else chunk_elements) // vocab)
    begins = torch.arange(0, len(hidden) + size, size, device=rows.device)
    bounds = torch.searchsorted(rows, begins).tolist()
    parts = []
    for number, piece in enumerate(hidden.split(size)):
        wanted = slice(bounds[number], bounds[number + 1])
        arguments = (piece, rows[wanted] - number * size, targets[wanted], head, temperature, entropy_gradient)
        if recompute:
            parts.append(checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_chunk(*arguments))
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return torch.cat([p[0] for p in parts])[back], torch.cat([p[1] for p in parts])[back]


def _chunk(
    hidden: Tensor, rows: Tensor, targets: Tensor, head: Head, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    every = log_probabilities(head(hidden), temperature)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        # An id that a model masks with -inf adds nothing to the entropy, where 0 * -inf would be NaN.
        entropy = -(every.exp() * every.clamp(min=torch.finfo(every.dtype).min)).sum(dim=-1)
    return every.flatten().gather(0, rows * every.shape[1] + targets), entropy[rows]
