"""Work of ranks in processes without Ray (gloo on loopback), whose module they import."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import set_forkserver_preload
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing.spawn import start_processes

from palimpsest.config.engine import RayEngineConfig
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.forest.gradients import skips_silent
from palimpsest.engines.protocol import Objective, StepBatch, TrainSegment
from palimpsest.engines.ray import sharding
from palimpsest.engines.ray.learner import RankLearner, clip_by_mesh
from palimpsest.engines.ray.rank_batches import RankPart, plan
from palimpsest.errors import RunError
from support.forests import exact

# ---- processes --------------------------------------------------------------------------------------------------


def run_ranks(count: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `count` processes; raises what one of them raised."""
    meeting = Path(mkdtemp(prefix="meeting-", dir=folder)) / "at"
    set_forkserver_preload(["palimpsest.engines.ray.learner"])  # torch is imported once, not in each rank
    start_processes(_rank, (count, str(meeting), work, arguments), nprocs=count, start_method="forkserver")


def _rank(rank: int, count: int, meeting: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=60)
    )
    try:
        work(rank, *arguments)
    except BaseException:
        dist.destroy_process_group()
        raise
    done = [Path(f"{meeting}-done-{each}") for each in range(count)]
    done[rank].touch()
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in done) and time.monotonic() < deadline:
        time.sleep(0.01)  # not a barrier: gloo may abort a rank that waits in one when another leaves
    sys.stdout.flush()
    os._exit(0)  # without closing connections whose other end is gone, which may abort too


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """Make this process the only rank."""
    meeting = f"file://{folder}/meeting-alone"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1, timeout=timedelta(seconds=60))
    try:
        yield
    finally:
        dist.destroy_process_group()


# ---- updates ----------------------------------------------------------------------------------------------------


SCORED = (5, 90, 31, 7, 40, 11)
"""Ids that every rank scores at the end."""


@dataclass(frozen=True)
class Case:
    """Updates of ranks, and of one process."""

    config: RunConfig
    updates: tuple[tuple[StepBatch, ...], ...]
    objective: Objective = "policy"
    parts: tuple[tuple[RankPart, ...], ...] = ()
    """[updates][ranks], made by `on`."""

    def on(self, ranks: int) -> Case:
        """The same on that many ranks."""
        cluster = self.config.cluster.model_copy(update={"learners": ranks})
        silent = skips_silent(self.objective, self.config.loss)
        sizes = {"micro_batch_tokens": micro_batch(self.config), "max_context": 512, "skips_silent": silent}
        groups = ranks // cluster.tensor_parallel_size
        parts = tuple(plan(steps, groups, number=n, **sizes).parts for n, steps in enumerate(self.updates))
        return replace(self, config=self.config.model_copy(update={"cluster": cluster}), parts=parts)


def micro_batch(config: RunConfig) -> int:
    assert isinstance(config.engine, RayEngineConfig)
    return config.engine.micro_batch_tokens


def compute(rank: int, cases: dict[str, Case], out: Path, saves: bool = True) -> None:
    """Gradients of the first step of each case, then all its updates, into OUT/CASE.safetensors; its checkpoint.

    `norms` [ranks, steps] are the gradients' as each rank clipped by them.
    """
    for name, case in cases.items():
        learner = RankLearner(case.config, case.objective)
        mine = [update[rank // case.config.cluster.tensor_parallel_size] for update in case.parts]
        first = learner._gradients.accumulate(mine[0].forests("cpu", torch.float32)[0], learner._forward)
        gradients = {f"grad/{n}": full(p.grad) for n, p in learner._model.named_parameters() if p.grad is not None}
        learner._optimizer._adamw.zero_grad(set_to_none=True)
        steps = [first, *(step for part in mine for step in learner.update(part))]
        losses = torch.tensor([step.loss for step in steps], dtype=torch.float64)
        losses /= case.config.cluster.tensor_parallel_size
        dist.all_reduce(losses)
        norms = torch.zeros(dist.get_world_size(), len(steps) - 1, dtype=torch.float64)
        norms[rank] = torch.tensor([step.grad_norm for step in steps[1:]], dtype=torch.float64)
        dist.all_reduce(norms)
        if saves:
            (out / name).mkdir(exist_ok=True)
            (out / f"{name}-{rank}.json").write_text(json.dumps(dict(learner.save(out / name))))
        scores = torch.tensor(learner.score(SCORED), dtype=torch.float64)
        results = {**gradients, **state_of(learner), "losses": losses, "norms": norms, "scores": scores}
        if rank == 0:
            save_file(results, out / f"{name}.safetensors")


def state_of(learner: RankLearner) -> dict[str, Tensor]:
    """Complete masters and moments."""
    return {name: full(tensor) for name, tensor in learner._optimizer.live().items()}


def reload(rank: int, case: Case, folder: Path, out: Path) -> None:
    """Load a checkpoint, write its state, and take one more update."""
    learner = RankLearner(case.config, case.objective)
    learner.load(folder)
    before = state_of(learner)
    (step,) = learner.update(case.parts[0][rank])
    after = {f"after/{name}": tensor for name, tensor in state_of(learner).items()}
    if rank == 0:
        save_file({**before, **after, "norm": torch.tensor(step.grad_norm)}, out)


def disagree(rank: int, case: Case) -> None:
    """Get plans with different numbers of passes."""
    learner = RankLearner(case.config, case.objective)
    part = case.parts[rank][rank]
    with pytest.raises(RunError, match="different plans for update"):
        learner.update(replace(part, number=0))


def full(tensor: Any) -> Tensor:
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().contiguous().clone()


# ---- the same in float64, in which rounding is far below any fault of a reduction ---------------------------------


def compute_exactly(rank: int, cases: dict[str, Case], out: Path) -> None:
    """`compute` in float64."""
    with pytest.MonkeyPatch.context() as patch:
        _in_float64(patch)
        compute(rank, cases, out, saves=False)


def _in_float64(patch: pytest.MonkeyPatch) -> None:
    skeleton, with_adapters, forests = sharding.skeleton, sharding._with_adapters, RankPart.forests

    def doubled(*arguments: Any) -> tuple[Any, dict[str, Any]]:
        model, drawn = with_adapters(*arguments)
        return model.double(), drawn  # adapters are drawn in float32, as one process does

    patch.setattr(sharding, "skeleton", lambda *arguments: exact(skeleton(*arguments)))
    patch.setattr(sharding, "_with_adapters", doubled)
    patch.setattr(sharding, "computed_in", lambda *_: torch.float64)
    patch.setattr(RankPart, "forests", lambda part, device, _: forests(part, device, torch.float64))
    patch.setattr(
        sharding, "MixedPrecisionPolicy", lambda **options: MixedPrecisionPolicy(**options | {"reduce_dtype": None})
    )


def rounded(case: Case) -> Case:
    """With numbers rounded to float32, as ranks get them."""
    steps = (tuple(replace(s, segments=tuple(map(_in_float32, s.segments))) for s in update) for update in case.updates)
    return replace(case, updates=tuple(steps))


def _in_float32(item: TrainSegment) -> TrainSegment:
    logprobs, advantages, weights = (
        tuple(float(np.float32(number)) for number in numbers)
        for numbers in (item.segment.logprobs, item.advantages, item.weights)
    )
    return replace(item, segment=replace(item.segment, logprobs=logprobs), advantages=advantages, weights=weights)


# ---- clipping ---------------------------------------------------------------------------------------------------


def clip_divided(rank: int) -> None:
    """Clip gradients of layers that two ranks divide and two pairs share, and compare with one process."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8), nn.LayerNorm(8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    for p in model.parameters():
        p.grad = p.detach().clone()
    before = [full(p.grad) for p in model.parameters()]
    wanted = float(torch.cat([grad.double().flatten() for grad in before]).norm())
    norm = clip_by_mesh(list(model.parameters()), 0.5)
    assert math.isclose(norm, wanted, rel_tol=1e-6), f"rank {rank} clips by {norm}, not by {wanted}"
    for p, grad in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(full(p.grad), grad * 0.5 / wanted)


def clip_copies_that_differ(rank: int) -> None:
    """Clip copies of a gradient that differ by rounding or a NaN: all ranks use one norm."""
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
