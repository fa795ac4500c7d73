"""`palimpsest plan` and `train --gpus`: from a request and devices to a plan, and a run's metrics against its plan.

Light imports, as in app/config_resolution.py: neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.app.config_resolution import Recipe, RunRequest, resumed_run, run_config
from palimpsest.config.engine import ALIKE
from palimpsest.config.load import split_overrides
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import leaves
from palimpsest.errors import ConfigError, RunError
from palimpsest.metrics.memory_metrics import folded
from palimpsest.planning.cost import Estimate, Keys, Processes, estimate, excess, faults
from palimpsest.planning.hardware import DEVICES, Hardware, cpu, named_device
from palimpsest.planning.layouts import REASONS, LayoutTask, advice, best, nearest
from palimpsest.planning.model_shape import shape_of
from palimpsest.planning.workload import problem_sizes, workload
from palimpsest.plugins import shipped_only
from palimpsest.runs.jsonl_rows import is_number, read_rows
from palimpsest.runs.resume_rules import EVENTS
from palimpsest.runs.run_folder import METRICS, TIMINGS, load_config


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A configuration on devices, with its cost."""

    config: RunConfig
    hardware: Hardware
    estimate: Estimate
    keys: Keys
    """Keys that the plan adds to the user's."""
    nearest: list[str]
    """Changes that fit, if the plan doesn't."""
    advice: list[dict[str, Any]]
    assumed: list[str]

    @property
    def fits(self) -> bool:
        return excess(self.estimate.memory_gb) <= 0

    @property
    def words(self) -> list[str]:
        """The plan's keys as KEY=VALUE."""
        return _words(self.keys)

    @property
    def missing(self) -> list[str]:
        """Keys that only the user knows."""
        alone = self.hardware.machines == 1 or self.config.cluster.address is not None
        return [] if alone else ["cluster.address"]

    def to_json(self, price: float, command: str) -> dict[str, Any]:
        """Figures per step. `price`: of a GPU hour; `command`: what starts the run."""
        cost, hardware, steps = self.estimate, self.hardware, self.config.train.max_steps
        days = cost.step_s * steps / 86400
        gpu_hours = 0.0 if hardware.device.is_cpu else days * 24 * hardware.total
        return {
            "recipe": self.config.recipe,
            "device": hardware.device.name,
            "per_machine": hardware.count,
            "nodes": hardware.machines,
            "fits": self.fits,
            "memory_gb": cost.memory_gb,
            "too_large": faults(cost.memory_gb),
            "nearest": self.nearest,
            "tokens": asdict(cost.workload),
            "seconds": cost.seconds,
            "overlaps": cost.overlaps,
            "seconds_per_step": cost.step_s,
            "dominated_by": cost.dominated_by,
            "steps": steps,
            "days": days,
            "gpu_hours": gpu_hours,
            "dollars_per_gpu_hour": price,
            "cost": gpu_hours * price,
            "overrides": [
                {"key": key, "value": value, "reason": REASONS.get(f"{key}={value}", REASONS[key])}
                for key, value in self.keys.items()
            ],
            "advice": self.advice,
            "assumed": self.assumed,
            "missing": self.missing,
            "command": command,
        }


def _words(keys: Keys) -> list[str]:
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in keys.items()]


def plan_training(recipe: Recipe, words: Sequence[str], hardware: Hardware | None, *, choose: bool) -> TrainingPlan:
    """The plan of a recipe. `choose`: with the layout that suits `hardware`; otherwise the configuration unchanged, and
    for None on as many H100s as it needs.

    Raises ConfigError, DataError or ModelError.
    """
    given = {key: value for section, outer, _ in split_overrides(words) for key, value in leaves({section: outer})}
    config = _completed(recipe, words, given) if choose else run_config(recipe, words)
    if config.engine.name not in ALIKE:
        raise ConfigError("plans only embedded and ray", key="engine.name", value=config.engine.name)
    shape, sizes = shape_of(config.model.path), problem_sizes(config)
    if hardware is None:
        needed = Processes.of(config, "policy", Hardware(DEVICES["h100"], 1)).devices
        hardware = Hardware(DEVICES["h100"], min(8, needed), -(-needed // 8))
    job = LayoutTask(config, given, run_config(recipe), shape, sizes, hardware)
    keys: Keys = {}
    if choose:
        keys, cost, config = best(job, lambda keys: run_config(recipe, [*words, *_words(keys)]))
    else:
        cost = job.estimate({})
    assumed = list(sizes.assumed)
    if config.reward.judge is not None:
        assumed.append(f"the judge at {config.reward.judge.url} needs other GPUs")
    if shape.apart:
        more = cost.workload.distinct / workload(config, sizes).distinct
        assumed.append(f"trained by segments: {more:.1f} times the tokens of a forest")
    ways = nearest(job) if excess(cost.memory_gb) > 0 else []
    faster = advice(replace(job, config=config), cost.step_s)
    return TrainingPlan(config, hardware, cost, keys, ways, faster, assumed)


_LAYOUT = ("engine.name=ray", "sampler.name=vllm", "loss.importance_sampling_cap=2")
"""Keys that others of a layout need, such as cluster.learners."""


def _completed(recipe: Recipe, words: Sequence[str], given: Keys) -> RunConfig:
    """The user's configuration, with as little of a layout as makes it valid. Raises the error of `words` alone."""
    shared = given.get("cluster.placement") == "colocated"
    gpus = given.get("cluster.learners", 1) if shared else len(given.get("sampler.devices") or [1])
    servers = gpus // given.get("sampler.tensor_parallel_size", 1)
    free = [word for word in (*_LAYOUT, f"sampler.servers={servers}") if word.partition("=")[0] not in given]
    errors = list[ConfigError]()
    for more in (chosen for size in range(len(free) + 1) for chosen in combinations(free, size)):
        try:
            return run_config(recipe, [*words, *more])
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


# ---- train --gpus ------------------------------------------------------------------------------------------------


def hardware_for(gpus: int, nodes: int, here: Hardware, *, dry_run: bool) -> Hardware:
    """The devices of `train --gpus`: those of this machine; with `dry_run` also others. Raises ConfigError."""
    there = 0 if here.device.is_cpu else here.count
    if there < gpus and not dry_run:
        raise ConfigError(
            f"--gpus {gpus}: this machine has {there} (nvidia-smi, CUDA_VISIBLE_DEVICES); pass fewer, or plan for "
            "another machine with --dry-run"
        )
    return Hardware(here.device if there else DEVICES["h100"], gpus, nodes)


def planned(request: RunRequest, hardware: Hardware, *, dry_run: bool) -> tuple[RunRequest, TrainingPlan]:
    """`request` with the plan's keys. Raises ConfigError if nothing fits, or only the user knows a key."""
    if request.recipe is None or resumed_run(request) is not None:
        raise ConfigError("--gpus: a run resumes with its layout; omit --gpus")
    words = list(request.overrides or ())
    plan = plan_training(request.recipe, words, hardware, choose=True)
    if not plan.fits:
        found = "; ".join(faults(plan.estimate.memory_gb))
        raise ConfigError(f"--gpus {hardware.count}: {found}; use {' or '.join(plan.nearest) or 'a smaller model'}")
    if plan.missing and not dry_run:
        raise ConfigError(f"--nodes {hardware.machines}: set cluster.address=HOST:PORT of the Ray head")
    return replace(request, overrides=[*words, *plan.words]), plan


# ---- plan --check ------------------------------------------------------------------------------------------------


@shipped_only("plan --check does not import the code that a run names")
def compare_run(run: Path, hardware: Hardware | None) -> dict[str, dict[str, float]]:
    """Predicted and measured means per step of a run. `hardware`: where it ran; None: as its events record.

    Raises RunError for a run without a step, ConfigError for one with other policies than the package's.
    """
    config, metrics, timings = load_config(run), _means(run / METRICS), _means(run / TIMINGS)
    if not metrics:
        raise RunError(f"{run}: no step has finished")
    if "groups/played" not in metrics:
        raise RunError(f"{run}: supervised training, which has no plan to compare with; name a run of RL")
    chunks = metrics.get("curriculum/chunks")
    shape, sizes = shape_of(config.model.path), problem_sizes(config, None if chunks is None else round(chunks))
    load = workload(config, sizes, shape)
    seconds = estimate(config, shape, load, hardware or _devices_of(run)).seconds
    episodes = metrics["groups/played"] * config.train.group_size
    prompt, hits = episodes * metrics["episode/prompt_tokens"], timings.get("rollout/cache_hit_rate")
    pairs = {
        "episodes": (load.episodes, episodes),
        "prompt tokens": (load.prompt, prompt),
        "prompt tokens computed": (load.computed_prompt, None if hits is None else prompt * (1 - hits)),
        "sampled tokens": (load.sampled, episodes * metrics["episode/sampled_tokens"]),
        "row tokens": (load.logical, metrics.get("policy/logical_tokens")),
        "row tokens computed": (load.distinct, metrics.get("policy/physical_tokens")),
        "seconds of sampling": (seconds["sampling"], timings.get("rollout_s")),
        "seconds of logprobs and learning": (seconds["logprobs"] + seconds["learning"], timings.get("learn_s")),
        "seconds of publication": (seconds["publication"], timings.get("publish/seconds")),
    }
    return {name: {"predicted": p, "measured": m, "ratio": p / m} for name, (p, m) in pairs.items() if p and m}


def _means(file: Path) -> Mapping[str, float]:
    rows = ({name: value for name, value in row.items() if is_number(value)} for row in read_rows(file))
    return folded(rows, fmean)


def _devices_of(run: Path) -> Hardware:
    made = [row["made_with"] for row in read_rows(run / EVENTS) if "made_with" in row] or [{}]
    machine: Mapping[str, Any] = made[0].get("machine", {})
    gpus = machine.get("gpus") or []
    return Hardware(named_device(str(gpus[0])), len(gpus)) if gpus else cpu(int(machine.get("cores") or 1))
