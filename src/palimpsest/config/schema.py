"""The typed configuration of a run. Every recipe under recipes/ is an instance of `RunConfig`.

Guaranteed: unknown keys are rejected; the resolved configuration written to a run folder reproduces the run.
Not covered: options of a memory policy, which are checked when it is built (plugin_options.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from palimpsest.config.data import SEEDS, DataConfig
from palimpsest.config.engine import (
    COPIES,
    ClusterConfig,
    EmbeddedEngineConfig,
    EngineConfig,
    SamplerConfig,
    check_turns,
    top_p_gap,
)
from palimpsest.config.engine import AdapterConfig as AdapterConfig
from palimpsest.config.engine import ModelConfig as ModelConfig
from palimpsest.config.engine import SamplingConfig as SamplingConfig
from palimpsest.config.reward import RewardConfig
from palimpsest.config.section import MAX_WAIT_S, MIN_REPLY_S, Strict, check_name
from palimpsest.config.training_steps import ColdStartConfig, OptimConfig, TrainConfig
from palimpsest.plugin_kinds import KINDS

STATE_MIX = "state_mix"
OUTCOMES = tuple(name for name in KINDS["rule"].shipped if name not in (STATE_MIX, "success_gated"))
"""The shipped credit rules that use only the rewards of whole trajectories; they have no options."""


class PolicyConfig(Strict):
    name: str = "overwrite"
    """A shipped policy (`palimpsest recipes keys policy.options.overwrite`: options of one), or my_module:MyPolicy."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Limits on training reads (`max_chunks`) don't apply to evaluation."""


class EnvironmentConfig(Strict):
    """A task that the agent acts in (docs/how-to/environments.md); `reward.name=environment` adds its rewards up."""

    name: str
    """textworld, openenv, or my_module:MyEnvironment."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options. textworld: `games`, their folder; `commands`, list the valid ones; `most_steps`, a multiple of the
    walkthrough's; `workers`, processes. openenv: `url`; `action`, `observation`, names of their text fields."""
    timeout_s: float = Field(30.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Limit of one reset or step; a slower one ends the episode ungraded."""

    @field_validator("name")
    @classmethod
    def _check_environment(cls, name: str) -> str:
        return check_name("environment", name)


class RoleConfig(Strict):
    """Model for turns that a policy requests with `model.generate(..., role=NAME)`; they are never trained."""

    model: str | None = None
    """A separate model, named as in `model.path`, with the same tokenizer. null: the run's weights."""
    url: str | None = None
    """OpenAI-compatible server of `model`, e.g. http://127.0.0.1:8001/v1; null: this process loads it."""
    temperature: float | None = Field(None, ge=0)
    """null: that of the agent's turns."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens of a reply, if below the policy's budget. null: that budget."""


class OverlongConfig(Strict):
    """Soft overlong penalty (DAPO, arXiv 2503.14476, eq. 13), on sampled tokens of each turn."""

    max_tokens: int = Field(ge=1)
    """Length from which the penalty is full."""
    buffer: int = Field(ge=1)
    """Tokens below `max_tokens` over which it grows linearly from 0."""
    penalty: float = Field(1.0, ge=0)
    """Reward subtracted at full length, scaled by the share of turns that are overlong."""

    @model_validator(mode="after")
    def _buffer_within_length(self) -> OverlongConfig:
        if self.buffer > self.max_tokens:
            raise ValueError(
                f"credit.overlong.buffer={self.buffer} exceeds credit.overlong.max_tokens={self.max_tokens}, "
                f"which would punish an empty completion: lower the buffer to at most {self.max_tokens}"
            )
        return self


class DynamicSamplingConfig(Strict):
    """Replace groups whose rewards are all equal by new samples (DAPO)."""

    max_refills: int = Field(3, ge=0)
    """Maximum extra sampling rounds per step; a warning reports groups that are still missing."""


class CreditConfig(Strict):
    adv_estimator: str = "mean"
    """From the rewards of a group to advantages: mean, as MemAgent and Dr. GRPO; mean_std, as GRPO;
    leave_one_out, as RLOO; state_mix, one of these mixed with advantages of single turns, as ReMemR1; success_gated,
    one of these with credit for cheap edits of the context, as Context Language Models; or my_module:my_rule."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of state_mix, success_gated (docs/explanation/credit-and-loss.md) or a custom rule."""
    agg_mode: Literal["token", "segment", "trajectory", "prompt"] = "token"
    """What shares the loss of an optimizer step equally (docs/explanation/credit-and-loss.md#weights)."""
    segments_per_group: int | None = Field(None, ge=1)
    """Trained segments per group, drawn so that trajectories contribute about equally (MemAct's DCPO); null: all."""
    final_segment: Literal["new_only", "all"] = "new_only"
    """Trained part of a trajectory's last segment: `new_only`, only tokens sampled in it; `all`, also earlier turns
    repeated in its prompt (MemAct's code)."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    overlong: OverlongConfig | None = None

    @field_validator("adv_estimator")
    @classmethod
    def _check_rule(cls, rule: str) -> str:
        return check_name("rule", rule)

    @model_validator(mode="after")
    def _options_of_a_rule_that_has_any(self) -> CreditConfig:
        if self.options and self.adv_estimator in OUTCOMES:
            raise ValueError(
                "credit.options belong to state_mix, success_gated or a custom rule; "
                f"credit.adv_estimator={self.adv_estimator} has none: "
                "set credit.options={}"
            )
        return self

    @model_validator(mode="after")
    def _sampling_needs_rows_that_count(self) -> CreditConfig:
        if self.segments_per_group is not None and self.agg_mode == "trajectory":
            raise ValueError(
                f"credit.segments_per_group={self.segments_per_group} draws rows so that every trajectory gives about "
                "as many, but under credit.agg_mode=trajectory each weighs the same however many it gives, so a draw "
                "would only leave tokens out: set credit.agg_mode to token, segment or prompt, or "
                "credit.segments_per_group=null"
            )
        return self


class LossConfig(Strict):
    clip_ratio_low: float = Field(0.2, ge=0, lt=1)
    """PPO's clip: ratios below 1 - this value."""
    clip_ratio_high: float = Field(0.2, ge=0)
    """PPO's clip: ratios above 1 + this value."""
    dual_clip: float | None = Field(3.0, gt=1)
    """Bound c of the dual clip for negative advantages; None: off."""
    kl_loss_coef: float = Field(0.0, ge=0)
    """Weight of the k3 KL in the loss, to the weights that RL starts from (after cold_start); 0 loads no reference
    model."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus in nats per token; a negative one lowers the entropy."""
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    """Source of the log-probabilities in the ratio's denominator."""
    importance_sampling_cap: float | None = Field(None, gt=0)
    """Truncated importance sampling: min(old / sampler, cap) weighs each token; needs old_logprobs=recompute."""

    @model_validator(mode="after")
    def _tis_needs_recompute(self) -> LossConfig:
        if self.importance_sampling_cap is not None and self.old_logprobs != "recompute":
            raise ValueError(
                "loss.importance_sampling_cap has no meaning with loss.old_logprobs=sampler (the ratio would be 1): "
                "set loss.old_logprobs=recompute or loss.importance_sampling_cap=null"
            )
        return self


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Names of one file of an evaluation recipe."""

    task: str
    size: int | None
    names: tuple[str, ...]
    """The best first."""
    make: str
    """The command that makes it, and all others of its task that are missing."""


class FileSet(Strict):
    """Files of an evaluation recipe in the data folder, one per task and size."""

    names: tuple[str, ...] = Field(min_length=1)
    """With {task} and {size}; the first that is there counts."""
    tasks: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    make: str
    """The command that makes one, or where it comes from; with {sizes}, every missing size, one for all."""
    corpus: str | None = None
    """File next to them whose documents their numbers refer to."""

    @field_validator("names")
    @classmethod
    def _check_fields(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            strange = {field for _, field, _, _ in Formatter().parse(name) if field is not None} - {"task", "size"}
            if strange or "/" in name:
                raise ValueError(f"{name}: the name of a file, with {{task}} and {{size}} alone as fields")
        return names

    def choices(self, folder: Path) -> Iterator[FileChoice]:
        """A choice for each task and size."""
        for task in self.tasks or ("",):
            files = {
                size: tuple(name.format(task=task, size=size) for name in self.names) for size in self.sizes or (None,)
            }
            missing = [size for size, names in files.items() if not any((folder / name).is_file() for name in names)]
            for size, names in files.items():
                sizes = ",".join(map(str, missing or [size]))
                yield FileChoice(task, size, names, self.make.format(task=task, size=size, sizes=sizes))


class EvaluationConfig(Strict):
    """Held-out synthetic evaluation of `quickstart` after training, and settings of every evaluation."""

    files: tuple[FileSet, ...] = ()
    """Files of an evaluation recipe that `palimpsest eval --data DIR` evaluates."""
    sizes: tuple[int, ...] = ()
    """Problem sizes that `quickstart` evaluates. Documents: lengths, as multiples of the largest training size (the
    curriculum's last, or `data.synthetic.chunks`). Search problems: numbers of questions. Games: moves of the files
    of `data.val_files`. None: (1, 16, 64, 256), (2, 4, 6, 8), or (4, 8, 16, 32)."""
    problems: int = Field(64, ge=1)
    """Held-out problems per evaluation during training, and per size in `quickstart`."""
    chunk_budget: int | None = Field(None, ge=1)
    """Maximum total chunks per document length: longer documents reduce the number of episodes, to at least one."""
    baseline_problems: int | None = Field(None, ge=1)
    """Number of problems beyond the smallest size for other policies that read chunk by chunk; null: as the agent."""
    baselines: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Baseline policies that use the trained weights, by their name in the report."""
    trained_baselines: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Policies that `quickstart` trains as baselines, by their name in the report, each with a separate cold start and
    the agent's data, rewards, steps and seed."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the players in tables and figures, by name. The first name is the agent's (`agent` without labels);
    `NAME_before` is the agent before training with rewards."""
    note: str = ""
    """Text about the other policies in the caption of the accuracy figure."""
    record: Literal["none", "wrong", "all"] = "wrong"
    """Episodes that an evaluation's episodes.jsonl.zst stores; wrong: value below 1, or ungraded, up to 64 MB."""
    processes: int = Field(2, ge=1)
    """Processes that share the episodes of the final evaluation. The number decides which sequences share a batch, so
    the configuration fixes it and results repeat."""

    @property
    def agent(self) -> str:
        """Name of the trained agent in tables and logs."""
        return next(iter(self.labels), "agent")


class LoggingConfig(Strict):
    report_to: tuple[str, ...] = ("console", "jsonl")
    """Sinks of metrics: console, tensorboard, wandb, my_module:MySink. Every run also has jsonl, i.e. metrics.jsonl."""

    @field_validator("report_to")
    @classmethod
    def _check_sinks(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_name("sink", sink) for sink in sinks)


Layout = Literal["forest", "segments"]


class LearnerConfig(Strict):
    layout: Layout | None = None
    """forest: a prefix that segments share is computed once; segments: each segment alone, through the model class's
    own forward, for recurrent layers, sinks and capped scores; null: forest where it is exact."""


class RunConfig(Strict):
    recipe: str = "custom"
    """Name of the recipe, in run folders and reports."""
    seed: int = 0
    """Key of every random draw (`--seed`)."""
    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """Frozen roles for the policy's turns, by the policy's names; turns without a role are trained."""
    environment: EnvironmentConfig | None = None
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    credit: CreditConfig = CreditConfig()
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    sampling: SamplingConfig = SamplingConfig()
    eval_sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    engine: EngineConfig = EmbeddedEngineConfig()
    cluster: ClusterConfig = ClusterConfig()
    sampler: SamplerConfig = SamplerConfig()
    learner: LearnerConfig = LearnerConfig()
    train: TrainConfig = TrainConfig()
    cold_start: ColdStartConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _combinations(self) -> RunConfig:
        if self.train.num_minibatches > self.train.batch_size:
            raise ValueError(
                f"train.num_minibatches={self.train.num_minibatches} exceeds train.batch_size="
                f"{self.train.batch_size}: each has at least one whole group, so set train.num_minibatches="
                f"{self.train.batch_size} at most"
            )
        if self.sampling.temperature == 0 and self.train.group_size > 1 and self.train.variant is None:
            raise ValueError(
                f"sampling.temperature=0 samples train.group_size={self.train.group_size} equal rollouts per problem, "
                "so no reward differs: set sampling.temperature, e.g. to 1"
            )
        unweighted = self.loss.old_logprobs == "recompute" and self.loss.importance_sampling_cap is None
        if self.train.max_off_policy_steps and unweighted:
            raise ValueError(
                f"train.max_off_policy_steps={self.train.max_off_policy_steps} trains on samples of older weights, "
                "but loss.old_logprobs=recompute assumes current weights: set loss.importance_sampling_cap, e.g. 2, to "
                "weight them by their current probability, or loss.old_logprobs=sampler"
            )
        rules = {"adv_estimator": self.credit.adv_estimator, "options.outcome": self.credit.options.get("outcome")}
        others = [f"credit.{key}={rule}" for key, rule in rules.items() if rule == "leave_one_out"]
        if others and self.train.group_size < 2:
            raise ValueError(
                f"train.group_size={self.train.group_size}: {others[0]} compares rollouts of a problem, set at least 2"
            )
        if self.credit.adv_estimator == STATE_MIX and not self.reward.rewards_turns:
            raise ValueError(
                "credit.adv_estimator=state_mix mixes in rewards of turns, but there are none: set reward.state, "
                "e.g. reward.state={}, use a custom reward or layer, or set credit.adv_estimator=mean and "
                "credit.options={}"
            )
        placed = self.data.order != "any" or self.data.min_distance > 0
        if placed and (self.data.train_files == "synthetic" or self.data.documents is None):
            raise ValueError(
                "data.order and data.min_distance place the gold paragraphs of assembled contexts: set data.documents "
                "and a file as data.train_files, or take data.synthetic.order and data.synthetic.min_distance"
            )
        check_served(self)
        check_cluster(self)
        return self

    @property
    def needs_golds(self) -> bool:
        """Return whether every training problem needs a gold."""
        return self.environment is None or self.reward.needs_gold

    @property
    def eval_draws(self) -> int:
        """Episodes per held-out problem of an evaluation during training; greedy ones would all be equal."""
        return self.train.eval_samples if self.eval_sampling.temperature else 1

    def reward_beside_environment(self) -> list[str]:
        """A warning if the reward compares answers, while an environment gives rewards of its own."""
        if self.environment is None or not self.reward.needs_gold:
            return []
        return [f"reward.name={self.reward.name}: that of an environment is reward.name=environment"]

    @model_validator(mode="after")
    def _parts_of_an_environment(self) -> RunConfig:
        if self.reward.name == "environment" and self.environment is None:
            raise ValueError("reward.name=environment adds up the rewards of an environment: set environment.name")
        if SEEDS in (self.data.train_files, self.data.val_files) and self.environment is None:
            raise ValueError(f"data.train_files={SEEDS} has no tasks without an environment: set environment.name")
        return self


def check_cluster(config: RunConfig) -> None:
    """Reject a `cluster` that has no effect with this engine or device. Raises ValueError."""
    cluster = config.cluster
    free = ("max_restarts", *(["placement"] if takes_turns(config) else []))
    changed = [name for name in cluster.no_default() if name not in free]
    if config.engine.name == "embedded" and changed:
        value = getattr(cluster, changed[0])
        raise ValueError(f"cluster.{changed[0]}={value} needs engine.name=ray: set that, or omit it")
    if config.engine.name != "ray":
        return
    if config.sampler.name != "vllm":
        cluster.check_copies()
    if config.cold_start is not None and config.model.lora is not None:
        raise ValueError(
            "engine.name=ray can't start with an adapter, the result of a cold_start with model.lora: set "
            "cold_start=null, or model.lora=null"
        )
    if cluster.tensor_parallel_size > 1 and config.model.lora is not None:
        raise ValueError(
            f"cluster.tensor_parallel_size={cluster.tensor_parallel_size} can't divide adapters: set "
            "cluster.tensor_parallel_size=1, or model.lora=null"
        )
    device = config.model.device
    if device.startswith("cuda") and (device != "cuda" or cluster.gpus_per_learner == 0):
        raise ValueError(
            f"model.device={device}: Ray hands out GPUs; set model.device=auto and cluster.gpus_per_learner=1"
        )
    for key in ("gpus_per_learner", "gpus_per_sampler"):
        if device == "cpu" and (gpus := getattr(cluster, key)):
            raise ValueError(f"cluster.{key}={gpus:g}: set model.device=auto, for it says cpu, or cluster.{key}=0")


def suspicious(config: RunConfig) -> list[str]:
    """Settings for RL that are probably mistakes, each with the reason."""
    train, optim, entropy = config.train, config.optim, config.loss.entropy_coeff
    ahead, updates = train.max_off_policy_steps, train.max_steps * train.num_minibatches
    found, trial = [], updates < 100
    if ahead >= train.max_steps and not trial:
        found.append(f"train.max_off_policy_steps={ahead}: the initial weights sample all {train.max_steps} batches")
    if optim.warmup_steps >= updates and not trial:
        found.append(f"optim.warmup_steps={optim.warmup_steps}: the run ends before, after {updates} optimizer steps")
    if optim.learning_rate > 0.1:
        found.append(f"optim.learning_rate={optim.learning_rate:g}: AdamW may change each weight by that in one step")
    if abs(entropy) >= 1:
        found.append(f"loss.entropy_coeff={entropy:g}: the bonus outweighs the policy's loss; use 0 to 0.01")
    found += config.reward_beside_environment()
    insight = config.cold_start.insight if config.cold_start else 0.0
    if insight and (config.data.train_files != "synthetic" or config.policy.name == "lead"):
        found.append(f"cold_start.insight={insight:g}: only examples of readers of synthetic documents have it")
    return found


def is_served(config: RunConfig, objective: str | None) -> bool:
    """Return whether servers replace the engine as sampler for `objective`; imitation ("nll") samples nothing."""
    return objective != "nll" and config.sampler.name == "vllm"


def by_ray(config: RunConfig, objective: str | None) -> bool:
    """Return whether Ray decides where the servers run: not for a model that isn't trained."""
    free = objective == "policy" and not config.sampler.urls and not config.sampler.devices
    return free and is_served(config, objective) and config.engine.name == "ray"


def takes_turns(config: RunConfig) -> bool:
    """Return whether servers sleep while the learner learns on the same GPUs."""
    return config.sampler.name == "vllm" and config.cluster.placement == "colocated"


def check_served(config: RunConfig) -> None:
    """Reject settings that servers can't sample for. Raises ValueError."""
    sampling, loss = config.sampling, config.loss
    if config.sampler.name != "vllm":
        return
    if config.engine.name not in ("embedded", "ray"):
        raise ValueError(f"sampler.name=vllm samples for engine.name=embedded and ray, not for {config.engine.name}")
    if copies := [key for key in config.cluster.no_default() if key in COPIES]:
        key, value = copies[0], getattr(config.cluster, copies[0])
        raise ValueError(f"cluster.{key}={value} is for embedded samplers; set sampler.servers instead")
    if takes_turns(config):
        check_turns(config.cluster, config.sampler, config.train.max_off_policy_steps)
    if name := next((name for name, role in config.roles.items() if role.model and not role.url), None):
        raise ValueError(f"roles.{name}.model: vLLM loads only the run's; set its url, or sampler.name=embedded")
    if top_p_gap(sampling) and (loss.old_logprobs != "recompute" or loss.importance_sampling_cap is not None):
        raise ValueError(
            f"sampling.temperature={sampling.temperature} with sampling.top_p={sampling.top_p}: vLLM then returns no "
            "log-probabilities before top-p; set loss.old_logprobs=recompute and loss.importance_sampling_cap=null, "
            "which need none, or sampling.top_p=1"
        )
