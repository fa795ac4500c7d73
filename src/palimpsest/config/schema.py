"""The typed configuration of a run. Every recipe under recipes/ is an instance of `RunConfig`.

Guaranteed: unknown keys are refused; the resolved configuration written to a run folder reproduces the run.
Not covered: options of a memory policy (the policy's own dataclass checks them when it is built).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class ModelConfig(Strict):
    path: str = "embedded"
    """`embedded` for the model inside the package, a Hugging Face folder, or a hub id such as Qwen/Qwen3-4B."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    """auto, cpu, cuda, cuda:1"""
    gradient_checkpointing: bool = False


class PolicyConfig(Strict):
    name: str = "overwrite"
    """overwrite, recall, retrieval, gated, full_context, sliding_window, or my_module:MyPolicy."""
    options: dict[str, Any] = Field(default_factory=dict)


class SyntheticConfig(Strict):
    """The shipped synthetic documents: templated facts, distractors and near misses."""

    chunks: int = Field(4, ge=1, le=100_000)
    """Paragraphs per document; the quickstart's policy reads one a turn."""
    facts_per_chunk: int = Field(5, ge=1, le=32)
    hops: Literal[1, 2] = 1
    near_misses: int = Field(4, ge=0, le=1000)
    """Sentences about the same person, or of the same relation, as the evidence, however long the document."""
    rivals: float = Field(0.0, ge=0, le=1)
    """Share of the other sentences that say the last hop's relation, of other people: any of them might be evidence."""
    order: Literal["any", "forward", "reverse"] = "any"
    """Of the evidence: any, first hop first, last hop first."""
    min_distance: int = Field(0, ge=0)
    """Paragraphs between neighbouring pieces of evidence at the least; shorter documents have what fits."""


class CurriculumConfig(Strict):
    """Document length grows when the agent has learnt the present one."""

    chunks: tuple[int, ...] = (1, 2, 4)
    advance_at: float = Field(0.85, ge=0, le=1)
    """Mean reward, over `window` successive steps at the present length, that moves on to the next."""
    window: int = Field(2, ge=1)


class DataConfig(Strict):
    source: str = "synthetic"
    """`synthetic`, or a file: HotpotQA (official or hub layout), MemAgent parquet, eval_{N}.json, palimpsest JSONL."""
    eval_source: str | None = None
    """File that evaluation during training reads; None: `source`."""
    documents: int | None = Field(None, ge=1)
    """Documents per assembled context (gold paragraphs plus distractors); None: as the file has them."""
    order: Literal["any", "forward", "reverse"] = "any"
    """Of the gold paragraphs in assembled contexts: any, as the file names them (its reasoning order), reversed."""
    min_distance: int = Field(0, ge=0)
    """Documents from one gold paragraph to the next at the least, in assembled contexts."""
    corpus: str | None = None
    """File whose paragraphs join the distractors, or that document indices refer to."""
    limit: int | None = Field(None, ge=1)
    """Use only the first so many problems."""
    seed: int = 0
    synthetic: SyntheticConfig = SyntheticConfig()
    curriculum: CurriculumConfig | None = None


class StateRewardConfig(Strict):
    """Rewards of single turns: gain of the update, gain of the recall, format (ReMemR1, arXiv 2509.23040)."""

    update: float = 1.0
    """Weight of the gain in gold words from the memory before to the memory after."""
    callback: float = 1.0
    """Weight of what the recalled memory adds to memory and section."""
    format: float = 1.0
    """Weight of a reply that can be read."""
    golds: Literal["max", "mean"] = "max"
    """Over several golds: the best (the paper), the mean (its code)."""
    words: Literal["whole", "substring"] = "whole"
    """How a gold's word is found: `substring` with case, anywhere, is the code's."""
    before: Literal["memory", "nothing"] = "memory"
    """What an update is compared with; `nothing` is what the code's expression finds of a memory."""
    against: Literal["state", "prompt"] = "state"
    """What a recalled memory is compared with: memory and section, or the whole prompt with its question (the code)."""
    action_reweight: bool = False
    """Multiply a reading turn's advantage by 0.5 + the share of gold words it had in sight."""


class GateRewardConfig(Strict):
    """Rewards of gate decisions against the data's evidence (after GRU-Mem, arXiv 2602.10560)."""

    update: float = 1.0
    """Weight of writing where the section holds evidence and not writing where it holds none."""
    exit: float = 1.0
    """Weight of ending where all evidence was seen and going on before."""
    format: float = 1.0
    """Weight of a reply that can be read."""


class RewardConfig(Strict):
    name: Literal["boxed", "em", "f1", "sub_em", "fraction"] = "boxed"
    """boxed: last \\boxed{} of the answer compared with each gold; em, f1, sub_em: normalised, over the extracted
    answer; fraction: share of golds contained (multi-value tasks)."""
    strict: bool = False
    """boxed only: exactly the original's comparison, its 300-character window included."""
    sub_em: Literal["gold_in_answer", "answer_in_gold", "either"] = "gold_in_answer"
    """`either` is the published evaluation's symmetric rule."""
    unsupported_penalty: float = Field(0.0, ge=0)
    """Training only: a reward is multiplied by 1 less this many times (0 at the least) the share of sentences written
    into the memory that stand neither in the section nor in the memory before, so that it doesn't invent."""
    state: StateRewardConfig | None = None
    gates: GateRewardConfig | None = None

    @model_validator(mode="after")
    def _one_reward_a_turn(self) -> RewardConfig:
        if self.state is not None and self.gates is not None:
            raise ValueError("reward.state and reward.gates both reward turns: set one of them to null")
        return self


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
                f"which would punish an empty completion: lower the buffer to {self.max_tokens} at the most"
            )
        return self


class DynamicSamplingConfig(Strict):
    """Drop groups whose rewards are all equal and sample others in their place (DAPO)."""

    max_refills: int = Field(3, ge=0)
    """Extra rounds of sampling per step at the most; what is still missing then is left out with a warning."""


class CreditConfig(Strict):
    baseline: Literal["mean", "mean_std", "leave_one_out"] = "mean"
    """mean: MemAgent and Dr. GRPO; mean_std: GRPO; leave_one_out: RLOO."""
    aggregate: Literal["token", "segment", "trajectory", "prompt"] = "token"
    alpha: float = Field(1.0, ge=0, le=1)
    """Share of the outcome's advantage; the rest is the turn's own, over turns at the same step of the group."""
    state_scale: float = Field(1.0, gt=0)
    """Factor of the turn's own advantage; 2 is what ReMemR1's code comes to."""
    lone_step: Literal["zero", "raw"] = "zero"
    """Own advantage of a turn whose step no other trajectory of the group reached: 0, or its raw reward (the code)."""
    dynamic_sampling: DynamicSamplingConfig | None = None
    overlong: OverlongConfig | None = None


class LossConfig(Strict):
    clip_low: float = Field(0.2, ge=0, lt=1)
    clip_high: float = Field(0.2, ge=0)
    dual_clip: float | None = Field(3.0, gt=1)
    """Bound c of the dual clip for negative advantages; None: off."""
    kl_coef: float = Field(0.0, ge=0)
    """k3 KL to the starting model, added to the loss; 0 keeps no reference model in memory."""
    entropy_coef: float = 0.0
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    """Whose log-probabilities are the ratio's denominator."""
    tis_cap: float | None = Field(None, gt=0)
    """Truncated importance sampling: min(old / sampler, cap) weighs each token; needs old_logprobs=recompute."""

    @model_validator(mode="after")
    def _tis_needs_recompute(self) -> LossConfig:
        if self.tis_cap is not None and self.old_logprobs != "recompute":
            raise ValueError(
                "loss.tis_cap has no meaning with loss.old_logprobs=sampler (the ratio would be 1): "
                "set loss.old_logprobs=recompute or loss.tis_cap=null"
            )
        return self


class OptimConfig(Strict):
    learning_rate: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(1.0, gt=0)


class SamplingConfig(Strict):
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)


class EngineConfig(Strict):
    threads: int = Field(1, ge=1)
    """CPU threads of one process. One where the cores are shared: two collapse under other load."""
    batch_slots: int = Field(128, ge=1)
    """Sequences the sampler decodes at once."""
    prefill_tokens: int = Field(8192, ge=1)
    """Prompt tokens (padding included) of one prefill call."""
    cache_tokens: int = Field(65_536, ge=0)
    """Tokens whose keys and values the sampler keeps for prompts that begin alike; least recently used ones make room.
    Their memory comes on top of the rows in use. 0 computes every prompt whole."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens of one prefix forest: one forward and backward pass of the learner, which bounds its memory. Larger ones
    share more; where little is shared, 2,048 are fastest for a small model on a CPU (they stay in caches)."""


class TrainConfig(Strict):
    steps: int = Field(100, ge=1)
    """Rollout batches."""
    prompts_per_step: int = Field(8, ge=1)
    group_size: int = Field(16, ge=1)
    optimizer_steps: int = Field(1, ge=1)
    """Optimiser steps per rollout batch: mini-batches are made of whole groups, their number is fixed."""
    save_every: int = Field(20, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    eval_every: int | None = Field(None, ge=1)
    eval_problems: int = Field(64, ge=1)
    record_every: int = Field(1, ge=1)
    """Write the trajectories of every so many steps."""
    episode_timeout_s: float | None = Field(None, gt=0)
    sampler_retries: int = Field(2, ge=0)


class ColdStartConfig(Strict):
    """Supervised lessons in the form of the policy's replies, before training with rewards (train/lessons.py)."""

    steps: int = Field(100, ge=1)
    """Optimiser steps; the learning rate falls linearly to 0 over them."""
    lessons_per_step: int = Field(64, ge=1)
    """No lesson comes twice."""
    learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(10, ge=0)


class EvaluationConfig(Strict):
    """What `quickstart` measures on held-out synthetic documents after training."""

    multiples: tuple[int, ...] = (1, 16, 64, 256)
    """Document lengths, as multiples of the training length."""
    problems: int = Field(64, ge=1)
    """Problems per length."""
    baselines: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Other policies to play on the trained weights, by the name the report gives them."""
    rivals: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Policies that `quickstart` trains beside the agent, each from a cold start of its own, with the same data,
    rewards, steps and seed, by the name the report gives them."""
    processes: int = Field(2, ge=1)
    """Processes that share the episodes of the final evaluation. Part of the configuration, not of the machine:
    it decides which sequences are batched together, so that results repeat."""


class LoggingConfig(Strict):
    sinks: tuple[Literal["console", "jsonl", "tensorboard", "wandb", "trackio"], ...] = ("console", "jsonl")
    project: str = "palimpsest"


class RunConfig(Strict):
    recipe: str = "custom"
    seed: int = 0
    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    credit: CreditConfig = CreditConfig()
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    sampling: SamplingConfig = SamplingConfig()
    eval_sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    engine: EngineConfig = EngineConfig()
    train: TrainConfig = TrainConfig()
    cold_start: ColdStartConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _combinations(self) -> RunConfig:
        if self.train.optimizer_steps > self.train.prompts_per_step:
            raise ValueError(
                f"train.optimizer_steps={self.train.optimizer_steps} exceeds train.prompts_per_step="
                f"{self.train.prompts_per_step}: every optimiser step needs at least one whole group"
            )
        if self.credit.baseline == "leave_one_out" and self.train.group_size < 2:
            raise ValueError("credit.baseline=leave_one_out needs train.group_size of at least 2")
        if self.credit.alpha < 1 and self.reward.state is None and self.reward.gates is None:
            raise ValueError(
                f"credit.alpha={self.credit.alpha} mixes in rewards of turns, but there are none: "
                "set reward.state or reward.gates, e.g. reward.state={}, or credit.alpha=1"
            )
        placed = self.data.order != "any" or self.data.min_distance > 0
        if placed and (self.data.source == "synthetic" or self.data.documents is None):
            raise ValueError(
                "data.order and data.min_distance place the gold paragraphs of assembled contexts: set data.documents "
                "and a file as data.source, or take data.synthetic.order and data.synthetic.min_distance"
            )
        if self.cold_start is not None and self.data.source != "synthetic":
            raise ValueError(
                "cold_start draws its lessons from the synthetic world: data.source must be synthetic; for other data "
                "begin with palimpsest sft"
            )
        if self.data.curriculum is not None and self.data.source != "synthetic":
            raise ValueError("data.curriculum sets the length of synthetic documents: data.source must be synthetic")
        return self
