"""Learning: the optimiser steps of one batch.

    Batch -> credit -> batches, one an optimiser step -> the learner's update -> metrics

Guaranteed: a function of (configuration, batch, the learner's weights); an optimiser step from which nothing can be
learnt (no segment, or no advantage other than 0) isn't taken, for even a zero gradient moves the weights, by momentum
and decay.
Not covered: publishing what was learnt (training/loop.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.config.schema import RunConfig
from palimpsest.credit.assign import assign
from palimpsest.engines.protocol import Learner, UpdateStats
from palimpsest.runs.loggers import LoggerSet
from palimpsest.training.collect import Batch
from palimpsest.training.gradients import moves
from palimpsest.training.metrics import Metrics, credit_metrics, learner_metrics


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
    steps = assign(batch.groups, config.credit, config.train.optimizer_steps, key)
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
