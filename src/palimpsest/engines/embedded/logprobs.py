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
    vocab: int,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """[N] nats of `targets` [N] after `hidden` [N, W], and [N] entropies in nats, both differentiable."""
    rows = max(1, chunk_elements // vocab)
    if len(targets) <= rows or not torch.is_grad_enabled():
        parts = [
            _chunk(h, t, head, temperature)
            for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
    else:
        parts = [
            checkpoint(_chunk, h, t, head, temperature, use_reentrant=False, preserve_rng_state=False)
            for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _chunk(hidden: Tensor, targets: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
    every = log_probabilities(head(hidden), temperature)
    # An id that a model masks with -inf adds nothing to the entropy, where 0 * -inf would be NaN.
    entropy = -(every.exp() * every.clamp(min=torch.finfo(every.dtype).min)).sum(dim=-1)
    return every.gather(1, targets[:, None])[:, 0], entropy
