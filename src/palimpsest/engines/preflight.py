"""Checks of a configuration against this machine's GPUs, before a model is loaded or a process is started.

Guaranteed: errors for two processes on one GPU, and for weights and optimizer state that exceed one; warnings for
processes that exceed their GPU with activations and buffers, which planning/cost.py computes from unmeasured constants,
and for idle GPUs. Each names the overrides to type.
Not covered: memory of the embedded sampler's cache and of other programs; GPUs of other machines, which count as equal
to this one's; custom engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palimpsest.config.engine import SHIPPED, model_path
from palimpsest.config.schema import ModelConfig, RunConfig, by_ray, is_served, takes_turns
from palimpsest.engines.embedded import compute
from palimpsest.engines.protocol import Objective
from palimpsest.engines.vllm.server_process import on_cpu
from palimpsest.errors import ConfigError
from palimpsest.models.model_folder import adapters_of, open_model, stored_dtype
from palimpsest.planning.cost import ADAPTER, ROOM, bytes_per_weight, faults, memory_of, with_keys
from palimpsest.planning.hardware import DEVICES, Hardware
from palimpsest.planning.model_shape import ModelShape, shape_of


def with_dtype(config: RunConfig, objective: Objective | None) -> RunConfig:
    """`config` with model.dtype=auto resolved for this machine. Raises ConfigError if the run trains."""
    model = config.model
    if model.dtype != "auto":
        return config
    if objective is not None:
        raise ConfigError("model.dtype=auto works only for sampling: set float32 or bfloat16")
    on_gpu = model.device != "cpu" and bool(compute.memories())
    fast = on_gpu or compute.multiplies_bfloat16()
    dtype = "bfloat16" if fast and stored_dtype(adapters_of(model_path(model))[1]) == "bfloat16" else "float32"
    return config.model_copy(update={"model": ModelConfig.model_validate(model.model_dump() | {"dtype": dtype})})


def check_gpus(config: RunConfig, objective: Objective | None) -> list[str]:
    """See `Use.check`; for engine.name=embedded and ray."""
    gpus = compute.memories()
    if not gpus:
        return []
    folder, _ = open_model(adapters_of(model_path(config.model))[1])
    unplaced = is_served(config, objective) and not config.sampler.devices and not config.sampler.urls
    return Use.of(config, objective, gpus, cpu_servers=unplaced and on_cpu()).check(shape_of(str(folder)))


@dataclass(frozen=True, slots=True)
class Use:
    """GPUs used by a run."""

    config: RunConfig
    objective: Objective | None
    gpus: Mapping[str, int]
    """Bytes of each GPU, by its name."""
    learning: Sequence[str]
    """GPUs of the learner, or of the sampler in a run without one; for Ray, as many as ranks and copies need."""
    serving: Sequence[str]
    """GPUs of the vLLM servers, in order; a name appears twice if two servers use it."""

    @classmethod
    def of(
        cls, config: RunConfig, objective: Objective | None, gpus: Mapping[str, int], *, cpu_servers: bool = False
    ) -> Use:
        """`cpu_servers`: vLLM is its CPU build."""
        settings, names, serving = config.sampler, list(gpus), list[str]()
        if is_served(config, objective) and not settings.urls:
            serving = [str(device) for device in settings.devices]
            if not serving and not cpu_servers:
                serving = names[: settings.tensor_parallel_size] * settings.servers
        if config.engine.name == "ray":
            left = [name for name in names if not settings.devices or name not in serving]
            learning = left[: _of_ray(config, objective, len(left))]
            if serving and by_ray(config, objective):  # the next ones; those of ranks, if no others are left
                first = 0 if takes_turns(config) else len(learning)
                serving = [*names, *names][first : first + len(serving)]
        else:
            device = config.model.device
            number = int(device.partition(":")[2] or 0)
            learning = [] if device == "cpu" else names[number : number + 1]
        return cls(config, objective, gpus, learning, serving)

    def check(self, shape: ModelShape) -> list[str]:
        """Warnings. Raises ConfigError for a GPU that two processes would share, or that the state exceeds."""
        joined = self.config.cluster.address is not None  # Ray assigns the GPUs of all machines
        if not joined:
            self._check_shared()
        return [*self._check_memory(shape), *([] if joined else self._idle())]

    def _check_shared(self) -> None:
        """Raise ConfigError if servers would use a GPU that is already taken: they share one only in turns, or one
        server with a process by an explicit sampler.gpu_memory_utilization."""
        settings, ray = self.config.sampler, self.config.engine.name == "ray"
        twice = [name for name in self.serving if name in self.learning or self.serving.count(name) > 1]
        alone = len(self.serving) == 1 and not ray and "gpu_memory_utilization" in settings.changed()
        if not twice or takes_turns(self.config) or alone:
            return
        other = "the learner has" if twice[0] in self.learning else "another server has"
        message = f"sampler.devices={list(settings.devices)}: a server would take GPU {twice[0]}, which {other}"
        needed = settings.servers * settings.tensor_parallel_size
        left = [name for name in self.gpus if ray or name not in self.learning][-needed:]
        if len(left) == needed and needed + len(self.learning) <= len(self.gpus):
            raise ConfigError(f"{message}; add 'sampler.devices=[{','.join(left)}]'")
        share = "sampler.gpu_memory_utilization=0.4" if needed == 1 else "sampler.servers=1"
        if by_ray(self.config, self.objective):
            share = f"cluster.placement=colocated sampler.servers={len(self.learning) // settings.tensor_parallel_size}"
        fewer = "lower cluster.learners, or " if ray else ""
        raise ConfigError(
            f"{message}, and this machine has {len(self.gpus)}; {fewer}add {share}, or sampler.name=embedded"
        )

    def _check_memory(self, shape: ModelShape) -> list[str]:
        """Warnings about processes that exceed their GPU. Raises ConfigError if the state of the weights alone does."""
        if not (found := self._faults(self.config, shape)):
            return []
        half = self.config.engine.micro_batch_tokens // 2  # type: ignore[union-attr]
        changes = {"model.gradient_checkpointing": True, "engine.micro_batch_tokens": half, ADAPTER: 16}
        ways = [f"--gpus {len(self.gpus)}"] if len(self.gpus) > 1 and self.objective == "policy" else []
        for key, value in (changes if self.objective else {}).items():
            if not self._faults(with_keys(self.config, {key: value}), shape):
                ways.append(f"{key}={str(value).lower()}")
        size = f"{shape.parameters / 1e9:.1f} billion weights"
        fix = " or ".join(ways) or "a smaller model, or more GPUs"
        message = f"model.path={self.config.model.path} ({size}): {'; '.join(found)}; use {fix}"
        if shape.parameters * bytes_per_weight(self.config, self.objective) > self._smallest:
            raise ConfigError(message)
        return [f"memory may run out, as computed from unmeasured constants: {message}"]

    @property
    def _smallest(self) -> int:
        """Bytes of the smallest GPU of the learner."""
        return min((self.gpus[name] for name in self.learning), default=0)

    def _faults(self, config: RunConfig, shape: ModelShape) -> list[str]:
        if not self._smallest:
            return []
        hardware = Hardware(replace(DEVICES["h100"], memory_gb=self._smallest / 1e9), len(self.gpus))
        memory = memory_of(config, shape, hardware, self.objective)
        alone = {"learner": {**memory["learner"], "limit": ROOM * self._smallest / 1e9}}
        return faults(memory if self.serving else alone)

    def _idle(self) -> list[str]:
        """Warnings about idle GPUs and sampling on CPUs; [] for a small model that needs no more."""
        count, messages = len({*self.learning, *self.serving}), list[str]()
        if not self.objective or self.config.model.path in SHIPPED:
            return messages
        if count < len(self.gpus):
            messages.append(f"{len(self.gpus) - count} of {len(self.gpus)} GPUs stay idle")
        copied = self.config.engine.name == "ray" and self.objective == "policy" and not self.serving
        if copied and not is_served(self.config, self.objective) and not self.config.cluster.gpus_per_sampler:
            messages.append("cluster.gpus_per_sampler=0: copies of the sampler compute on CPUs")
        ranks = f"engine.name=ray cluster.learners={len(self.gpus)}"
        way = f"--gpus {len(self.gpus)}" if self.objective == "policy" else ranks
        return [f"{message}; to use all add {way}" for message in messages]


def _of_ray(config: RunConfig, objective: Objective | None, left: int) -> int:
    """GPUs among `left` that ranks and copies of the sampler take."""
    cluster = config.cluster
    ranks = cluster.learners if objective else 0
    copies = 0 if objective == "nll" or is_served(config, objective) else cluster.samplers
    if cluster.shares_fractions:
        return max(ranks, copies)
    return int(ranks * cluster.rank_gpus(left, config.model.device) + copies * cluster.gpus_per_sampler)
