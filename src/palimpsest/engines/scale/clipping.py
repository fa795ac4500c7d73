"""Gradients scaled down to a norm that ranks hold shares of, by which each scales its own.

Guaranteed: every rank gets the norm of all shares together, in whatever ways the gradients are sharded, and the same
number.
Not covered: gradients that are not summed over the ranks yet (`Partial`).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from palimpsest.engines.embedded.clipping import total_norm


def clip_by_mesh(parameters: list[nn.Parameter], bound: float) -> float:
    """`clip_grad_norm` over parameters that are sharded in different ways; the norm before."""
    alike: dict[Any, list[Tensor]] = {}
    for grad in (p.grad for p in parameters if p.grad is not None):
        alike.setdefault((grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else None, []).append(grad)
    norm = _agreed(math.sqrt(sum(float(_squared_norm(grads)) for grads in alike.values())), parameters[0].device)
    scale = min(1.0, bound / (norm + 1e-6))
    for grad in itertools.chain(*alike.values()):
        grad.mul_(scale)
    return norm


def _agreed(norm: float, device: torch.device) -> float:
    """The largest of what the ranks found, NaN as infinity: gradients that several ranks have whole may differ in
    rounding, and all have to step, or to skip the step, alike."""
    largest = torch.tensor(norm if math.isfinite(norm) else math.inf, dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def _squared_norm(grads: list[Tensor]) -> Tensor:
    """[] float64, of gradients that are sharded alike, over all ranks."""
    squared = total_norm([grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]).double().square()
    first = grads[0]
    if not isinstance(first, DTensor):
        return squared
    # Not is_shard(): it is False of the _StridedShard that FSDP makes of what tensor parallel has divided already.
    added = [Replicate() if placement.is_replicate() else Partial() for placement in first.placements]
    return DTensor.from_local(squared, first.device_mesh, added).full_tensor()
