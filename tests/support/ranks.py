"""Ranks of a learner in processes of their own, without Ray: gloo on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import Objective
from palimpsest.engines.scale.batch import Part
from palimpsest.engines.scale.learner import RankLearner


def run_ranks(count: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `count` processes; raises what one of them raised."""
    meeting = folder / f"meeting-{len(list(folder.glob('meeting-*')))}"
    torch.multiprocessing.spawn(_rank, (count, str(meeting), work, arguments), nprocs=count)


def _rank(rank: int, count: int, meeting: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=60)
    )
    try:
        work(rank, *arguments)
    finally:
        dist.destroy_process_group()


def updates(rank: int, cases: dict[str, tuple[RunConfig, Objective, list[list[Part]]]], out: Path) -> None:
    """For each case: gradients of the first step, then all updates; what came of it as OUT/CASE.safetensors."""
    for name, (config, objective, parts) in cases.items():
        learner = RankLearner(config, objective)
        mine = [update[rank // config.cluster.tensor_parallel] for update in parts]
        forests = mine[0].forests("cpu", torch.float32)[0]
        stats = learner._gradients.accumulate(forests, learner._forward)
        gradients = {f"grad/{n}": whole(p.grad) for n, p in learner._model.named_parameters() if p.grad is not None}
        learner._optimizer._adamw.zero_grad(set_to_none=True)
        done = [learner.update(part) for part in mine]
        found = {f"weight/{n}": whole(p) for n, p in learner._model.named_parameters() if p.requires_grad}
        losses = [stats.loss, *(step.loss for steps in done for step in steps)]
        loss = torch.tensor(losses, dtype=torch.float64) / config.cluster.tensor_parallel
        dist.all_reduce(loss)
        norms = torch.tensor([step.grad_norm or -1.0 for steps in done for step in steps])
        if rank == 0:
            save_file({**gradients, **found, "loss": loss, "norms": norms}, out / f"{name}.safetensors")


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().contiguous().clone()
