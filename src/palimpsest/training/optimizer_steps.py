"""Optimizer steps of a batch: credit for every token, then one update of the learner per mini-batch.

An optimizer step without signal (no segment, or no advantage other than 0) is skipped, since momentum and decay move
the weights even on a zero gradient. The learner drops a gradient that is not finite (`engines/protocol.py`); the run
reports the first one and ends with the reason after `MAX_SKIPPED` in a row.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from palimpsest.config.schema import LossConfig, RunConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.protocol import Learner, StepBatch, UpdateStats
from palimpsest.errors import RunError
from palimpsest.notes import Note
from palimpsest.runs.loggers import LoggerSet
from palimpsest.training.collect import Batch
from palimpsest.training.step_metrics import Metrics, credit_metrics, learner_metrics

_SHOWN = 3  # quantities that a message names


def moves(batch: StepBatch, loss: LossConfig) -> bool:
    """True if an optimizer step on `batch` can have a gradient other than 0.

    The clipped policy gradient is 0 if every advantage is. Adam would still move the weights, by momentum and weight
    decay, so such a step is skipped. A KL or entropy term has a separate gradient.
    """
    if loss.kl_loss_coef > 0 or loss.entropy_coeff != 0:
        return bool(batch.segments)
    return any(any(row.advantages) for row in batch.segments)


MAX_SKIPPED = 10
"""Optimizer steps in a row with gradients that are not finite that end the run; fewer are skipped, with a warning."""


@dataclass
class SkipWatch:
    """Counts optimizer steps in a row whose gradient was not finite, over rollout batches and resumes."""

    warn: Callable[[str], None]
    in_a_row: int = 0
    """Saved in checkpoints."""
    _warned: bool = field(default=False, init=False)

    def see(self, step: int, updates: Sequence[UpdateStats]) -> None:
        """Count the optimizer steps of one rollout batch. Raises RunError, with its state unchanged, after too many."""
        in_a_row = self.in_a_row
        for update in updates:
            in_a_row = in_a_row + 1 if update.skipped else 0
            if in_a_row >= MAX_SKIPPED:
                raise RunError(
                    f"step {step}: {in_a_row} optimizer steps in a row had a gradient that is not finite "
                    f"({reason(update)}): lower optim.learning_rate or set optim.max_grad_norm, and start over"
                )
        self.in_a_row = in_a_row
        skipped = [update for update in updates if update.skipped]
        if skipped and not self._warned:
            self._warned = True
            counts = {"count": len(skipped), "updates": len(updates), "most": MAX_SKIPPED}
            self.warn(Note("gradient_not_finite", step=step, reason=reason(skipped[0]), **counts))


def reason(update: UpdateStats) -> str:
    """Values of a skipped step that are not finite.

    >>> reason(UpdateStats(loss=math.nan, token_sums={"kl": math.inf, "ratio": 1.0}))
    'loss nan, kl inf'
    >>> reason(UpdateStats(loss=0.5))
    'the loss is 0.5, its gradient overflows'
    """
    numbers = {"loss": update.loss, **update.token_sums, **update.maxima}
    wrong = [f"{name.removesuffix('_sum')} {value}" for name, value in numbers.items() if not math.isfinite(value)]
    return ", ".join(wrong[:_SHOWN]) or f"the loss is {update.loss:.3g}, its gradient overflows"


@dataclass(frozen=True, slots=True)
class Learnt:
    metrics: Metrics
    timings: Metrics
    updates: Sequence[UpdateStats] = ()
    """Optimizer steps taken, or skipped for their gradient, in order."""


async def learn(batch: Batch, learner: Learner, config: RunConfig, loggers: LoggerSet) -> Learnt:
    """Assign credit to every token of `batch` and take the optimizer steps.

    `policy/staleness` is the number of optimizer steps between the weights that sampled the batch and the weights that
    start to learn from it: 0 unless batches are collected ahead. At 0, `sampler/logprob_gap_mean`, `_max` and
    `sampler/logprob_drop_max` (`largest_gaps` in engines/embedded/forest/gradients.py) compare the log-probabilities of
    sampler and learner, over the tokens of the batch's first optimizer step: later steps have other weights.
    """
    key = (config.seed, "dcpo", batch.step)
    steps = await asyncio.to_thread(assign, batch.groups, config.credit, config.train.num_minibatches, key)
    full = [step for step in steps if moves(step, config.loss)]
    staleness = float(learner.version - batch.version)
    loggers.progress("learn", 0, len(full))
    start = time.perf_counter()
    updates = await learner.update(full) if full else []
    seconds = time.perf_counter() - start
    metrics, timings = learner_metrics(updates)
    metrics |= credit_metrics(steps)
    metrics |= _gap(updates[0]) if updates and not staleness else {}
    metrics |= {"policy/staleness": staleness, "optim/steps_left_out": float(len(steps) - len(full))}
    tokens = metrics.get("policy/logical_tokens", 0.0)
    return Learnt(metrics, {**timings, "learn_s": seconds, "learn_tokens_per_s": tokens / seconds}, updates)


def _gap(first: UpdateStats) -> Metrics:
    """Difference between sampler and learner, in nats, at the optimizer step with the sampling weights."""
    gaps: Metrics = {}
    if first.tokens and "logprob_gap" in first.token_sums:
        gaps["sampler/logprob_gap_mean"] = first.token_sums["logprob_gap"] / first.tokens
    gaps |= {f"sampler/{name}_max": value for name, value in first.maxima.items() if name.startswith("logprob_")}
    return gaps
