"""Cuts a step's segments into micro-batches of similar length and lays each out as arrays.

Rows are padded on the right: with causal attention nothing real ever sees the padding, so no mask is needed.
A row ends before its last trained token, which is predicted but never read.

Axes: B rows, S tokens of the longest row, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palimpsest.engines.protocol import TrainSegment


@dataclass(frozen=True, slots=True)
class MicroBatch:
    indices: tuple[int, ...]
    """[B] place of each row in the step's segments."""
    input_ids: Tensor
    """[B, S]"""
    predicts: Tensor
    """[N] place in the flattened [B * S] input after which a trained token follows."""
    targets: Tensor
    """[N] trained ids; the next four are aligned with it."""
    advantages: Tensor
    weights: Tensor
    sampler_logprobs: Tensor
    counts: tuple[int, ...]
    """[B] trained tokens of each row."""
    real_tokens: int

    @property
    def padding_share(self) -> float:
        """Share of `input_ids` that is padding."""
        return 1 - self.real_tokens / self.input_ids.numel()


def trained_positions(item: TrainSegment) -> np.ndarray:
    """Places of the trained tokens; raises ValueError for one that has no context."""
    places = np.flatnonzero(np.array(item.segment.loss_mask, np.bool_))
    if len(places) and places[0] == 0:
        raise ValueError("the first token of a segment can't be trained: nothing stands before it")
    return places


def with_signal(segments: Sequence[TrainSegment]) -> list[int]:
    """Places of the segments with a trained token whose advantage isn't 0; of the shortest if there is none.

    A clipped policy gradient is exactly 0 for the others. One is always left, so that even a step without a signal
    has a gradient (of zeros) and metrics.
    """
    trained = [index for index, item in enumerate(segments) if any(item.segment.loss_mask)]
    found = [
        i
        for i in trained
        if any(a and m for a, m in zip(segments[i].advantages, segments[i].segment.loss_mask, strict=True))
    ]
    return found or sorted(trained, key=lambda i: len(segments[i].segment.token_ids))[:1]


def micro_batches(
    segments: Sequence[TrainSegment],
    max_tokens: int,
    max_context: int,
    device: torch.device,
    chosen: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """Layouts that hold every segment with a trained token exactly once, shortest first; of the `chosen` if given.

    B * S stays within `max_tokens` except where a single row is longer. Raises ValueError for a segment longer than
    the model's window.
    """
    lengths: list[tuple[int, int]] = []
    for index in range(len(segments)) if chosen is None else chosen:
        places = trained_positions(segments[index])
        if not len(places):
            continue
        if places[-1] + 1 > max_context:
            raise ValueError(f"segment {index} has {places[-1] + 1} tokens, the model's window holds {max_context}")
        lengths.append((int(places[-1]), index))
    groups: list[list[int]] = []
    for length, index in sorted(lengths):
        if not groups or length * (len(groups[-1]) + 1) > max_tokens:
            groups.append([])
        groups[-1].append(index)
    return [_lay_out(segments, group, device) for group in groups]


def _lay_out(segments: Sequence[TrainSegment], group: list[int], device: torch.device) -> MicroBatch:
    places = [trained_positions(segments[i]) for i in group]
    width = max(int(p[-1]) for p in places)
    ids = np.zeros((len(group), width), np.int64)
    columns: dict[str, list[np.ndarray]] = {"targets": [], "advantages": [], "weights": [], "logprobs": []}
    predicts = []
    for row, (index, where) in enumerate(zip(group, places, strict=True)):
        item = segments[index]
        tokens = np.array(item.segment.token_ids, np.int64)
        ids[row, : where[-1]] = tokens[: where[-1]]
        predicts.append(row * width + where - 1)
        columns["targets"].append(tokens[where])
        columns["advantages"].append(np.array(item.advantages, np.float32)[where])
        columns["weights"].append(np.array(item.weights, np.float32)[where])
        columns["logprobs"].append(np.array(item.segment.logprobs, np.float32)[where])

    def flat(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return MicroBatch(
        indices=tuple(group),
        input_ids=torch.from_numpy(ids).to(device),
        predicts=flat(predicts),
        targets=flat(columns["targets"]),
        advantages=flat(columns["advantages"]),
        weights=flat(columns["weights"]),
        sampler_logprobs=flat(columns["logprobs"]),
        counts=tuple(len(p) for p in places),
        real_tokens=sum(int(p[-1]) for p in places),
    )
