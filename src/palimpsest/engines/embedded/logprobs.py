"""Log-probabilities of chosen tokens from hidden states, without ever holding all logits.

The vocabulary projection is done for the trained positions only, in chunks of rows; where there is more than one
chunk, each is computed again in the backward pass instead of being kept.

Axes: N trained tokens, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from palimpsest.engines.embedded.sampling import log_probabilities

CHUNK_ELEMENTS = 1 << 22  # logits held at once: 16 MB in float32

Head = Callable[[Tensor], Tensor]


def token_logprobs(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    vocab: int,
) -> tuple[Tensor, Tensor]:
    """[N] nats of `targets` [N] after `hidden` [N, W], and [N] entropies in nats.

    The log-probabilities are differentiable; the entropies only with `entropy_gradient`, else they cost no memory.
    """
    rows = max(1, chunk_elements // vocab)
    parts = []
    for piece, wanted in zip(hidden.split(rows), targets.split(rows), strict=True):
        if len(targets) <= rows or not torch.is_grad_enabled():
            parts.append(_chunk(piece, wanted, head, temperature, entropy_gradient))
        else:
            arguments = (piece, wanted, head, temperature, entropy_gradient)
            parts.append(checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _chunk(
    hidden: Tensor, targets: Tensor, head: Head, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    every = log_probabilities(head(hidden), temperature)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        # An id that a model masks with -inf adds nothing to the entropy, where 0 * -inf would be NaN.
        entropy = -(every.exp() * every.clamp(min=torch.finfo(every.dtype).min)).sum(dim=-1)
    return every.gather(1, targets[:, None])[:, 0], entropy
