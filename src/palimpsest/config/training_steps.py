"""Sections of a configuration: steps of training, cold start, optimizer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from palimpsest.config.section import Strict


class OptimConfig(Strict):
    learning_rate: float = Field(1e-6, gt=0)
    """Peak of the schedule."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps (`train.num_minibatches` per rollout batch) of linear warm-up."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up; linear and cosine end at 0 if no optimizer step is left out for lack of signal."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's moments, each at least 0 and below 1."""
    eps: float = Field(1e-8, gt=0)
    """Term in AdamW's denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices only."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Norm to which larger gradients are scaled down; null: off."""

    @field_validator("betas")
    @classmethod
    def _decay(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"optim.betas={list(betas)}: use two numbers of at least 0 and below 1, e.g. [0.9, 0.999]")
        return betas


class VariantConfig(Strict):
    """Training episodes with other options of the policy, e.g. without pruning; evaluation runs none."""

    share: float = Field(0.5, gt=0, le=1)
    """Probability of each episode, drawn by run seed, step, problem and rollout."""
    options: dict[str, Any] = Field(min_length=1)
    """Differences from policy.options, e.g. {prune: false}."""


_LOWER_IS_BETTER = ("ungraded", "documents_cut")


class TrainConfig(Strict):
    max_steps: int = Field(100, ge=1)
    """Rollout batches."""
    max_tokens: int | None = Field(None, ge=1)
    """Computed tokens after which training ends, whatever the method: those of the learner and of its cold start (of
    a prefix forest, each shared prefix once), and of every played episode the tokens of its distinct prefixes, roles
    included. The step that reaches it is the last; null: only max_steps counts, where linear and cosine schedules end
    in any case."""
    batch_size: int = Field(8, ge=1)
    """Problems (groups) per rollout batch; episodes are this times `group_size`. `sft --from` and `--data`: episodes or
    conversations per optimizer step."""
    group_size: int = Field(16, ge=1)
    """Rollouts per problem."""
    num_minibatches: int = Field(1, ge=1)
    """Optimizer steps per rollout batch: a fixed number of mini-batches of whole groups."""
    save_steps: int = Field(20, ge=1)
    """Rollout batches from one checkpoint to the next."""
    save_total_limit: int = Field(2, ge=1)
    """Newest checkpoints that stay."""
    eval_steps: int | None = Field(None, ge=1)
    """Rollout batches from one held-out evaluation to the next; null: none."""
    eval_on_start: bool = False
    """Evaluate before the first step too: as step 0 of the metrics."""
    eval_samples: int = Field(1, ge=1, le=64)
    """Episodes per problem in these evaluations, which report the mean; one at eval_sampling.temperature=0."""
    metric_for_best_model: str | None = None
    """Metric of these evaluations, e.g. accuracy: checkpoints/best stores the weights with the highest value."""
    record_steps: int = Field(1, ge=1)
    """Rollout batches from one record of the trajectories to the next."""
    episode_timeout_s: float | None = Field(None, gt=0)
    """Seconds per episode; a slower one is ungraded. null: no limit."""
    max_off_policy_steps: int = Field(0, ge=0)
    """Batches collected ahead: batch k is sampled with the weights after step k - 1 - this value, while the learner
    takes a step. 0: every step trains on samples of the current weights. Values above 1 are not faster than 1
    (docs/explanation/reproducibility.md#batches-collected-ahead)."""
    variant: VariantConfig | None = None

    @model_validator(mode="after")
    def _evaluations_to_look_at(self) -> TrainConfig:
        if self.eval_steps is None and (self.eval_on_start or self.metric_for_best_model is not None):
            wanted = "eval_on_start" if self.eval_on_start else "metric_for_best_model"
            raise ValueError(
                f"train.{wanted}={getattr(self, wanted)} needs evaluations: set train.eval_steps, e.g. to 10"
            )
        if self.metric_for_best_model in _LOWER_IS_BETTER:
            raise ValueError(
                f"train.metric_for_best_model={self.metric_for_best_model} would keep the worst checkpoint: "
                "the highest value wins; use accuracy"
            )
        return self


class ColdStartConfig(Strict):
    """SFT examples in the form of the policy's replies, before training with rewards: from the synthetic world, or
    scripted episodes on problems of `data.train_files` that name their evidence.

    Built by training/supervised/lessons.py and scripted_episodes.py.
    """

    max_steps: int = Field(100, ge=1)
    """Optimizer steps; the learning rate falls linearly to 0 over them."""
    batch_size: int = Field(64, ge=1)
    """Examples per optimizer step."""
    insight: float = Field(0.0, ge=0, le=1)
    """Share of reading examples that save facts leading to the answer and request their names; 0 trains only the form.
    """
    learning_rate: float = Field(1e-3, gt=0)
    """Peak of the schedule."""
    warmup_steps: int = Field(10, ge=0)
    """Optimizer steps of linear warm-up."""
