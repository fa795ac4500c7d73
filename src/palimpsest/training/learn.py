"""Learning: the optimiser steps of one batch.

    Batch -> credit -> batches, one an optimiser step -> the learner's update -> metrics

Guaranteed: a function of (configuration, batch, the learner's weights). An optimiser step with nothing to learn (no
segment, or no advantage other than 0) isn't taken, since momentum and decay move the weights even on a zero gradient.
The first gradient that is not finite is reported, and `MAX_SKIPPED` of them in a row end the run with the reason.
Not covered: publishing the weights (training/loop.py); dropping a gradient that is not finite, which the learner does
(`engines/protocol.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress

from palimpsest.config.schema import LossConfig, RunConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.protocol import Learner, StepBatch, UpdateStats
from palimpsest.errors import RunError
from palimpsest.notes import Note
from palimpsest.runs.loggers import LoggerSet
from palimpsest.training.collect import Batch
from palimpsest.training.step_metrics import Metrics, credit_metrics, learner_metrics

# ---- Skipped optimiser steps and gradients that are not finite -----------------------------------------------


_SHOWN = 3  # quantities that a message names


def moves(batch: StepBatch, loss: LossConfig) -> bool:
    """Whether an optimiser step on `batch` can have a gradient other than 0.

    The clipped policy gradient is 0 where every advantage is. Adam would move the weights all the same, by its momentum
    and by weight decay, so such a step is not taken. A KL or entropy term has a gradient of its own.
    """
    if loss.kl_loss_coef > 0 or loss.entropy_coeff != 0:
        return bool(batch.segments)
    return any(any(compress(row.advantages, row.segment.loss_mask)) for row in batch.segments)


MAX_SKIPPED = 10
"""Optimiser steps in a row that end the run because their gradients are not finite; fewer are skipped, with a
warning."""


@dataclass
class SkipWatch:
    """Counts optimiser steps in a row whose gradient was not finite, over rollout batches and resumes."""

    warn: Callable[[str], None]
    in_a_row: int = 0
    """Kept in checkpoints."""
    _warned: bool = field(default=False, init=False)

    def see(self, step: int, updates: Sequence[UpdateStats]) -> None:
        """Take in the optimiser steps of one rollout batch. Raises RunError, as it was before, after too many."""
        in_a_row = self.in_a_row
        for update in updates:
            in_a_row = in_a_row + 1 if update.skipped else 0
            if in_a_row >= MAX_SKIPPED:
                raise RunError(
                    f"step {step}: {in_a_row} optimiser steps in a row had a gradient that is not finite "
                    f"({reason(update)}), so nothing is learnt: lower optim.learning_rate or set optim.max_grad_norm "
                    "and begin anew"
                )
        self.in_a_row = in_a_row
        skipped = [update for update in updates if update.skipped]
        if skipped and not self._warned:
            self._warned = True
            counts = {"count": len(skipped), "updates": len(updates), "most": MAX_SKIPPED}
            self.warn(Note("gradient_not_finite", step=step, reason=reason(skipped[0]), **counts))


def reason(update: UpdateStats) -> str:
    """Which of the numbers of a skipped step are not finite.

    >>> reason(UpdateStats(loss=math.nan, token_sums={"kl": math.inf, "ratio": 1.0}))
    'loss nan, kl inf'
    >>> reason(UpdateStats(loss=0.5))
    'the loss is 0.5, its gradient overflows'
    """
    numbers = {"loss": update.loss, **update.token_sums, **update.maxima}
    wrong = [f"{name.removesuffix('_sum')} {value}" for name, value in numbers.items() if not math.isfinite(value)]
    return ", ".join(wrong[:_SHOWN]) or f"the loss is {update.loss:.3g}, its gradient overflows"


# ---- Optimiser steps of a batch ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a batch's optimiser steps have to say."""

    metrics: Metrics
    timings: Metrics
    updates: Sequence[UpdateStats] = ()
    """Of the optimiser steps that were taken or skipped for their gradient, in order."""


async def learn(batch: Batch, learner: Learner, config: RunConfig, loggers: LoggerSet) -> Learnt:
    """Give every token of `batch` its credit and take the optimiser steps.

    `policy/staleness` is the number of optimiser steps between the weights that sampled the batch and those that
    begin to learn from it: 0 where nothing is collected ahead. `sampler/logprob_gap_mean` and `_max` are then how far
    the sampler's log-probabilities are from the learner's, over the tokens of the batch's first optimiser step: after
    it the weights differ, and so do the two.
    """
    key = (config.seed, "dcpo", batch.step)
    steps = assign(batch.groups, config.credit, config.train.num_minibatches, key)
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
    """Between sampler and learner, nats, of the optimiser step that was taken with the weights that sampled."""
    gaps: Metrics = {}
    if first.tokens and "logprob_gap" in first.token_sums:
        gaps["sampler/logprob_gap_mean"] = first.token_sums["logprob_gap"] / first.tokens
    if "logprob_gap" in first.maxima:
        gaps["sampler/logprob_gap_max"] = first.maxima["logprob_gap"]
    return gaps
