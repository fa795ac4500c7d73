"""Checks of a configuration against this machine's GPUs, before a model is loaded or a process is started.

Guaranteed: errors for two processes on one GPU, and for weights plus optimiser state that exceed a GPU; a warning for
idle GPUs. Each names the overrides to type.
Not covered: memory of activations, caches and other programs; machines of `cluster.address`; custom engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from palimpsest.config.engine import SHIPPED, model_path
from palimpsest.config.schema import ModelConfig, RunConfig, is_served
from palimpsest.engines.embedded import compute
from palimpsest.engines.protocol import Objective
from palimpsest.engines.vllm.server_process import on_cpu
from palimpsest.errors import ConfigError
from palimpsest.models.model_folder import adapters_of, open_model, stored_dtype

_GB = 1e9
_ROOM = 0.85  # share of a GPU that a suggested layout fills with weights and optimiser state


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
    """Warnings about idle GPUs. Raises ConfigError for a GPU that two processes would share or that is too small.

    For engine.name=embedded and ray.
    """
    gpus = compute.memories()
    if not gpus or config.cluster.address is not None:
        return []
    use = Use.of(config, objective, gpus)
    use.check_shared()
    weights = open_model(adapters_of(model_path(config.model))[1])[1]
    use.check_memory(weights)
    return use.idle(weights)


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
    def of(cls, config: RunConfig, objective: Objective | None, gpus: Mapping[str, int]) -> Use:
        settings, names = config.sampler, list(gpus)
        serving: list[str] = []
        if is_served(config, objective) and not settings.urls:
            serving = [str(device) for device in settings.devices]
            if not serving and not on_cpu():
                serving = names[: settings.tensor_parallel_size] * settings.servers
        if config.engine.name == "ray":
            left = [name for name in names if not settings.devices or name not in serving]
            learning = left[: _of_ray(config, objective, len(left))]
        else:
            device = config.model.device
            number = int(device.partition(":")[2] or 0)
            learning = [] if device == "cpu" else names[number : number + 1]
        return cls(config, objective, gpus, learning, serving)

    @property
    def shares(self) -> bool:
        """True if one server shares the learner's GPU by an explicit sampler.gpu_memory_utilization."""
        alone = len(self.serving) == 1 and self.config.engine.name == "embedded"
        return alone and self.serving[0] in self.learning and "gpu_memory_utilization" in self.config.sampler.changed()

    def check_shared(self) -> None:
        """Raise ConfigError if servers would use a GPU that is already taken."""
        settings = self.config.sampler
        twice = [name for name in self.serving if name in self.learning or self.serving.count(name) > 1]
        if not twice or self.shares:
            return
        other = "the learner has" if twice[0] in self.learning else "another server has"
        message = f"sampler.devices={list(settings.devices)}: a server would take GPU {twice[0]}, which {other}"
        needed = settings.servers * settings.tensor_parallel_size
        left = [name for name in self.gpus if self.config.engine.name == "ray" or name not in self.learning]
        if len(left) >= needed and len(left[-needed:]) + len(self.learning) <= len(self.gpus):
            raise ConfigError(f"{message}; add 'sampler.devices=[{','.join(left[-needed:])}]'")
        fewer = "lower cluster.learners, or " if self.config.engine.name == "ray" else ""
        share = "sampler.gpu_memory_utilization=0.4" if needed == 1 and not fewer else "sampler.servers=1"
        raise ConfigError(
            f"{message}, and this machine has {len(self.gpus)}; {fewer}add {share}, or sampler.name=embedded"
        )

    def check_memory(self, weights: int) -> None:
        """Raise ConfigError if weights and optimiser state exceed a GPU's memory."""
        if not self.learning or not (memory := min(self.gpus[name] for name in self.learning)):
            return
        needed = weights * bytes_per_weight(self.config, self.objective)
        if self.shares:
            memory = int(memory * (1 - self.config.sampler.gpu_memory_utilization))
        if needed <= memory:
            return
        what = "weights and the optimiser's state" if self.objective else "weights"
        ways = [self._layout(weights)] if self.objective else []
        if self.objective and self.config.model.lora is None:
            ways.append("model.lora.rank=16 (adapters)")
        fix = " or ".join(filter(None, ways)) or "a smaller model"
        raise ConfigError(
            f"model.path={self.config.model.path}: {what} of {weights / _GB:.1f} billion weights take "
            f"{needed / _GB:.0f} GB, a GPU has {memory / _GB:.0f} GB for them; set {fix}"
        )

    def idle(self, weights: int) -> list[str]:
        """Warnings about idle GPUs and sampling on CPUs; [] for a small model that needs no more."""
        count, messages = len({*self.learning, *self.serving}), list[str]()
        if not self.objective or self.config.model.path in SHIPPED:
            return messages
        if count < len(self.gpus):
            messages.append(f"{len(self.gpus) - count} of {len(self.gpus)} GPUs stay idle")
        copied = self.config.engine.name == "ray" and self.objective == "policy" and not self.serving
        if copied and not is_served(self.config, self.objective) and not self.config.cluster.gpus_per_sampler:
            messages.append("cluster.gpus_per_sampler=0: copies of the sampler compute on CPUs")
        line = self._layout(weights)
        return [f"{message}; to use GPUs add {line}" if line else message for message in messages]

    def _layout(self, weights: int) -> str:
        """Overrides that use all GPUs within their memory; empty: none exist."""
        if len(self.gpus) < 2 or len(set(self.gpus.values())) > 1:
            return ""
        names, memory = list(self.gpus), next(iter(self.gpus.values()))
        servers = 0 if self.objective != "policy" else 2 if len(names) >= 8 else 1
        learners = len(names) - servers
        changed = {"engine": self.config.engine.model_copy(update={"name": "ray"})}
        cluster = self.config.cluster.model_copy(update={"learners": learners})
        ranks = self.config.model_copy(update={**changed, "cluster": cluster})
        if memory and weights * bytes_per_weight(ranks, self.objective) > _ROOM * memory:
            return ""
        line = f"engine.name=ray cluster.learners={learners} cluster.gpus_per_learner=1"
        devices_of = ",".join(names[learners:])
        return line + (
            f" sampler.name=vllm sampler.servers={servers} 'sampler.devices=[{devices_of}]'" if servers else ""
        )


def bytes_per_weight(config: RunConfig, objective: Objective | None) -> float:
    """Bytes per weight on a GPU: the weight, and for trained weights masters, gradients and AdamW moments, at the peak
    of a step without activations (docs/how-to/multi-gpu.md).

    >>> bytes_per_weight(RunConfig(), "policy"), bytes_per_weight(RunConfig(model={"dtype": "bfloat16"}), None)
    (16, 2)
    """
    held = 2 if config.model.dtype == "bfloat16" else 4
    kl = objective == "policy" and config.loss.kl_loss_coef > 0
    if objective is None:
        return held
    if config.engine.name == "ray":
        if config.cluster.cpu_offload:
            return 0
        return (4 if config.model.lora is not None else 20 if kl else 16) / config.cluster.learners
    apart = objective == "policy" and config.train.max_off_policy_steps > 0 and not is_served(config, objective)
    copies = held * (kl and config.model.lora is None) + held * apart
    if config.model.lora is not None:
        return held + copies
    return (18 if held == 2 else 16) + copies


def _of_ray(config: RunConfig, objective: Objective | None, left: int) -> int:
    """GPUs among `left` that ranks and copies of the sampler take."""
    cluster = config.cluster
    ranks = cluster.learners if objective else 0
    copies = 0 if objective == "nll" or is_served(config, objective) else cluster.samplers
    if cluster.placement == "colocated":
        return max(ranks, copies)
    return int(ranks * cluster.rank_gpus(left, config.model.device) + copies * cluster.gpus_per_sampler)
