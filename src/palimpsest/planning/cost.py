"""Seconds and memory of a step, from a configuration, its tokens, a model's shape and devices.

N weights, B of them in layers, E in embeddings, H in the output projection, L layers, q and kv widths, c context, n
ranks, t tokens of a micro-batch, b sequences at once. The learner's units of a forward pass: 3 for loss and gradient (2
with adapters), 1 for checkpointing; for log-probabilities 1 if several optimizer steps recompute them, 1 for a KL
reference.

    operations per token  2 B + 2 L q c (causal mean), and 2 H where it is trained or sampled
    learner               operations * units / (n * peak * 0.38), for the rank with most micro-batches
    prefill               operations / (servers * peak * 0.5)
    decode                steps * (2 N + b c k) / (bandwidth * 0.5),  k = 4 L kv bytes
    publication           2 N / 2 GB/s + 2 s, to samplers in other processes
    a rank's memory       (16 N + 4 N for a KL reference) / n + 2 (E + B/L) + 4 B/L + activations + 2.5 GB
    activations           2 t (L d + inside) with checkpointing, 2 t (L + 1) inside without;
                          inside = 4 d + 3 inner + 3 q + 2 kv
    a server in turns     memory - (12 N + 4 N for a KL reference) / n - 8 GB

Compared with published runs in tests/planning/test_cost.py; nothing here was measured on a GPU.
Not covered: evaluations, checkpoints, tools, judges, stragglers, the start of processes, and networks too slow to hide
the ranks' transfers behind their products (8 N bytes per micro-batch into each machine).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palimpsest.config.engine import AdapterConfig
from palimpsest.config.schema import RunConfig, is_served, takes_turns
from palimpsest.engines.protocol import Objective
from palimpsest.planning.hardware import Hardware
from palimpsest.planning.model_shape import ModelShape

if TYPE_CHECKING:
    from palimpsest.planning.workload import Workload

LEARNING, PREFILL, DECODE = 0.38, 0.5, 0.5
"""Reached shares of peak operations and bandwidth. torchtitan reports 0.39 for 32B on 8 H100s, CPU cores reached 0.3 to
0.42 in the quickstarts; the last two are assumptions."""
TENSOR_PARALLEL = 0.85  # speed kept by each doubling of a server's GPUs, which wait for each other twice per layer
FILES, SWITCH_S = 2e9, 2.0
"""Bytes per second to write and read files of weights; seconds to stop and continue a server."""
TOKEN_S = 2.5e-4  # a CPU's sampler per token, besides products: 1.6e-4 in rememr1-quickstart, 4.6e-4 in memact's
EAGER_S = 0.03  # a GPU's embedded sampler per step: a thousand kernel launches
STEP_S, RANK_S = 0.01, 0.1
"""Calls per optimizer step of one process, and of ranks, which wait for each other, on CPU cores."""
ROOM = 0.95  # share of a GPU that may fill; the rest is fragmentation
OTHER_GB, SERVER_GB = 2.5, 3.0
"""Contexts, kernels and buffers of a learner; of a server, with its activations."""
RESTING_GB, ASLEEP_GB = 5.0, 3.0
"""Of a rank that waits for servers, with one gathered weight; of a server that sleeps. Assumptions."""

ADAPTER = "model.lora.rank"
Keys = Mapping[str, Any]
"""Configuration keys and their values."""
Memory = Mapping[str, Mapping[str, float]]
"""GB of a learner's process and of a server by phase, at its peak, and the limit."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of a step."""

    workload: Workload
    seconds: Mapping[str, float]
    """By phase: sampling, logprobs, learning, publication."""
    overlaps: bool
    """Sampling and learning run at the same time."""
    memory_gb: Memory

    @property
    def step_s(self) -> float:
        sampling, logprobs, learning, publication = self.seconds.values()
        learner = logprobs + learning
        return (max(sampling, learner) if self.overlaps else sampling + learner) + publication

    @property
    def dominated_by(self) -> str:
        """The phase that most of a step waits for."""
        learner = self.seconds["logprobs"] + self.seconds["learning"]
        if self.overlaps and self.seconds["sampling"] > learner:
            return "sampling"
        phases = {name: seconds for name, seconds in self.seconds.items() if name != "sampling" or not self.overlaps}
        return max(phases, key=lambda name: phases[name])


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of a configuration on devices."""

    ranks: int
    samplers: int
    parallel: int
    """GPUs of a sampler."""
    alone: bool
    """The learner's process samples too."""
    shared: bool
    """Samplers are other processes on the learner's devices."""
    share: float
    """Devices of a rank: 1; on a CPU its threads, or its part of the cores."""

    @classmethod
    def of(cls, config: RunConfig, objective: Objective | None, hardware: Hardware) -> Processes:
        served, cluster, settings = is_served(config, objective), config.cluster, config.sampler
        ray = config.engine.name == "ray"
        ranks, copies = (cluster.learners, cluster.samplers) if ray else (1, 0)
        samplers = (len(settings.urls) or settings.servers) if served else copies or 1
        shared = cluster.placement == "colocated" or (served and not ray and not settings.devices and not settings.urls)
        threads = getattr(config.engine, "num_threads", 1)
        share = min(threads, hardware.total / (ranks + copies)) if hardware.device.is_cpu else 1.0
        return cls(ranks, samplers, settings.tensor_parallel_size, not served and not ray, shared, share)

    @property
    def devices(self) -> int:
        """GPUs in use."""
        return self.ranks + (0 if self.alone or self.shared else self.samplers * self.parallel)


def estimate(config: RunConfig, shape: ModelShape, load: Workload, hardware: Hardware) -> Estimate:
    """Cost of a training step of `config`."""
    processes = Processes.of(config, "policy", hardware)
    logprobs, learning = _learner_s(config, shape, load, hardware, processes)
    switch = SWITCH_S * (1 + takes_turns(config)) if is_served(config, "policy") else RANK_S
    seconds = {
        "sampling": _sampling_s(config, shape, load, hardware, processes),
        "logprobs": logprobs,
        "learning": learning,
        "publication": 0.0 if processes.alone else 2 * shape.parameters / FILES + switch,
    }
    overlaps = config.train.max_off_policy_steps > 0 and not processes.alone and not processes.shared
    return Estimate(load, seconds, overlaps, memory_of(config, shape, hardware, "policy", load))


def _token(shape: ModelShape, context: float) -> float:
    """Operations of a forward pass per token, without the output projection."""
    return 2 * (shape.parameters - shape.embeddings) + 2 * shape.layers * shape.query * context


def _sampling_s(config: RunConfig, shape: ModelShape, load: Workload, hardware: Hardware, at: Processes) -> float:
    """Prompts, then replies, of all samplers."""
    device, served = hardware.device, is_served(config, "policy")
    width = at.share * at.parallel * math.pow(TENSOR_PARALLEL, math.log2(at.parallel))
    peak, bandwidth = device.tflops * 1e12 * width * PREFILL, device.bandwidth_tb * 1e12 * width * DECODE
    sequence = load.context * 1.2 * shape.kv_bytes  # long sequences stay longest
    most: float = getattr(config.engine, "max_num_seqs", config.sampler.max_in_flight)
    if served:
        taken = server_share(config, shape.parameters, device.memory_gb) * device.memory_gb * 1e9 * at.parallel
        most = min(config.sampler.max_in_flight, (taken - 2 * shape.parameters) / sequence)
    batch = max(1.0, min(most, load.episodes / at.samplers))
    products = batch * (_token(shape, load.context) + 2 * shape.head) / peak
    step = max(products, (2 * shape.parameters + batch * sequence) / bandwidth)
    step += 0.0 if served else batch * TOKEN_S if device.is_cpu else EAGER_S
    prefill = load.computed_prompt * _token(shape, load.context) / peak
    return (prefill + load.sampled / batch * step) / at.samplers


def _learner_s(
    config: RunConfig, shape: ModelShape, load: Workload, hardware: Hardware, at: Processes
) -> tuple[float, float]:
    """Seconds for log-probabilities of the old policy and the reference, and for loss and gradient."""
    steps, loss = config.train.num_minibatches, config.loss
    groups = at.ranks / config.cluster.tensor_parallel_size  # ranks that share a forest
    forests = load.distinct / config.engine.micro_batch_tokens / steps  # type: ignore[union-attr]
    forests = max(forests, min(groups, load.rows / steps))  # smaller ones, if ranks outnumber them
    passes = math.ceil(forests / groups) if at.ranks > 1 else forests  # as many as the busiest rank's
    operations = load.distinct * _token(shape, load.logical / load.rows / 2) + load.trained * 2 * shape.head
    speed = at.ranks * at.share * hardware.device.tflops * 1e12 * LEARNING
    unit = operations / speed * passes * groups / forests
    units = (3 if config.model.lora is None else 2) + config.model.gradient_checkpointing
    extra = (loss.old_logprobs == "recompute" and steps > 1) + (loss.kl_loss_coef > 0)
    overhead = steps * (RANK_S if at.ranks > 1 else STEP_S)
    return extra * unit, units * unit + overhead


# ---- Memory ------------------------------------------------------------------------------------------------------


def bytes_per_weight(config: RunConfig, objective: Objective | None) -> float:
    """Bytes per weight of the learner's process: the weight, and for trained weights masters, gradients, AdamW moments
    and the KL reference, at the peak of a step.

    >>> bytes_per_weight(RunConfig(), "policy"), bytes_per_weight(RunConfig(model={"dtype": "bfloat16"}), None)
    (16, 2)
    """
    held, adapted = 2 if config.model.dtype == "bfloat16" else 4, config.model.lora is not None
    kl = objective == "policy" and config.loss.kl_loss_coef > 0
    if objective is None:
        return held
    if config.engine.name == "ray":
        return 0 if config.cluster.cpu_offload else (4 if adapted else 20 if kl else 16) / config.cluster.learners
    apart = objective == "policy" and config.train.max_off_policy_steps > 0 and not is_served(config, objective)
    copies = held * (kl and not adapted) + held * apart
    return held + copies if adapted else (18 if held == 2 else 16) + copies


def memory_of(
    config: RunConfig, shape: ModelShape, hardware: Hardware, objective: Objective | None, load: Workload | None = None
) -> Memory:
    """Memory of the processes; without `load`, without keys and values."""
    at, gb, cpu = Processes.of(config, objective, hardware), hardware.device.memory_gb, hardware.device.is_cpu
    state = shape.parameters * bytes_per_weight(config, objective) / 1e9 + (0.0 if cpu else OTHER_GB)
    cache = shape.kv_bytes * load.context / 1e9 if load else 0.0  # of a sequence
    learner = {"sampling": state, "publication": state, "limit": gb if cpu else ROOM * gb}
    if objective is not None:
        learner["learning"] = state + _step_gb(config, shape)
    if not at.alone:
        learner["publication"] += 4 * shape.head / 1e9  # one tensor at a time, in float32
    elif load is not None:
        engine = config.engine
        kept = cache * min(engine.max_num_seqs, load.episodes) + shape.kv_bytes * engine.cache_tokens / 1e9  # type: ignore[union-attr]
        learner["sampling"] += min(kept, engine.kv_cache_gb or gb / 4)  # type: ignore[union-attr]
    if cpu or not is_served(config, objective) or config.sampler.urls:
        return {"learner": learner}
    limit = server_share(config, shape.parameters, gb) * gb
    learner["limit"] -= ASLEEP_GB if takes_turns(config) else limit if at.shared else 0.0
    server = (2 * shape.parameters / 1e9 + 1.5 * cache) / at.parallel + SERVER_GB
    return {"learner": learner, "server": {"sampling": server, "limit": limit}}


def server_share(config: RunConfig, parameters: int, gb: float) -> float:
    """Share of a GPU of `gb` GB that a server takes; in turns, unless set, what a resting rank leaves.

    >>> shared = {"learners": 8, "placement": "colocated"}
    >>> turns = RunConfig(engine={"name": "ray"}, cluster=shared, sampler={"name": "vllm", "servers": 8})
    >>> server_share(turns, 7_600_000_000, 80)  # 1 - (11.4 + 5 + 3) / 80
    0.75
    """
    cluster, settings = config.cluster, config.sampler
    if not takes_turns(config) or "gpu_memory_utilization" in settings.changed():
        return settings.gpu_memory_utilization
    kept = 4 if config.model.lora is not None else 16 if config.loss.kl_loss_coef > 0 else 12
    rank = 0.0 if cluster.cpu_offload else kept * parameters / cluster.learners / 1e9
    return max(0.01, math.floor(100 - 100 * (rank + RESTING_GB + ASLEEP_GB) / gb) / 100)


def _step_gb(config: RunConfig, shape: ModelShape) -> float:
    """Activations of one micro-batch, and the layers that a rank gathers."""
    inside, ray = 4 * shape.width + 3 * shape.inner + 3 * shape.query + 2 * shape.kv, config.engine.name == "ray"
    layers = shape.layers * (shape.width if config.model.gradient_checkpointing else inside)
    number = 2 if ray or config.model.dtype == "bfloat16" else 4
    activations = number * config.engine.micro_batch_tokens * (layers + inside)  # type: ignore[union-attr]
    gathered = 2 * (shape.embeddings + shape.layer) + 4 * shape.layer if ray else 0
    return (activations + gathered) / 1e9 / config.cluster.tensor_parallel_size


def excess(memory: Memory) -> float:
    """GB by which a process exceeds its limit; at most 0 if all fit."""
    return max(max(gb - phases["limit"] for gb in phases.values()) for phases in memory.values())


def faults(memory: Memory) -> list[str]:
    """Processes that exceed their limit.

    >>> faults({"learner": {"sampling": 20, "learning": 90, "limit": 76}, "server": {"sampling": 20, "limit": 68}})
    ['learning takes 90 GB in the learner, its limit is 76 GB']
    """
    return [
        f"{phase} takes {gb:.0f} GB in the {process}, its limit is {phases['limit']:.0f} GB"
        for process, phases in memory.items()
        for phase, gb in phases.items()
        if gb > phases["limit"] and gb == max(phases.values())
    ]


# ---- Changed configurations --------------------------------------------------------------------------------------


def with_keys(config: RunConfig, keys: Keys) -> RunConfig:
    """`config` with changed values, unchecked: for estimates only."""
    for key, value in keys.items():
        config = _set(config, key.split("."), value)
    return config


def _set(node: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    node = AdapterConfig() if node is None else node  # the only optional section of these keys
    if isinstance(node, dict):
        return {**node, name: _set(node.get(name), rest, value) if rest else value}
    value = tuple(value) if isinstance(value, list) else value
    return node.model_copy(update={name: _set(getattr(node, name), rest, value) if rest else value})
