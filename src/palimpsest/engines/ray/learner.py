"""Learner rank: computes one rank's part of every update with torch.distributed, without Ray.

Gradient clipping uses one norm over all ranks; each rank scales its own share by it.

Guaranteed: the sum over ranks is the gradient of the whole step, to rounding; ranks whose plans differ reject the
update together instead of waiting for each other; the same number of ranks gives the same bytes. Every rank gets the
same norm, of all shares, however the gradients are sharded.
Not covered: the failure of a single rank: its peers wait in their next collective until the driver ends them; gradients
that are not yet summed over the ranks (`Partial`).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from palimpsest import files
from palimpsest.config.engine import ClusterConfig
from palimpsest.config.schema import Layout, RunConfig, is_served
from palimpsest.engines.embedded.architecture import ways_of
from palimpsest.engines.embedded.checkpoint_state import SHARES, CheckpointFacts
from palimpsest.engines.embedded.compute import set_threads
from palimpsest.engines.embedded.forest.gradients import ForestGradients, logprobs_of, scores_of
from palimpsest.engines.embedded.learner import check_savable
from palimpsest.engines.embedded.model_loading import DTYPES, pick_device
from palimpsest.engines.embedded.optim import Optimizer, total_norm
from palimpsest.engines.embedded.weight_transfer import no_room, size_of
from palimpsest.engines.protocol import Objective, UpdateStats
from palimpsest.engines.ray.rank_batches import RankPart
from palimpsest.engines.ray.sharding import (
    ForestModel,
    checked_copy,
    load_state,
    on_disk,
    save_state,
    shard,
    skeleton,
    source_of,
    write_model,
)
from palimpsest.errors import NotWritten, RunError
from palimpsest.provenance import weights_digest
from palimpsest.text.codec import Codec

# ---- Gradient clipping by the norm over all ranks ------------------------------------------------------------


def clip_by_mesh(parameters: list[nn.Parameter], bound: float) -> float:
    """`clip_grad_norm` over parameters that are sharded in different ways; returns the norm before clipping."""
    alike: dict[Any, list[Tensor]] = {}
    for grad in (p.grad for p in parameters if p.grad is not None):
        alike.setdefault((grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else None, []).append(grad)
    norm = _agreed(math.sqrt(sum(float(_squared_norm(grads)) for grads in alike.values())), parameters[0].device)
    scale = min(1.0, bound / (norm + 1e-6))
    for grad in itertools.chain(*alike.values()):
        grad.mul_(scale)
    return norm


def _agreed(norm: float, device: torch.device) -> float:
    """Maximum over the ranks, NaN as infinity: rounding may differ, but all ranks must take or skip the step."""
    largest = torch.tensor(norm if math.isfinite(norm) else math.inf, dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def _squared_norm(grads: list[Tensor]) -> Tensor:
    """[] float64, of gradients that are sharded alike, over all ranks."""
    squared = total_norm([grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]).double().square()
    first = grads[0]
    if not isinstance(first, DTensor):
        return squared
    # Not is_shard(): it is False for the _StridedShard that FSDP makes of tensor-parallel shards.
    added = [Replicate() if placement.is_replicate() else Partial() for placement in first.placements]
    return DTensor.from_local(squared, first.device_mesh, added).full_tensor()


# ---- Learner rank --------------------------------------------------------------------------------------------


class RankLearner:
    """Collective: every rank makes one, and calls the same methods in the same order."""

    def __init__(self, config: RunConfig, objective: Objective) -> None:
        """Needs a process group. Raises ModelError for an unsupported model."""
        set_threads(config.engine.num_threads)  # type: ignore[union-attr]
        self._config, self._objective = config, objective
        self._device = pick_device(config.model.device)
        cluster: ClusterConfig = config.cluster
        shape = (cluster.learners // cluster.tensor_parallel_size, cluster.tensor_parallel_size)
        self._mesh = init_device_mesh(self._device.type, shape, mesh_dim_names=("dp", "tp"))
        self._codec = Codec.load(config.model)
        small = checked_copy(source_of(config.model), config.learner.layout)
        check_savable(small, self._codec.tokenizer)
        self.layout: Layout = ways_of(small).layout or "forest"
        self._root: Any = self._shard(small)  # FSDP adds methods to its class
        steps_per_batch = config.train.num_minibatches if objective == "policy" else 1
        self._optimizer = Optimizer(
            self._model.named_parameters(), config.optim, config.train.max_steps * steps_per_batch, clip=clip_by_mesh
        )
        adapted, compares = config.model.lora is not None, objective == "policy" and config.loss.kl_loss_coef > 0
        self._reference = None
        if compares:
            self._reference = self._root if adapted else self._shard(small).requires_grad_(False)
        self._gradients = ForestGradients(self._root, objective, config.loss)
        self._origin = weights_digest(source_of(config.model).folder) if compares and dist.get_rank() == 0 else None

    def _shard(self, small: Any) -> ForestModel:
        entropy = self._objective == "policy" and self._config.loss.entropy_coeff != 0
        temperature = self._config.sampling.temperature or 1.0
        return shard(self._config, small, self._mesh, self._device, temperature, entropy_gradient=entropy)

    @property
    def _model(self) -> Any:
        return self._root.model

    @property
    def version(self) -> int:
        return self._optimizer.steps

    def update(self, part: RankPart) -> list[UpdateStats]:
        """Take the optimizer steps of an update; returns this rank's part of each. Raises RunError, on all ranks."""
        self._check_plan(part)
        steps = part.forests(self._device, torch.float32)
        recomputes = self._objective == "policy" and self._config.loss.old_logprobs == "recompute"
        before = [logprobs_of(forests, self._forward) if recomputes and len(steps) > 1 else None for forests in steps]
        return [
            self._optimizer.step(self._gradients.accumulate(forests, self._forward, old))
            for forests, old in zip(steps, before, strict=True)
        ]

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write this rank's share, on rank 0 also the model's files; returns their SHA-256. Raises NotWritten."""
        self._root.reshard()
        facts = CheckpointFacts(SHARES, self._optimizer.steps, self._optimizer.skipped, self._origin)
        with on_disk():
            written = save_state(folder, self._optimizer.live(), facts)
            return written | files.hashes(folder, write_model(self._model, folder, self._config.model, self._codec))

    def load(self, folder: Path) -> None:
        """Restore a save of any number of ranks. Raises CheckpointError."""
        self._root.reshard()
        load_state(folder, self._optimizer, self._origin)

    def publish(self, folder: Path) -> None:
        """Write the current model, on rank 0, into an empty folder: adapters merged, output projection separate from
        the embeddings, since servers may not tie them again after a reload.

        Raises EngineError if the disk is full.
        """
        self._root.reshard()
        try:
            with on_disk():
                write_model(self._model, folder, self._config.model, self._codec, merged=True)
        except NotWritten as error:  # report here: once the ranks end, the folder is deleted
            key = "sampler.folder" if is_served(self._config, self._objective) else "cluster.folder"
            needed = size_of(skeleton(source_of(self._config.model)), DTYPES[self._config.model.dtype])
            raise no_room(folder, error, needed=needed, key=key) from None

    def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """[T - 1] nats of each of `ids` after those before it, at temperature 1; the same on all ranks."""
        trained, self._root.temperature = self._root.temperature, 1.0
        try:
            return scores_of(ids, self._forward, len(ids) + 1, self._device)
        finally:
            self._root.temperature = trained

    def rest(self) -> None:
        """Free the memory that only a step needs: gathered weights, and what the allocator holds back."""
        roots: tuple[Any, ...] = (self._root, self._reference or self._root)
        for root in roots:
            root.reshard()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # ---- parts ----------------------------------------------------------------------------------------------

    def _check_plan(self, part: RankPart) -> None:
        plan = repr((part.number, self.version, part.passes.tolist())).encode()
        digest = int.from_bytes(hashlib.sha256(plan).digest()[:7])
        ends = torch.tensor([digest, -digest], device=self._device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if int(ends[0]) != -int(ends[1]):
            raise RunError(f"learner: the ranks have different plans for update {part.number}; resume the run")

    def _forward(self, forest: Any, reference: bool) -> tuple[Tensor, Tensor]:
        adapted = self._config.model.lora is not None
        with self._model.disable_adapter() if reference and adapted else nullcontext():
            root = self._reference if reference else self._root
            logprobs, entropies = root(forest)  # type: ignore[misc]
        return logprobs, entropies
