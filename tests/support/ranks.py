"""Ranks of a learner in processes of their own, without Ray: gloo on loopback."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from palimpsest.config.engine import RayEngineConfig
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.forest.gradients import skips_silent
from palimpsest.engines.protocol import Objective, StepBatch
from palimpsest.engines.scale.batch import Part, plan
from palimpsest.engines.scale.learner import RankLearner
from palimpsest.errors import RunError


def run_ranks(count: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `count` processes; raises what one of them raised."""
    meeting = Path(mkdtemp(prefix="meeting-", dir=folder)) / "at"
    spawn(_rank, (count, str(meeting), work, arguments), nprocs=count)


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
        time.sleep(0.01)  # no barrier: gloo may abort a rank that still waits in one when the other has left it
    sys.stdout.flush()
    os._exit(0)  # without taking down connections whose other end may be gone, which may abort too


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """While this process is the only rank."""
    meeting = f"file://{folder}/meeting-alone"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1, timeout=timedelta(seconds=60))
    try:
        yield
    finally:
        dist.destroy_process_group()


SCORED = (5, 90, 31, 7, 40, 11)
"""Ids that every rank scores at the end."""


@dataclass(frozen=True)
class Case:
    """What ranks are to compute, and what one process computes."""

    config: RunConfig
    updates: tuple[tuple[StepBatch, ...], ...]
    objective: Objective = "policy"
    parts: tuple[tuple[Part, ...], ...] = ()
    """For each update one of each rank; made by `on`."""

    def on(self, ranks: int) -> Case:
        """The same on so many ranks."""
        cluster = self.config.cluster.model_copy(update={"learners": ranks})
        dealt = [
            plan(
                steps,
                ranks // cluster.tensor_parallel,
                number=number,
                micro_batch_tokens=micro_batch(self.config),
                max_context=512,
                skips_silent=skips_silent(self.objective, self.config.loss),
            ).parts
            for number, steps in enumerate(self.updates)
        ]
        return replace(
            self, config=self.config.model_copy(update={"cluster": cluster}), parts=tuple(dealt), updates=self.updates
        )


def micro_batch(config: RunConfig) -> int:
    assert isinstance(config.engine, RayEngineConfig)
    return config.engine.micro_batch_tokens


def compute(rank: int, cases: dict[str, Case], out: Path) -> None:
    """Gradients of the first step of each case, then all its updates, into OUT/CASE.safetensors; its checkpoint."""
    for name, case in cases.items():
        learner = RankLearner(case.config, case.objective)
        mine = [update[rank // case.config.cluster.tensor_parallel] for update in case.parts]
        first = learner._gradients.accumulate(mine[0].forests("cpu", torch.float32)[0], learner._forward)
        gradients = {f"grad/{n}": whole(p.grad) for n, p in learner._model.named_parameters() if p.grad is not None}
        learner._optimizer._adamw.zero_grad(set_to_none=True)
        steps = [first, *(step for part in mine for step in learner.update(part))]
        losses = torch.tensor([step.loss for step in steps], dtype=torch.float64) / case.config.cluster.tensor_parallel
        dist.all_reduce(losses)
        (out / name).mkdir(exist_ok=True)
        written = learner.save(out / name)
        (out / f"{name}-{rank}.json").write_text(json.dumps(dict(written)))
        scores = torch.tensor(learner.score(SCORED))
        found = {**gradients, **held(learner), "losses": losses, "scores": scores}
        if rank == 0:
            save_file(found, out / f"{name}.safetensors")


def held(learner: RankLearner) -> dict[str, Tensor]:
    """Masters and moments, whole."""
    return {name: whole(tensor) for name, tensor in learner._optimizer.live().items()}


def reload(rank: int, case: Case, folder: Path, out: Path) -> None:
    """Load a checkpoint, write what is then held, and take one more update."""
    learner = RankLearner(case.config, case.objective)
    learner.load(folder)
    before = held(learner)
    (step,) = learner.update(case.parts[0][rank])
    after = {f"after/{name}": tensor for name, tensor in held(learner).items()}
    if rank == 0:
        save_file({**before, **after, "norm": torch.tensor(step.grad_norm)}, out)


def disagree(rank: int, case: Case) -> None:
    """Be given plans of different numbers of passes."""
    learner = RankLearner(case.config, case.objective)
    part = case.parts[rank][rank]
    with pytest.raises(RunError, match="different plans for update"):
        learner.update(replace(part, number=0))


def whole(tensor: Any) -> Tensor:
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().contiguous().clone()
