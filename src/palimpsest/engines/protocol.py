"""What rollout, training and evaluation know of an engine: two protocols and the batch between them.

Standard library only, so that any layer may name these types without importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from palimpsest.types import Completion, SamplingParams, Segment


class Sampler(Protocol):
    """Tokens in, tokens out. Any number of requests may be in flight."""

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Complete one prompt.

        Raises PromptTooLong if prompt and budget exceed `max_context`, SamplerError if the engine failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class TrainSegment:
    """A segment with its credit."""

    segment: Segment
    advantages: tuple[float, ...]
    """[T] advantage of each token; ignored where the loss mask is False."""
    weights: tuple[float, ...]
    """[T] weight of each token's loss; the denominator of `aggregate` is already in it, global over the optimiser
    step, so the loss of a step is the plain sum of weight times token loss over all its segments."""


Stats = Mapping[str, float]
"""Metric name to value. Keys ending in `_sum` add up over micro-batches; others are averages or extremes."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All segments of one optimiser step, and the metrics its maker wants logged beside the learner's."""

    segments: tuple[TrainSegment, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """Turns batches into weights."""

    @property
    def version(self) -> int:
        """Optimiser steps taken."""
        ...

    def prepare(self, batches: Sequence[StepBatch]) -> None:
        """Called once per rollout batch with all its optimiser steps, before the first `forward_backward`.

        Where the loss takes its old log-probabilities from the learner (`loss.old_logprobs=recompute`), they are
        computed here, with the weights as they now are. Batches are known again by identity.
        """
        ...

    def forward_backward(self, batch: StepBatch) -> Stats:
        """Accumulate the gradient of one optimiser step, in micro-batches bounded by tokens."""
        ...

    def step(self) -> Stats:
        """Clip, update, zero the gradient. A non-finite gradient is skipped and counted, never applied."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and optimiser state as safetensors into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit."""
        ...

    def publish(self) -> int:
        """Make the current weights the sampler's; returns the version now sampled from."""
        ...
