"""What of a step's segments is computed: the tokens each one needs, and what is trained of it.

A row ends before its last trained token, which is predicted but never read.

Axes: S tokens of a row, M trained tokens of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from palimpsest.engines.protocol import TrainSegment


@dataclass(frozen=True, slots=True)
class Row:
    """One segment as arrays."""

    index: int
    """Its place in the step's segments."""
    tokens: NDArray[np.int64]
    """[S] the tokens that are read."""
    before: NDArray[np.int64]
    """[M] place in `tokens` after which a trained token follows; the next four are aligned with it."""
    targets: NDArray[np.int64]
    advantages: NDArray[np.float64]
    weights: NDArray[np.float64]
    logprobs: NDArray[np.float64]


def row_of(item: TrainSegment, index: int) -> Row | None:
    """The row of a segment, None if nothing of it is trained.

    Raises ValueError for a trained token without context.
    """
    segment = item.segment
    mask = segment.loss_mask
    where = np.flatnonzero(np.frombuffer(bytes(mask), np.bool_))
    if not len(where):
        return None
    if where[0] == 0:
        raise ValueError(f"segment {index}: its first token can't be trained, nothing stands before it")
    tokens = np.fromiter(segment.token_ids, np.int64, len(mask))

    def trained(values: Sequence[float]) -> NDArray[np.float64]:
        return np.fromiter(compress(values, mask), np.float64, len(where))

    return Row(
        index=index,
        tokens=tokens[: where[-1]],
        before=where - 1,
        targets=tokens[where],
        advantages=trained(item.advantages),
        weights=trained(item.weights),
        logprobs=trained(segment.logprobs),
    )


def with_signal(segments: Sequence[TrainSegment]) -> list[int]:
    """Places of the segments with a trained token whose advantage isn't 0; of the shortest if there is none.

    A clipped policy gradient is exactly 0 for the others. One is always left, so that even a step without a signal
    has a gradient (of zeros) and metrics.
    """
    trained = [index for index, item in enumerate(segments) if any(item.segment.loss_mask)]
    found = [i for i in trained if any(compress(segments[i].advantages, segments[i].segment.loss_mask))]
    return found or sorted(trained, key=lambda i: len(segments[i].segment.token_ids))[:1]
