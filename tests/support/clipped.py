"""What ranks make of the norm of gradients that they hold shares of; imports nothing that takes long."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from palimpsest.engines.ray.learner import clip_by_mesh


def clip_divided(rank: int) -> None:
    """Clip gradients of layers that two ranks divide and two pairs of them share, and compare with the whole."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8), nn.LayerNorm(8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    for p in model.parameters():
        p.grad = p.detach().clone()
    before = [_whole(p.grad) for p in model.parameters()]
    wanted = float(torch.cat([grad.double().flatten() for grad in before]).norm())
    norm = clip_by_mesh(list(model.parameters()), 0.5)
    assert math.isclose(norm, wanted, rel_tol=1e-6), f"rank {rank} clips by {norm}, all of it is {wanted}"
    for p, grad in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(_whole(p.grad), grad * 0.5 / wanted)


def clip_copies_that_differ(rank: int) -> None:
    """Gradients that two ranks each have whole, off by rounding or by a NaN: all ranks go by one number."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for change in (1.001, math.nan, math.inf):
        weight = nn.Linear(8, 6)
        fully_shard(weight, mesh=mesh["dp"])  # the same on both ranks of tp
        for p in weight.parameters():
            p.grad = p.detach().clone()
            assert isinstance(p.grad, DTensor)
            p.grad.to_local().mul_(change if rank == 1 else 1.0)
        norm = torch.tensor(clip_by_mesh(list(weight.parameters()), 0.5), dtype=torch.float64)
        all_norms = [torch.zeros_like(norm) for _ in range(4)]
        dist.all_gather(all_norms, norm)
        assert len(set(map(float, all_norms))) == 1, (change, all_norms)
        assert math.isfinite(norm) == (change == 1.001)


def _whole(grad: torch.Tensor | None) -> torch.Tensor:
    assert isinstance(grad, DTensor)
    return grad.full_tensor()
