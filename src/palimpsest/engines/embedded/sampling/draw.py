"""Draws tokens by inverse transform of one uniform number per request and position.

Guaranteed: the uniform of token t of a request depends only on (seed, t); a token of probability 0 is never drawn.
Not covered: equality over machines (the logits differ in their last bits).

Axes: N rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """[N] numbers in [0, 1), each a function of its seed and its position in the completion.

    >>> a = uniforms(np.array([7, 7, 8], np.uint64), np.array([0, 1, 0]))
    >>> bool(a[0] != a[1] and a[0] != a[2])
    True
    >>> float(uniforms(np.array([7], np.uint64), np.array([1]))[0]) == float(a[1])
    True
    """
    bits = _mix(_mix(seeds + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN)
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52  # 52 bits: u * total stays below total


def log_probabilities(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """[N, V] nats of softmax(logits / temperature); temperature 0 counts as 1.

    `temperature` is a number or [N].
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(temperature, Tensor):
        logits = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    elif temperature not in (0.0, 1.0):
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1)


def nucleus(probs: Tensor, top_p: Tensor) -> Tensor:
    """[N, V] `probs` with everything outside the smallest set of mass `top_p` [N] set to 0.

    >>> nucleus(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([0.6])).tolist() == [[0.5, 0.30000001192092896, 0.0]]
    True
    """
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    before[:, 0] = -1.0  # the likeliest stays, also if `top_p` is 0 in float32
    return torch.zeros_like(probs).scatter_(-1, index, ordered.masked_fill_(before >= top_p[:, None], 0.0))


def draw(logits: Tensor, temperature: Tensor | float, top_p: Tensor | float, u: Tensor) -> tuple[Tensor, Tensor]:
    """[N] sampled ids and [N] their log-probabilities at the temperature, before top-p.

    A row with a non-finite logit gets a non-finite log-probability, which the caller checks.
    """
    logprobs = log_probabilities(logits, temperature)
    if not isinstance(temperature, Tensor) and temperature == 0.0:
        ids = logprobs.argmax(dim=-1)
    else:
        ids = _invert(logprobs.exp(), top_p, u)
        if isinstance(temperature, Tensor) and bool((temperature == 0).any()):
            ids = torch.where(temperature == 0, logprobs.argmax(dim=-1), ids)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


def _invert(probs: Tensor, top_p: Tensor | float, u: Tensor) -> Tensor:
    """[N] first index at which the running sum exceeds u times the total."""
    if isinstance(top_p, Tensor):
        probs = nucleus(probs, top_p)
    elif top_p < 1.0:
        probs = nucleus(probs, torch.full_like(probs[:, 0], top_p))
    cdf = probs.cumsum(dim=-1, dtype=torch.float64)
    ids = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]
    return ids.clamp_(max=probs.shape[1] - 1)
