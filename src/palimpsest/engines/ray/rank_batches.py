"""Batches of an update per rank: packed into forests and distributed by the driver, as arrays.

A token takes 4 bytes, a trained token 16 more (tuples of Python numbers: 152 in memory). Every rank takes as many
passes as the busiest one, since each pass is collective; a rank without a forest pads with two tokens of weight 0,
whose gradient is exactly 0 and which no statistic counts.

Guaranteed: each trained token is in exactly one rank's part; the same segments give the same parts.
Not covered: a forest divided among ranks.

Axes: R rows, M passes, S optimizer steps, I ids, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from palimpsest.config.schema import Layout
from palimpsest.engines.embedded.forest.layout import (
    Forest,
    Packed,
    SegmentRow,
    forest_reuse,
    pack,
    rows_of,
    with_signal,
)
from palimpsest.engines.protocol import FOREST_REUSE, StepBatch, TrainSegment, UpdateStats
from palimpsest.types import SampledSpan, Segment

PAIRS_PER_TOKEN = 16_384
"""Attention pairs that cost as much as one token: 6 times the hidden size, 21,504 in a model of 7B."""

_PADDING = TrainSegment(Segment((0, 0, 0), (SampledSpan(2, 3, 0),), (0.0,)), (0.0,), (0.0,))

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of an update."""

    number: int
    """Number of the update since the learner started; ranks at different updates would wait for each other forever."""
    passes: Int32
    """[S] passes of each optimizer step, the same on every rank."""
    rows: Int32
    """[M] rows of each pass; 0: padding."""
    places: Int32
    """[R] index of each row's segment in its step."""
    lengths: Int32
    """[R] ids of each row, the last trained one included."""
    shared: Int32
    """[R] ids in common with the row before."""
    counts: Int32
    """[R] trained tokens."""
    ids: Int32
    """[I]"""
    before: Int32
    """[N] index in its row after which a trained token follows; the next three are aligned with it."""
    advantages: Float32
    weights: Float32
    logprobs: Float32

    def forests(self, device: torch.device | str, dtype: torch.dtype) -> list[list[Forest]]:
        """Forests per optimizer step; padding has no `indices`."""
        rows = iter(self._rows())
        shared = np.split(self.shared.astype(np.int64), np.cumsum(self.rows)[:-1])
        passes: list[Forest] = []
        for count, lengths in zip(self.rows.tolist(), shared, strict=True):
            packed = tuple(next(rows) for _ in range(count))
            sizes = np.array([len(row.tokens) for row in packed], np.int64)
            forest = Packed(packed, sizes, lengths).lay_out(device, dtype) if count else padding(device, dtype)
            passes.append(forest)
        ends = np.cumsum(self.passes).tolist()
        return [passes[end - size : end] for end, size in zip(ends, self.passes.tolist(), strict=True)]

    def _rows(self) -> list[SegmentRow]:
        ids = np.split(self.ids.astype(np.int64), np.cumsum(self.lengths)[:-1])
        cut = np.cumsum(self.counts)[:-1]
        before = np.split(self.before.astype(np.int64), cut)
        columns = (self.advantages, self.weights, self.logprobs)
        advantages, weights, logprobs = (np.split(column.astype(np.float64), cut) for column in columns)
        return [
            SegmentRow(
                index=int(index),
                tokens=ids[r][:-1],
                before=before[r],
                targets=ids[r][before[r] + 1],
                advantages=advantages[r],
                weights=weights[r],
                logprobs=logprobs[r],
            )
            for r, index in enumerate(self.places)
        ]


def padding(device: torch.device | str, dtype: torch.dtype) -> Forest:
    """Forest of two tokens, one trained with weight 0, without a segment."""
    (packed,) = pack(rows_of([_PADDING], max_context=3), max_tokens=3)
    forest = packed.lay_out(device, dtype)
    return Forest(**{**{name: getattr(forest, name) for name in Forest.__slots__}, "indices": (), "counts": ()})


@dataclass(frozen=True, slots=True)
class RankPlan:
    """An update, dealt out."""

    parts: tuple[RankPart, ...]
    """One per rank."""
    metrics: Mapping[str, float]
    """Share of the ranks' estimated time spent waiting for the busiest in a pass, share of passes without a segment,
    and `FOREST_REUSE` where it applies."""


def plan(
    steps: Sequence[StepBatch],
    ranks: int,
    *,
    number: int,
    micro_batch_tokens: int,
    max_context: int,
    skips_silent: bool,
    layout: Layout = "forest",
) -> RankPlan:
    """Distribute the forests of each step over `ranks`. Raises ValueError as `forest.layout.build_forests` does."""
    dealt, reuses = [], []
    for batch in steps:
        rows = rows_of(batch.segments, max_context, with_signal(batch.segments) if skips_silent else None)
        dealt.append(deal(_enough(rows, micro_batch_tokens, ranks, layout), ranks))
        reuses += [forest_reuse(rows)] if layout == "segments" else []
    slots = [max(map(len, hands)) for hands in dealt]
    padded = [[*hand, *[None] * (size - len(hand))] for hands, size in zip(dealt, slots, strict=True) for hand in hands]
    shares = tuple(_part(number, slots, padded[rank::ranks]) for rank in range(ranks))
    spent = sum(cost(forest) for hand in padded for forest in hand if forest)
    held = ranks * sum(max(cost(f) if f else 0.0 for f in at) for hands in dealt for at in zip_longest(*hands))
    empty = sum(forest is None for hand in padded for forest in hand)
    metrics = {
        "learner/idle_share": 1 - spent / held if held else 0.0,
        "learner/padding_share": empty / max(1, ranks * sum(slots)),
    }
    return RankPlan(shares, metrics | ({FOREST_REUSE: fmean(reuses)} if reuses else {}))


def _enough(rows: Sequence[SegmentRow], max_tokens: int, ranks: int, layout: Layout) -> list[Packed]:
    """Forests of `max_tokens`, or smaller ones while ranks outnumber forests and rows can be split."""
    packed = pack(rows, max_tokens, layout)
    while len(packed) < min(ranks, len(rows)) and max_tokens > 1:
        max_tokens = min(max_tokens, max(forest.physical_tokens for forest in packed)) // 2
        packed = pack(rows, max(1, max_tokens), layout)
    return packed


def deal(forests: Sequence[Packed], ranks: int) -> list[list[Packed]]:
    """Forests of each rank; the most expensive is assigned first, always to the rank with the least work."""
    hands: list[list[Packed]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for forest in sorted(forests, key=cost, reverse=True):
        least = min(range(ranks), key=lambda rank: (load[rank], rank))
        hands[least].append(forest)
        load[least] += cost(forest)
    return hands


def cost(forest: Packed) -> float:
    """Cost in tokens: the computed tokens plus their attention."""
    pairs = (forest.lengths * (forest.lengths + 1) - forest.shared * (forest.shared + 1)) / 2
    return float(forest.physical_tokens + pairs.sum() / PAIRS_PER_TOKEN)


def _part(number: int, passes: Sequence[int], hands: Sequence[Sequence[Packed | None]]) -> RankPart:
    forests = [forest for hand in hands for forest in hand]
    rows = [row for forest in forests if forest for row in forest.rows]

    def column(name: str) -> Float32:
        return np.concatenate([np.zeros(0), *(getattr(row, name) for row in rows)]).astype(np.float32)

    ids = [np.append(row.tokens, row.targets[-1]) for row in rows]
    return RankPart(
        number=number,
        passes=np.array(passes, np.int32),
        rows=np.array([len(forest.rows) if forest else 0 for forest in forests], np.int32),
        places=np.array([row.index for row in rows], np.int32),
        lengths=np.array([len(tokens) for tokens in ids], np.int32),
        shared=np.concatenate([np.zeros(0), *(forest.shared for forest in forests if forest)]).astype(np.int32),
        counts=np.array([len(row.before) for row in rows], np.int32),
        ids=np.concatenate([np.zeros(0), *ids]).astype(np.int32),
        before=np.concatenate([np.zeros(0), *(row.before for row in rows)]).astype(np.int32),
        advantages=column("advantages"),
        weights=column("weights"),
        logprobs=column("logprobs"),
    )


_SUMMED = ("loss", "tokens", "segments", "logical_tokens", "physical_tokens")


def merged(stats: Sequence[UpdateStats], extra: Mapping[str, float]) -> UpdateStats:
    """One optimizer step of all ranks.

    >>> one = merged([UpdateStats(loss=0.5, tokens=3, seconds=1.0), UpdateStats(loss=0.25, seconds=2.0)], {})
    >>> one.loss, one.tokens, one.seconds
    (0.75, 3, 2.0)
    """
    names = dict.fromkeys(name for part in stats for name in part.token_sums)
    largest = dict.fromkeys(name for part in stats for name in part.maxima)
    return replace(
        stats[0],
        **{name: sum(getattr(part, name) for part in stats) for name in _SUMMED},
        token_sums={name: sum(part.token_sums.get(name, 0.0) for part in stats) for name in names},
        maxima={name: max(part.maxima[name] for part in stats if name in part.maxima) for name in largest},
        seconds=max(part.seconds for part in stats),
        extra=dict(extra),
    )
