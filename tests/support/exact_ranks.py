"""Ranks and one process in float64, in which rounding is far below what any fault of a reduction would be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.engines.ray import sharding
from palimpsest.engines.ray.rank_batches import RankPart
from support.forests import exact
from support.ranks import Case, compute


def compute_exactly(rank: int, cases: dict[str, Case], out: Path) -> None:
    """`compute` with weights, gradients, sums over ranks and moments in float64."""
    with pytest.MonkeyPatch.context() as patch:
        _in_float64(patch)
        compute(rank, cases, out, saves=False)


def _in_float64(patch: pytest.MonkeyPatch) -> None:
    skeleton, with_adapters, forests = sharding.skeleton, sharding._with_adapters, RankPart.forests

    def doubled(*arguments: Any) -> tuple[Any, dict[str, Any]]:
        model, drawn = with_adapters(*arguments)
        return model.double(), drawn  # adapters are drawn in float32, as one process does

    patch.setattr(sharding, "skeleton", lambda *arguments: exact(skeleton(*arguments)))
    patch.setattr(sharding, "_with_adapters", doubled)
    patch.setattr(sharding, "computed_in", lambda *_: torch.float64)
    patch.setattr(RankPart, "forests", lambda part, device, _: forests(part, device, torch.float64))
    patch.setattr(
        sharding, "MixedPrecisionPolicy", lambda **given: MixedPrecisionPolicy(**given | {"reduce_dtype": None})
    )


def rounded(case: Case) -> Case:
    """With numbers that float32 holds, as ranks are sent them."""
    return replace(case, updates=tuple(tuple(_rounded(step) for step in update) for update in case.updates))


def _rounded(step: StepBatch) -> StepBatch:
    return replace(step, segments=tuple(_in_float32(item) for item in step.segments))


def _in_float32(item: TrainSegment) -> TrainSegment:
    logprobs, advantages, weights = (
        tuple(float(np.float32(number)) for number in numbers)
        for numbers in (item.segment.logprobs, item.advantages, item.weights)
    )
    return replace(item, segment=replace(item.segment, logprobs=logprobs), advantages=advantages, weights=weights)
