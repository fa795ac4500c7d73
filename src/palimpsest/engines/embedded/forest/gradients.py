"""Gradients of forests, shared by a learner of one process and a rank among many.

Guaranteed: the gradients of forests add up, each collected before the next is computed; a forest without segments
(padding, so that all ranks take the same number of passes) counts in no sum.
Not covered: building forests (layout.py), a model's forward (the caller's `Forward`), using the gradient (optim.py).

Axes: N trained tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from palimpsest.config.schema import LossConfig
from palimpsest.engines.embedded.forest.layout import Forest, build_forests, unweighted
from palimpsest.engines.embedded.model_loading import recomputing
from palimpsest.engines.losses import nll_loss, policy_loss
from palimpsest.engines.protocol import Objective, UpdateStats

OldLogprobs = dict[int, Tensor]
"""Segment index in the step to [N] nats of its trained tokens."""

Forward = Callable[[Forest, bool], tuple[Tensor, Tensor]]
"""[N] log-probabilities and [N] entropies of a forest's trained tokens; True: of the run's initial model."""


def skips_silent(objective: Objective, loss: LossConfig) -> bool:
    """True if a segment without an advantage has no gradient."""
    return objective == "policy" and loss.kl_loss_coef == 0 and loss.entropy_coeff == 0


@torch.no_grad()
def logprobs_of(forests: Sequence[Forest], forward: Forward) -> OldLogprobs:
    """Log-probabilities of each segment's trained tokens under the current weights."""
    result: OldLogprobs = {}
    for forest in forests:
        logprobs = forward(forest, False)[0]
        if forest.indices:
            result |= zip(forest.indices, logprobs.split(forest.counts), strict=True)
    return result


def scores_of(ids: Sequence[int], forward: Forward, max_context: int, device: torch.device) -> tuple[float, ...]:
    """[T - 1] nats of each of `ids` after its predecessors."""
    forests = build_forests([unweighted(ids)], len(ids), max_context, device)
    (logprobs,) = logprobs_of(forests, forward).values()
    return tuple(logprobs.double().tolist())


def largest_gaps(learner: Tensor, sampler: Tensor) -> dict[str, float]:
    """`logprob_gap`: the largest difference of log-probabilities [N]; `logprob_drop`: how far the learner's is below
    the sampler's at most, among tokens that the sampler gave over half (martingale 0.2: a mean hides single ones).

    >>> largest_gaps(torch.tensor([-0.1, -2.5, -9.0]), torch.tensor([-0.1, -0.5, -1.0]))
    {'logprob_gap': 8.0, 'logprob_drop': 2.0}
    """
    gap = sampler - learner
    likely = gap[sampler > math.log(0.5)]
    return {"logprob_gap": float(gap.abs().max())} | ({"logprob_drop": float(likely.max())} if len(likely) else {})


class ForestGradients:
    """Accumulates gradients in a model's parameters."""

    def __init__(self, model: Any, objective: Objective, loss: LossConfig) -> None:
        self._model, self._objective, self._config = model, objective, loss

    def accumulate(self, forests: Sequence[Forest], forward: Forward, old: OldLogprobs | None = None) -> UpdateStats:
        """Add the gradient of all `forests`; `old`: the ratio's old log-probabilities, None: those computed here."""
        started = time.perf_counter()
        sums: dict[str, float] = {}
        maxima: dict[str, float] = {}
        loss = 0.0
        recomputing(self._model)
        try:
            for forest in forests:
                part, metrics, largest = self._micro_step(forest, forward, old)
                if not forest.indices:
                    continue
                for name, value in metrics.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
                loss += float(part)
                maxima |= {name: max(value, maxima.get(name, value)) for name, value in largest.items()}
        finally:
            self._model.eval()
        counted = [forest for forest in forests if forest.indices]
        return UpdateStats(
            loss=loss,
            tokens=sum(forest.targets.numel() for forest in counted),
            segments=sum(len(forest.indices) for forest in counted),
            logical_tokens=sum(forest.logical_tokens for forest in counted),
            physical_tokens=sum(forest.physical_tokens for forest in counted),
            token_sums=sums,
            maxima=maxima,
            seconds=time.perf_counter() - started,
        )

    def _micro_step(
        self, forest: Forest, forward: Forward, old: OldLogprobs | None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
        logprobs, entropy = forward(forest, False)
        if self._objective == "nll":
            loss, sums = nll_loss(logprobs=logprobs, weights=forest.weights)
            sums["entropy"] = entropy.sum()
        else:
            reference = None
            if self._config.kl_loss_coef > 0:
                with torch.no_grad():
                    reference = forward(forest, True)[0]
            loss, sums = policy_loss(
                logprobs=logprobs,
                old_logprobs=self._before(forest, logprobs, old),
                sampler_logprobs=forest.sampler_logprobs,
                advantages=forest.advantages,
                weights=forest.weights,
                ref_logprobs=reference,
                entropy=entropy,
                config=self._config,
            )
        loss.backward()
        if self._objective == "nll":
            return loss.detach(), sums, {}  # no sampler wrote these tokens
        recomputed = self._config.old_logprobs == "recompute"
        learner = self._before(forest, logprobs, old) if recomputed else logprobs.detach()  # as losses.py's mean
        return loss.detach(), sums, largest_gaps(learner, forest.sampler_logprobs)

    def _before(self, forest: Forest, logprobs: Tensor, old: OldLogprobs | None) -> Tensor:
        """[N] old log-probabilities of the ratio."""
        if self._config.old_logprobs == "sampler":
            return forest.sampler_logprobs
        if old is None or not forest.indices:
            return logprobs.detach()
        return torch.cat([old[i] for i in forest.indices])
