"""Loss aggregation: the weight of every trained token under the four values of `credit.agg_mode`.

The loss of an optimizer step is the sum of w * L over its trained tokens. The counts in w are over the whole step,
never over a rank or a micro-batch:

    token        1 / (tokens of the step)                       MemAgent; the token mean of DAPO's code
    segment      1 / (segments * tokens of the segment)         GRPO's sequence mean over rows, as verl has it
    trajectory   1 / (trajectories * tokens of the trajectory)  GRPO's sample mean (arXiv 2402.03300, eq. 3)
    prompt       1 / (groups * tokens of the group)             DAPO's eq. 8 in each group, then the mean over
                                                                groups: ScaleRL (arXiv 2510.13786)

All weights of a step add up to 1. A trajectory weighs more under `token` if it has more tokens, and under `segment` if
it has more segments; under `trajectory` all weigh the same.

Guaranteed: a segment, trajectory or group without a trained token has no weight and does not count. Under `trajectory`
and `prompt` the weights don't depend on the cuts between segments.
Not covered: division by a constant (Dr. GRPO, arXiv 2503.20783), or `token` with step size proportional to tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from palimpsest.engines.protocol import TrainSegment
from palimpsest.types import Segment

Aggregate = Literal["token", "segment", "trajectory", "prompt"]


@dataclass(frozen=True, slots=True)
class CreditedSegment:
    """A segment, the advantages of its N trained tokens, and its trajectory and group."""

    segment: Segment
    advantages: tuple[float, ...]
    """[N]"""
    trajectory: Hashable
    """Any key, the same for all segments of one trajectory and for no others of the step."""
    group: Hashable
    """Any key, the same for all segments of one group."""


def weigh(rows: Sequence[CreditedSegment], aggregate: Aggregate) -> tuple[TrainSegment, ...]:
    """The segments of one optimizer step with their weights, in order.

    Two trajectories of one group, one with two segments of 1 and 3 tokens, the other with one of 2:

    >>> from palimpsest.types import SampledSpan
    >>> def row(tokens, trajectory):
    ...     segment = Segment((0,) * (1 + tokens), (SampledSpan(1, 1 + tokens, 0),), (0.0,) * tokens)
    ...     return CreditedSegment(segment, (1.0,) * tokens, trajectory, "g")
    >>> rows = [row(1, "a"), row(3, "a"), row(2, "b")]
    >>> modes = ("token", "segment", "trajectory")
    >>> {mode: [round(s.weights[-1], 3) for s in weigh(rows, mode)] for mode in modes}
    {'token': [0.167, 0.167, 0.167], 'segment': [0.333, 0.111, 0.167], 'trajectory': [0.125, 0.125, 0.25]}
    """
    keys = [_key(number, row, aggregate) for number, row in enumerate(rows)]
    counts = [len(row.advantages) for row in rows]
    tokens: Counter[Hashable] = Counter()
    for key, count in zip(keys, counts, strict=True):
        if count:
            tokens[key] += count
    return tuple(
        TrainSegment(row.segment, row.advantages, (1.0 / (len(tokens) * tokens[key]),) * count if count else ())
        for row, key, count in zip(rows, keys, counts, strict=True)
    )


def _key(number: int, row: CreditedSegment, aggregate: Aggregate) -> Hashable:
    """The unit whose tokens share its weight equally; every unit of a step weighs the same."""
    keys = {"token": None, "segment": number, "trajectory": row.trajectory, "prompt": row.group}
    return keys[aggregate]
