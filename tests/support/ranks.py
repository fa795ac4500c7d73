"""What ranks of a learner compute in processes of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from palimpsest.config.engine import RayEngineConfig
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.forest.gradients import skips_silent
from palimpsest.engines.protocol import Objective, StepBatch
from palimpsest.engines.ray.learner import RankLearner
from palimpsest.engines.ray.rank_batches import RankPart, plan
from palimpsest.errors import RunError

SCORED = (5, 90, 31, 7, 40, 11)
"""Ids that every rank scores at the end."""


@dataclass(frozen=True)
class Case:
    """What ranks are to compute, and what one process computes."""

    config: RunConfig
    updates: tuple[tuple[StepBatch, ...], ...]
    objective: Objective = "policy"
    parts: tuple[tuple[RankPart, ...], ...] = ()
    """For each update one of each rank; made by `on`."""

    def on(self, ranks: int) -> Case:
        """The same on so many ranks."""
        cluster = self.config.cluster.model_copy(update={"learners": ranks})
        dealt = [
            plan(
                steps,
                ranks // cluster.tensor_parallel_size,
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


def compute(rank: int, cases: dict[str, Case], out: Path, saves: bool = True) -> None:
    """Gradients of the first step of each case, then all its updates, into OUT/CASE.safetensors; its checkpoint.

    `norms` [ranks, steps] are the gradients' as each rank clipped by them.
    """
    for name, case in cases.items():
        learner = RankLearner(case.config, case.objective)
        mine = [update[rank // case.config.cluster.tensor_parallel_size] for update in case.parts]
        first = learner._gradients.accumulate(mine[0].forests("cpu", torch.float32)[0], learner._forward)
        gradients = {f"grad/{n}": whole(p.grad) for n, p in learner._model.named_parameters() if p.grad is not None}
        learner._optimizer._adamw.zero_grad(set_to_none=True)
        steps = [first, *(step for part in mine for step in learner.update(part))]
        losses = (
            torch.tensor([step.loss for step in steps], dtype=torch.float64) / case.config.cluster.tensor_parallel_size
        )
        dist.all_reduce(losses)
        norms = torch.zeros(dist.get_world_size(), len(steps) - 1, dtype=torch.float64)
        norms[rank] = torch.tensor([step.grad_norm for step in steps[1:]], dtype=torch.float64)
        dist.all_reduce(norms)
        if saves:
            (out / name).mkdir(exist_ok=True)
            (out / f"{name}-{rank}.json").write_text(json.dumps(dict(learner.save(out / name))))
        scores = torch.tensor(learner.score(SCORED), dtype=torch.float64)
        found = {**gradients, **held(learner), "losses": losses, "norms": norms, "scores": scores}
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
