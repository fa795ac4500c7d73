"""Checks of a configuration against this machine's GPUs, before a model is loaded or a process is started.

Guaranteed: errors for two processes on one GPU, and for weights and optimizer state that exceed one; warnings for
memory that unmeasured formulas (planning/cost.py) predict to run out, and for idle GPUs. Each names overrides to type.
Not covered: memory of the embedded sampler's cache and of other programs; GPUs of other machines, which count as equal
to this one's; custom engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palimpsest.config.engine import SHIPPED, model_path
from palimpsest.config.keys import with_keys
from palimpsest.config.schema import RunConfig, by_ray, is_served, takes_turns
from palimpsest.engines.embedded import compute
from palimpsest.engines.protocol import Objective
from palimpsest.engines.vllm.server_process import on_cpu
from palimpsest.errors import ConfigError
from palimpsest.models.model_folder import adapters_of, open_model
from palimpsest.planning.cost import ADAPTER, ROOM, bytes_per_weight, faults, memory_of
from palimpsest.planning.hardware import DEVICES, Hardware
from palimpsest.planning.model_shape import ModelShape, shape_of


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
    """GPUs of a learner (or of a run without one its sampler; for Ray, as many as ranks and copies need) and of vLLM
    servers, in order and twice if two servers use one; `gpus`: bytes of each GPU of this machine."""

    config: RunConfig
    objective: Objective | None
    gpus: Mapping[str, int]
    learning: Sequence[str]
    serving: Sequence[str]

    @classmethod
    def of(
        cls, config: RunConfig, objective: Objective | None, gpus: Mapping[str, int], *, cpu_servers: bool = False
    ) -> Use:
        """`cpu_servers`: vLLM is its CPU build."""
        settings, cluster, names, serving = config.sampler, config.cluster, list(gpus), list[str]()
        if is_served(config, objective) and not settings.urls:
            unplaced = [] if cpu_servers else names[: settings.tensor_parallel_size] * settings.servers
            serving = [str(device) for device in settings.devices] or unplaced
        if config.engine.name != "ray":
            number = int(config.model.device.partition(":")[2] or 0)
            learning = [] if config.model.device == "cpu" else names[number : number + 1]
            return cls(config, objective, gpus, learning, serving)
        left = [name for name in names if not settings.devices or name not in serving]
        ranks = cluster.learners if objective else 0
        copies = 0 if objective == "nll" or is_served(config, objective) else cluster.samplers
        taken = ranks * cluster.rank_gpus(len(left), config.model.device) + copies * cluster.gpus_per_sampler
        learning = left[: max(ranks, copies) if cluster.shares_fractions else int(taken)]
        if serving and by_ray(config, objective):  # the next ones; those of ranks, if no others are left
            first = 0 if takes_turns(config) else len(learning)
            serving = [*names, *names][first : first + len(serving)]
        return cls(config, objective, gpus, learning, serving)

    def check(self, shape: ModelShape) -> list[str]:
        """Warnings. Raises ConfigError for a GPU that two processes would share, or that weights and state exceed."""
        joined = self.config.cluster.address is not None  # Ray assigns the GPUs of all machines
        if not joined:
            self._check_shared()
        return [*self._check_memory(shape), *([] if joined else self._idle())]

    def _check_shared(self) -> None:
        """Only servers in turns share GPUs, and one server with one process by an explicit gpu_memory_utilization."""
        settings, ray = self.config.sampler, self.config.engine.name == "ray"
        twice = [name for name in self.serving if name in self.learning or self.serving.count(name) > 1]
        alone = len(self.serving) == 1 and not ray and "gpu_memory_utilization" in settings.changed()
        if not twice or takes_turns(self.config) or alone:
            return
        needed = settings.servers * settings.tensor_parallel_size
        left = [name for name in self.gpus if ray or name not in self.learning][-needed:]
        fix = f"this machine has {len(self.gpus)}: add --gpus {len(self.gpus)}, or sampler.name=embedded"
        if len(left) == needed and needed + len(self.learning) <= len(self.gpus):
            fix = f"add 'sampler.devices=[{','.join(left)}]'"
        other = "the learner" if twice[0] in self.learning else "another server"
        given = f"sampler.devices={list(settings.devices)}"
        raise ConfigError(f"{given}: a server would take GPU {twice[0]}, which {other} has; {fix}")

    def _check_memory(self, shape: ModelShape) -> list[str]:
        if not (smallest := min((self.gpus[name] for name in self.learning), default=0)):  # 0: unknown
            return []
        hardware = Hardware(replace(DEVICES["h100"], memory_gb=smallest / 1e9), len(self.gpus))

        def found(**keys: object) -> list[str]:
            memory = memory_of(with_keys(self.config, keys), shape, hardware, self.objective)
            alone = {"learner": {**memory["learner"], "limit": ROOM * smallest / 1e9}}
            return faults(memory if self.serving else alone)

        if not (exceeding := found()):
            return []
        half = self.config.engine.micro_batch_tokens // 2  # type: ignore[union-attr]
        changes = {"model.gradient_checkpointing": True, "engine.micro_batch_tokens": half, ADAPTER: 16}
        ways = [f"--gpus {len(self.gpus)}"] if len(self.gpus) > 1 and self.objective == "policy" else []
        if self.objective:
            ways += [f"{key}={str(value).lower()}" for key, value in changes.items() if not found(**{key: value})]
        fix = " or ".join(ways) or "a smaller model, or more GPUs"
        size = f"{shape.parameters / 1e9:.1f} billion weights"
        message = f"model.path={self.config.model.path} ({size}): {'; '.join(exceeding)}; use {fix}"
        if shape.parameters * bytes_per_weight(self.config, self.objective) > smallest:
            raise ConfigError(message)
        return [f"memory may run out, by formulas that were not measured: {message}"]

    def _idle(self) -> list[str]:
        """Warnings about idle GPUs and sampling on CPUs; [] for a small model that needs no more."""
        config, count, messages = self.config, len(self.gpus), list[str]()
        if not self.objective or config.model.path in SHIPPED:
            return messages
        if idle := count - len({*self.learning, *self.serving}):
            messages.append(f"{idle} of {count} GPUs stay idle")
        copied = config.engine.name == "ray" and self.objective == "policy" and not is_served(config, self.objective)
        if copied and not config.cluster.gpus_per_sampler:
            messages.append("cluster.gpus_per_sampler=0: copies of the sampler compute on CPUs")
        way = f"--gpus {count}" if self.objective == "policy" else f"engine.name=ray cluster.learners={count}"
        return [f"{message}; to use all add {way}" for message in messages]
