"""Actors in the processes that Ray starts: a rank of the learner, a copy of the sampler; servers: server_hosts.py.

The driver calls both, one call at a time; Ray passes on their errors (actor_group.py).
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import ray
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors import safe_open

from palimpsest.config.schema import Layout, RunConfig, takes_turns
from palimpsest.engines.embedded.compute import memories, memory_of, set_threads
from palimpsest.engines.embedded.model_loading import load_model, pick_device
from palimpsest.engines.embedded.sampling.continuous_batch import ContinuousBatch, Request
from palimpsest.engines.process_guard import GuardedFolder
from palimpsest.engines.protocol import Objective, SamplerStats, UpdateStats, kv_bytes
from palimpsest.engines.ray.learner import RankLearner
from palimpsest.engines.ray.rank_batches import RankPart
from palimpsest.engines.ray.ray_runtime import COMPILING, WrittenWeights, folder_of_weights, set_gloo_interface
from palimpsest.errors import CheckpointError, RunError, SamplerError
from palimpsest.types import Completion, SamplingParams


def check_visible(folder: Path, key: str) -> None:
    """Raises RunError if this node doesn't see a folder of the driver."""
    if not folder.is_dir():
        raise RunError(f"{key}: {platform.node()} does not see {folder}; give a folder that every node sees")


class Rank:
    """One rank of a learner."""

    def __init__(self, config: RunConfig, objective: Objective, rank: int) -> None:
        self._config, self._objective, self._rank = config, objective, rank
        self._weights: GuardedFolder | None = None

    def meeting(self) -> str:
        """Rendezvous address for ranks of several machines: a free port of this one."""
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as free:
            free.bind((host, 0))
            return f"tcp://{host}:{free.getsockname()[1]}"

    def start(self, meeting: str, folder: Path) -> None:
        """Meet the others and load the model."""
        cluster = self._config.cluster
        if cluster.address is None or cluster.folder is not None:
            check_visible(folder, "cluster.folder")
        set_gloo_interface(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        on_gpu = pick_device(self._config.model.device).type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=meeting,
            rank=self._rank,
            world_size=cluster.learners,
            timeout=timedelta(seconds=cluster.timeout_s * (1 + COMPILING * on_gpu)),
        )
        self._learner = RankLearner(self._config, self._objective)

    def pid(self) -> int:
        return os.getpid()

    def layout(self) -> Layout:
        return self._learner.layout

    def update(self, part: RankPart) -> tuple[list[UpdateStats], int]:
        """Statistics of this rank's part, and the version after it."""
        return self._learner.update(part), self._learner.version

    def save(self, folder: Path) -> Mapping[str, str]:
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder}: {platform.node()} does not see it; put the run on storage that every node sees"
            )
        return self._learner.save(folder)

    def load(self, folder: Path) -> int:
        """Returns the saved version."""
        self._learner.load(folder)
        return self._learner.version

    def publish(self, folder: Path) -> None:
        check_visible(folder, "sampler.folder")
        self._learner.publish(folder)

    def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        scores = self._learner.score(ids)
        if takes_turns(self._config):
            self._learner.rest()  # the last call before servers wake up
        return scores

    # ---- servers that Ray places ----------------------------------------------------------------------------

    def gpu(self) -> tuple[str, int] | None:
        """CUDA name and bytes of this rank's GPU."""
        return next(iter(memories().items()), None)

    def write(self, name: str) -> WrittenWeights | None:
        """Write the current model into the new folder `name` of the first rank's machine."""
        if self._rank:
            self._learner.publish(Path(name))
            return None
        self._weights = self._weights or folder_of_weights(self._config.sampler.folder)
        folder = self._weights.path / name
        folder.mkdir()
        self._learner.publish(folder)
        files = {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}
        return WrittenWeights(ray.get_runtime_context().get_node_id(), folder, files)

    def read(self, path: Path, offset: int, size: int) -> NDArray[np.uint8]:
        """At most `size` bytes at `offset`; Ray passes an array on without copies in its processes."""
        return np.fromfile(path, np.uint8, size, offset=offset)

    def keep(self, names: Set[str]) -> None:
        """Delete other weights."""
        if self._weights is not None:
            self._weights.keep(names)


@dataclass(frozen=True, slots=True)
class BatchStep:
    """Input of a batch step, requests by number."""

    arrivals: Sequence[tuple[int, NDArray, SamplingParams, bool]]  # type: ignore[type-arg]
    dropped: Sequence[int]


@dataclass(frozen=True, slots=True)
class ActorReply:
    """Result of one request."""

    ended: Sequence[tuple[int, Completion | str]]
    """A text is the reason of a failure."""
    streamed: Sequence[tuple[int, int, float]]
    counters: SamplerStats


class SamplerCopy:
    """The embedded engine's batch, in a separate process."""

    def __init__(self, config: RunConfig, version: int) -> None:
        settings = config.engine
        set_threads(settings.num_threads)  # type: ignore[union-attr]
        self._model = load_model(config.model).requires_grad_(False)
        self._batch = ContinuousBatch(
            self._model,
            max_num_seqs=settings.max_num_seqs,  # type: ignore[union-attr]
            cache_tokens=settings.cache_tokens,  # type: ignore[union-attr]
            memory=kv_bytes(settings.kv_cache_gb, memory_of(self._model.device)),  # type: ignore[union-attr]
        )
        self._batch.version = version
        self._requests: dict[int, Request] = {}

    def start(self, folder: Path) -> None:
        """Returns once the model is loaded."""
        check_visible(folder, "cluster.folder")

    def pid(self) -> int:
        return os.getpid()

    def step(self, step: BatchStep) -> ActorReply:
        fresh = {number: Request(prompt.copy(), params, streamed) for number, prompt, params, streamed in step.arrivals}
        self._requests |= fresh
        dropped = [self._requests.pop(number) for number in step.dropped if number in self._requests]
        stepped = self._batch.step(list(fresh.values()), dropped)
        numbers = {id(request): number for number, request in self._requests.items()}
        ended = [
            (numbers[id(request)], str(result) if isinstance(result, SamplerError) else result)
            for request, result in stepped.ended
        ]
        streamed = [(numbers[id(request)], token, logprob) for request, token, logprob in stepped.streamed]
        for number, _ in ended:
            del self._requests[number]
        return ActorReply(ended, streamed, self._batch.counters)

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        return self._batch.score(prompt_ids, ids)

    def reset(self) -> None:
        self._requests.clear()
        self._batch.reset()

    @torch.no_grad()
    def load_weights(self, folder: Path, version: int) -> None:
        """Sample from the weights in `folder`, from the next step on."""
        weights = dict(self._model.named_parameters())
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - no mapping
                    if name in weights:
                        weights.pop(name).copy_(stored.get_tensor(name))
        if weights:
            raise RunError(f"published weights lack {min(weights)}")
        self._batch.publish(version)
