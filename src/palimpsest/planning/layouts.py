"""Chooses where learner and samplers run: the fastest layout that fits, around the user's own keys.

A layout is a mapping of configuration keys. It is valid if it contradicts no key of the user's, every process fits its
memory (planning/cost.py), and the configuration accepts it. To add one, add it to `_candidates`.

Guaranteed: every GPU of a plan has work; ranks and servers on different GPUs have whole machines where there are
several; a key of the user's never changes; a recipe that trains all weights never becomes one of adapters; the same
input gives the same plan.
Not covered: `sampler.urls`; memory of machines with cpu_offload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.config.engine import MOST_SERVERS, top_p_gap
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import with_keys
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import policy_class
from palimpsest.planning.cost import ADAPTER, Estimate, Keys, estimate, excess
from palimpsest.planning.hardware import Hardware
from palimpsest.planning.model_shape import ModelShape
from palimpsest.planning.workload import ProblemSizes, workload
from palimpsest.plugin_options import options_of

LEAST_TOKENS = 2048  # of a smaller micro-batch
_TRIES = 8  # layouts that the configuration may reject before its error is raised
REASONS = {
    "engine.name": "ray runs learner and servers as processes, and divides state among several ranks",
    "engine.name=embedded": "one process learns, and samples or takes turns with a server",
    "cluster.learners": "ranks; with these, sampling and learning together take least time",
    "cluster.placement": "servers sleep while the learner learns on the same GPUs",
    "cluster.gpus_per_learner": "without GPUs the run stops, instead of computing on CPUs",
    "sampler.name": "vllm decodes many sequences at once",
    "sampler.name=embedded": "a server doesn't fit next to the learner, or takes longer",
    "sampler.servers": "vLLM servers",
    "sampler.devices": "GPUs of the servers",
    "sampler.tensor_parallel_size": "GPUs per server",
    "train.max_off_policy_steps": "the servers sample the next batch while the ranks learn",
    "loss.importance_sampling_cap": "weighs tokens that older weights sampled",
    "engine.micro_batch_tokens": "the activations of larger micro-batches don't fit",
    "model.gradient_checkpointing": "stored activations don't fit",
    "model.dtype": "half the memory of float32, and faster",
    "policy.options.layout": "rollouts of a group share every section; the recipe sets no layout",
}


@dataclass(frozen=True, slots=True)
class LayoutTask:
    """Input of the search for a layout. `given`: the user's own keys; `recipe`: the recipe without them."""

    config: RunConfig
    given: Keys
    recipe: RunConfig
    shape: ModelShape
    sizes: ProblemSizes
    hardware: Hardware

    def estimate(self, keys: Keys) -> Estimate:
        config = with_keys(self.config, keys)
        return estimate(config, self.shape, workload(config, self.sizes, self.shape), self.hardware)

    def changing(self, keys: Keys) -> dict[str, Any]:
        """`keys` without the user's and those that are the recipe's."""
        own = {key: keys[key] for key in REASONS if key in keys and key not in self.given}
        return {key: value for key, value in own.items() if with_keys(self.recipe, {key: value}) != self.recipe}

    def agrees(self, keys: Keys) -> bool:
        """True if no key has another value among the user's."""
        return all(self.given.get(key, value) == value for key, value in keys.items())


# ---- Layouts -----------------------------------------------------------------------------------------------------


def layouts(job: LayoutTask) -> list[Keys]:
    """Layouts that give work to all GPUs and agree with the user's keys."""
    return [keys for keys in _candidates(job) if keys.get("sampler.servers", 1) <= MOST_SERVERS and job.agrees(keys)]


def _candidates(job: LayoutTask) -> Iterator[Keys]:
    total, count, vllm = job.hardware.total, job.hardware.count, {"sampler.name": "vllm"}
    ranks: dict[str, Any] = {"engine.name": "ray", "cluster.gpus_per_learner": 1, **vllm}
    turns = {"cluster.placement": "colocated", "train.max_off_policy_steps": 0}
    if total == 1:  # one process, or one in turns with a server
        yield {"engine.name": "embedded", "sampler.name": "embedded"}
        yield {"engine.name": "embedded", **vllm, **turns, "sampler.servers": 1}
    placed, sized = job.given.get("sampler.devices"), {"cluster.learners", "sampler.servers"} & {*job.given}
    whole = count if job.hardware.machines > 1 and not placed and not sized else 1
    for size in (1, 2, 4, 8):  # GPUs of a server: on one machine, with whole heads of keys and values on each
        if count % size or job.shape.kv_heads % size:
            continue
        width = {"sampler.tensor_parallel_size": size}
        if not placed:
            yield {**ranks, **turns, **width, "cluster.learners": total, "sampler.servers": total // size}
        for serving in range(size, total if not placed else min(total, count + 1), size):
            layout: dict[str, Any] = {**ranks, **width, "cluster.learners": total - serving}
            layout["sampler.servers"] = serving // size
            if placed:  # otherwise Ray assigns them
                layout["sampler.devices"] = list(range(count - serving, count))
            if not serving % whole:
                yield layout
                yield from () if (ahead := overlapping(job.config)) is None else [{**layout, **ahead}]


def overlapping(config: RunConfig) -> Keys | None:
    """Keys with which servers sample during learning; None if the loss can't weigh samples of older weights."""
    if top_p_gap(config.sampling):
        return None
    weighs = config.loss.old_logprobs == "recompute" and config.loss.importance_sampling_cap is None
    return {"train.max_off_policy_steps": 1, **({"loss.importance_sampling_cap": 2.0} if weighs else {})}


def basics(job: LayoutTask) -> Keys:
    """Keys that suit every layout on GPUs, unless the recipe or the user sets them."""
    model, policy = job.config.model, job.config.policy
    rounded = model.dtype == "float32" and "dtype" not in model.model_fields_set
    ordered = "layout" in options_of(policy_class(policy.name)) and "layout" not in policy.options
    keys = {"model.dtype": "bfloat16"} if rounded else {}
    keys |= {"policy.options.layout": "section_first"} if ordered else {}
    return {key: value for key, value in keys.items() if key not in job.given}


def eases(job: LayoutTask) -> Iterator[Keys]:
    """Changes that save memory and keep the method, from none on."""
    tokens, keys = job.config.engine.micro_batch_tokens // 2, dict[str, Any]()  # type: ignore[union-attr]
    yield keys
    if not job.config.model.gradient_checkpointing:
        yield {"model.gradient_checkpointing": "every_second"}
        yield (keys := {"model.gradient_checkpointing": True})
    while tokens >= LEAST_TOKENS:
        yield {**keys, "engine.micro_batch_tokens": tokens}
        tokens //= 2


# ---- The best layout ---------------------------------------------------------------------------------------------


def fitting(job: LayoutTask) -> list[tuple[Keys, Estimate]]:
    """Layouts that fit and their costs, the fastest first."""
    found, common = list[tuple[Keys, Estimate]](), basics(job)
    for layout in layouts(job):
        for ease in filter(job.agrees, eases(job)):
            keys = {**common, **layout, **ease}
            if excess((cost := job.estimate(keys)).memory_gb) <= 0:
                found.append((keys, cost))
                break
    return sorted(found, key=lambda choice: choice[1].step_s)


def best(job: LayoutTask, resolve: Callable[[Keys], RunConfig]) -> tuple[Keys, Estimate, RunConfig]:
    """The fastest layout that fits and that `resolve` accepts; if none fits, the one that exceeds its memory least.

    Raises ConfigError if no layout agrees with the user's keys, or `resolve` rejects all.
    """
    errors = list[ConfigError]()
    for keys, cost in fitting(job)[:_TRIES]:
        try:
            return job.changing(keys), cost, resolve(job.changing(keys))
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    if not (left := [(keys, job.estimate(keys)) for keys in layouts(job)]):
        own = " ".join(f"{key}={value}" for key, value in job.given.items() if key in REASONS)
        raise ConfigError(f"no layout gives work to {job.hardware.total} GPUs with {own}: omit some of these keys")
    keys, cost = min(left, key=lambda choice: excess(choice[1].memory_gb))
    return job.changing(keys), cost, with_keys(job.config, keys)


def nearest(job: LayoutTask) -> list[str]:
    """Single changes after which a layout fits: a key, or more GPUs."""
    found = list[str]()
    for key, value in ((ADAPTER, 16), ("cluster.cpu_offload", True)):
        changed = replace(job, config=with_keys(job.config, {key: value}), given={**job.given, key: value})
        if key not in job.given and (fits := fitting(changed)) and (key == ADAPTER or "cluster.learners" in fits[0][0]):
            found.append(f"{key}={str(value).lower()}")
    for total in (1, 2, 4, 8, 16, 32, 64):
        larger = Hardware(job.hardware.device, min(8, total), max(1, total // 8))
        if total >= job.hardware.total and fitting(replace(job, hardware=larger)):
            return [*found, f"--gpus {larger.count} --nodes {larger.machines}"]
    return found


def advice(job: LayoutTask, step_s: float) -> list[dict[str, Any]]:
    """Changes of method or memory that save at least a twentieth of `step_s`, with the seconds of a step after each."""
    loss, changes = job.config.loss, list[tuple[str, Any, str]]()
    if job.config.policy.options.get("layout") == "memory_first":
        changes.append(("policy.options.layout", "section_first", "rollouts of a group share every section"))
    if loss.kl_loss_coef > 0:
        changes.append(("loss.kl_loss_coef", 0, "no pass of the reference"))
    if loss.old_logprobs == "recompute" and job.config.train.num_minibatches > 1:
        changes.append(("loss.old_logprobs", "sampler", "no pass that recomputes log-probabilities"))
    rarer = ("model.gradient_checkpointing", "every_second", "there is room for half of the layers' activations")
    if job.config.model.gradient_checkpointing is True and excess(job.estimate(dict([rarer[:2]])).memory_gb) <= 0:
        changes.append(rarer)
    costs = [(change, job.estimate({change[0]: change[1]}).step_s) for change in changes if change[0] not in job.given]
    return [
        {"key": key, "value": value, "reason": reason, "seconds_per_step": round(seconds, 1)}
        for (key, value, reason), seconds in costs
        if seconds < 0.95 * step_s
    ]
