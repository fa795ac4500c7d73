"""Seconds and memory of a step, from a configuration, its tokens, a model's shape and devices.

    operations   2 per active weight, 4 q per layer and attended token: half of a row or prompt, all of a sampled
                 token's context; 2 per weight of the output projection where a token is trained or sampled
    passes       3 for loss and gradient (2 with adapters), 1 for checkpointing (1/2 of every second layer), 1 for
                 log-probabilities that several optimizer steps recompute, 1 for a KL reference

Compared with published runs in tests/planning/test_cost.py; nothing here was measured on a GPU.
Not covered: evaluations, checkpoints, tools, judges, stragglers, the start of processes, and networks too slow to hide
the ranks' transfers behind their products (8 N bytes per micro-batch into each machine).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palimpsest.config.schema import RunConfig, by_ray, is_served, takes_turns
from palimpsest.engines.protocol import Objective, kv_bytes, kv_rows
from palimpsest.planning.hardware import Hardware
from palimpsest.planning.model_shape import ModelShape

if TYPE_CHECKING:
    from palimpsest.planning.workload import Workload

LEARNING, PREFILL, DECODE = 0.38, 0.5, 0.5
"""Reached shares of peak operations and bandwidth. torchtitan reports 0.39 for 32B on 8 H100s, CPU cores reached 0.3 to
0.42 in the quickstarts; the last two are assumptions."""
TENSOR_PARALLEL = 0.85  # speed kept by each doubling of a server's GPUs, which wait for each other twice per layer
FILES, COPY, NETWORK, SWITCH_S = 1.5e9, 0.7e9, 12.5e9, 2.0
"""Bytes per second to write and read files of weights, to pass them on through Ray (1.2 to 1.5 CPU seconds per GB for
the slowest stage in benchmarks/publication.py) and over a network; seconds to stop and continue a server."""
TOKEN_S = 2.5e-4  # a CPU's sampler per token, besides products: 1.6e-4 in rememr1-quickstart, 4.6e-4 in memact's
EAGER_S = 0.03  # a step of a GPU's embedded sampler, or of a class's own forward: a thousand kernels or products
STEP_S, RANK_S = 0.01, 0.1
"""Calls per optimizer step of one process, and of ranks, which wait for each other, on CPU cores."""
LONGEST = 1.2  # of the mean sequence: long ones stay longest
ROOM = 0.95  # share of a GPU that may fill; the rest is fragmentation
OTHER_GB, SERVER_GB = 2.5, 3.0
"""Contexts, kernels and buffers of a learner; of a server, with its activations."""
RESTING_GB, ASLEEP_GB = 5.0, 3.0
"""Of a rank that waits for servers, with one gathered weight; of a server that sleeps. Assumptions."""
RECOMPUTED: Mapping[bool | str, float] = {False: 0.0, "every_second": 0.5, True: 1.0}  # share of the layers

ADAPTER = "model.lora.rank"
Keys = Mapping[str, Any]
"""Configuration keys and their values."""
Memory = Mapping[str, Mapping[str, float]]
"""GB of a learner's process and of a server by phase, at its peak, and the limit."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost of a step; `overlaps`: sampling and learning run at the same time."""

    workload: Workload
    seconds: Mapping[str, float]
    """By phase: sampling, logprobs, learning, publication."""
    overlaps: bool
    memory_gb: Memory

    @property
    def waited(self) -> Mapping[str, float]:
        """Seconds by phase, without those that overlap with longer ones."""
        learner = self.seconds["logprobs"] + self.seconds["learning"]
        shorter = {"logprobs", "learning"} if self.seconds["sampling"] > learner else {"sampling"}
        return {name: s for name, s in self.seconds.items() if not self.overlaps or name not in shorter}

    @property
    def step_s(self) -> float:
        return sum(self.waited.values())

    @property
    def dominated_by(self) -> str:
        return max(self.waited, key=self.waited.__getitem__)


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of a configuration on devices. `alone`: the learner's process samples too; `shared`: samplers are other
    processes on the learner's devices; `share`: devices of a rank, on a CPU its threads or its part of the cores."""

    ranks: int
    samplers: int
    parallel: int
    """GPUs of a sampler."""
    alone: bool
    shared: bool
    share: float

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
        return self.ranks + (0 if self.alone or self.shared else self.samplers * self.parallel)


# ---- Seconds -----------------------------------------------------------------------------------------------------


def estimate(config: RunConfig, shape: ModelShape, load: Workload, hardware: Hardware) -> Estimate:
    at = Processes.of(config, "policy", hardware)
    logprobs, learning = _learner_s(config, shape, load, hardware, at)
    seconds = {
        "sampling": _sampling_s(config, shape, load, hardware, at),
        "logprobs": logprobs,
        "learning": learning,
        "publication": 0.0 if at.alone else _publication_s(config, shape, hardware),
    }
    overlaps = config.train.max_off_policy_steps > 0 and not at.alone and not at.shared
    return Estimate(load, seconds, overlaps, memory_of(config, shape, hardware, "policy", load))


def operations(shape: ModelShape, attended: float) -> float:
    """Operations of a forward pass per token that attends to `attended` tokens, without the output projection."""
    return 2 * shape.body + 4 * shape.attending * shape.query * attended


def _sampling_s(config: RunConfig, shape: ModelShape, load: Workload, hardware: Hardware, at: Processes) -> float:
    device, served, number = hardware.device, is_served(config, "policy"), number_bytes(config)
    engine: Any = config.engine
    weights = number * shape.parameters
    width = at.share * at.parallel * math.pow(TENSOR_PARALLEL, math.log2(at.parallel))
    peak, bandwidth = device.tflops * 1e12 * width * PREFILL, device.bandwidth_tb * 1e12 * width * DECODE
    sequence = max(1.0, shape.held(load.context * LONGEST, number))
    if served:
        taken = server_share(config, shape.parameters, device.memory_gb) * device.memory_gb - SERVER_GB
        most = min(config.sampler.max_in_flight, (taken * 1e9 * at.parallel - weights) / sequence)
    else:
        pool = kv_bytes(engine.kv_cache_gb, device.memory_gb * 1e9)
        most = 1 if shape.state else min(engine.max_num_seqs, kv_rows(pool, sequence))
    batch = max(1.0, min(most, load.episodes / at.samplers))
    repeats = 1.0 if served or device.is_cpu else 1 + 2 * shape.query / max(1, shape.kv)
    products = batch * (operations(shape, load.context) + 2 * shape.head) / peak
    step = max(products, (weights + batch * sequence * repeats) / bandwidth)
    step += 0.0 if served else batch * TOKEN_S if device.is_cpu and not shape.state else EAGER_S
    prefill = load.computed_prompt * operations(shape, load.context / 2) / peak
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
    forward = load.distinct * operations(shape, load.logical / load.rows / 2) + load.trained * 2 * shape.head
    speed = at.ranks * at.share * hardware.device.tflops * 1e12 * LEARNING
    unit = forward / speed * passes * groups / forests
    units = (3 if config.model.lora is None else 2) + RECOMPUTED[config.model.gradient_checkpointing]
    extra = (loss.old_logprobs == "recompute" and steps > 1) + (loss.kl_loss_coef > 0)
    return extra * unit, units * unit + steps * (RANK_S if at.ranks > 1 else STEP_S)


def _publication_s(config: RunConfig, shape: ModelShape, hardware: Hardware) -> float:
    size, others = number_bytes(config) * shape.parameters, hardware.machines - 1 if by_ray(config, "policy") else 0
    switch = SWITCH_S * (1 + takes_turns(config)) if is_served(config, "policy") else RANK_S
    waves = others.bit_length()  # of machines that get them; rank 0's sends about one copy per wave
    return size / FILES + (size / COPY if others else 0.0) + waves * size / NETWORK + switch


# ---- Memory ------------------------------------------------------------------------------------------------------


def number_bytes(config: RunConfig) -> int:
    """Bytes per number of weights, activations, keys and values."""
    return 2 if config.model.dtype == "bfloat16" else 4


def bytes_per_weight(config: RunConfig, objective: Objective | None) -> float:
    """Bytes per weight of the learner's process, or without one of a sampler's GPU: the weight, and for trained weights
    masters, gradients, AdamW moments and the KL reference, at the peak of a step.

    >>> bytes_per_weight(RunConfig(), "policy"), bytes_per_weight(RunConfig(model={"dtype": "bfloat16"}), None)
    (16, 2.0)
    """
    held, adapted = number_bytes(config), config.model.lora is not None
    kl = objective == "policy" and config.loss.kl_loss_coef > 0
    if objective is None:
        return held / (config.sampler.tensor_parallel_size if is_served(config, None) else 1)
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
    number = number_bytes(config)
    cache = shape.held(load.context, number) / 1e9 if load else 0.0  # of a sequence
    learner = {"sampling": state, "publication": state, "limit": gb if cpu else ROOM * gb}
    if objective is not None:
        learner["learning"] = state + _step_gb(config, shape)
    if not at.alone:
        learner["publication"] += 4 * shape.head / 1e9  # one tensor at a time, in float32
    elif load is not None:
        engine: Any = config.engine
        kept = cache * min(engine.max_num_seqs, load.episodes) + shape.held(engine.cache_tokens, number) / 1e9
        learner["sampling"] += min(kept, kv_bytes(engine.kv_cache_gb, gb * 1e9) / 1e9)
    if cpu or not is_served(config, objective) or config.sampler.urls:
        return {"learner": learner}
    limit = server_share(config, shape.parameters, gb) * gb
    learner["limit"] -= ASLEEP_GB if takes_turns(config) else limit if at.shared else 0.0
    server = {"sampling": (number * shape.parameters / 1e9 + 1.5 * cache) / at.parallel + SERVER_GB, "limit": limit}
    return {"server": server} if objective is None else {"learner": learner, "server": server}


def server_share(config: RunConfig, parameters: int, gb: float) -> float:
    """Share of a GPU of `gb` GB that a server takes; in turns, unless set, what a resting rank leaves.

    >>> shared = {"learners": 8, "placement": "colocated"}
    >>> turns = RunConfig(engine={"name": "ray"}, cluster=shared, sampler={"name": "vllm", "servers": 8})
    >>> server_share(turns, 7_600_000_000, 80)  # 1 - (11.4 + 5 + 3) / 80
    0.75
    """
    settings = config.sampler
    if not takes_turns(config) or "gpu_memory_utilization" in settings.changed():
        return settings.gpu_memory_utilization
    gradient = 0 if config.model.lora is not None else 4 / config.cluster.learners
    rank = max(0.0, bytes_per_weight(config, "policy") - gradient) * parameters / 1e9
    return max(0.01, math.floor(100 - 100 * (rank + RESTING_GB + ASLEEP_GB) / gb) / 100)


def _step_gb(config: RunConfig, shape: ModelShape) -> float:
    """Activations of one micro-batch, and the layers that a rank gathers."""
    inside, ray = 4 * shape.width + 3 * shape.inner + 3 * shape.query + 2 * shape.kv, config.engine.name == "ray"
    share = RECOMPUTED[config.model.gradient_checkpointing]
    layers = shape.layers * (share * shape.width + (1 - share) * inside)
    activations = number_bytes(config) * config.engine.micro_batch_tokens * (layers + inside)  # type: ignore[union-attr]
    gathered = 2 * (shape.embeddings + shape.layer) + 4 * shape.layer if ray else 0
    return (activations + gathered) / 1e9 / config.cluster.tensor_parallel_size


def excess(memory: Memory) -> float:
    """GB by which a process exceeds its limit; at most 0 if all fit."""
    return max(max(phases.values()) - phases["limit"] for phases in memory.values())


def faults(memory: Memory) -> list[str]:
    """Processes that exceed their limit, each with its largest phase.

    >>> faults({"learner": {"sampling": 20, "learning": 90, "limit": 76}, "server": {"sampling": 20, "limit": 68}})
    ['learning takes 90 GB in the learner, its limit is 76 GB']
    """
    peaks = ((process, phases, max(phases, key=phases.__getitem__)) for process, phases in memory.items())
    return [
        f"{phase} takes {phases[phase]:.0f} GB in the {process}, its limit is {phases['limit']:.0f} GB"
        for process, phases, phase in peaks
        if phases[phase] > phases["limit"]
    ]
