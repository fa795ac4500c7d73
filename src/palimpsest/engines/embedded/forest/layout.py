"""Packs segments into prefix forests: each distinct prefix token of a forest is laid out, and computed, once.

What is shared is the computation; what is trained stays per segment. Where segments part, one place predicts several
next tokens, and a token sampled in two trajectories is trained twice, with each one's own advantage:

    segments    1 2 3 4     1 2 5     (4 and 5 are trained)
    places      1 2 3   (a row ends before its last trained token)
    predicts    the place of 3 predicts 4, that of 2 predicts 5

Guaranteed: every trained token is predicted exactly once, at the place that holds its very context; a forest is
within the token budget unless a single segment is longer; forests over the budget are cut where least is computed
twice. Not covered: sharing over micro-batches, and of anything but a prefix.

Axes: T places, U places that predict, N trained tokens, R segments, K nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.engines.embedded.forest.batches import Row, row_of
from palimpsest.engines.embedded.forest.trie import Ids, cut, in_order, lay_out, shared_lengths
from palimpsest.engines.protocol import TrainSegment

CUT_OVERHEAD = 64  # tokens whose computation costs as much as one more pass
MIN_SHARED = 8  # a shorter common prefix is computed again: attending to it apart would cost more


@dataclass(frozen=True, slots=True)
class Nodes:
    """Runs of places without a branch, in depth-first order."""

    starts: Ids
    """[K]"""
    ends: Ids
    """[K] one past the last place of the run."""
    exits: Ids
    """[K] one past the last place of its subtree; the descendants of a node are [end, exit)."""

    @classmethod
    def of(cls, owner: Ids, exits: Ids) -> Nodes:
        """Of places with their row [T] and exits [T].

        >>> nodes = Nodes.of(np.array([0, 0, 0, 1, 2]), np.array([5, 4, 3, 4, 5]))
        >>> nodes.starts.tolist(), nodes.ends.tolist(), nodes.exits.tolist()
        ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [5, 4, 3, 4, 5])
        """
        begins = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(exits, prepend=-1) != 0))
        return cls(begins, np.append(begins[1:], len(exits)), exits[begins])


@dataclass(frozen=True, slots=True)
class Forest:
    """One micro-batch. Place j is seen from place i if j <= i < exits[j]."""

    indices: tuple[int, ...]
    """[R] place of each segment in the step's segments."""
    input_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] depth in the tree: the token's position in every segment that has it."""
    exits: Tensor
    """[T] one past the last place that descends from it."""
    nodes: Nodes
    places: Tensor
    """[U] places after which a trained token follows, ascending."""
    predicts: Tensor
    """[N] index into `places` for each trained token; segment after segment, as the next four."""
    targets: Tensor
    advantages: Tensor
    weights: Tensor
    sampler_logprobs: Tensor
    counts: tuple[int, ...]
    """[R] trained tokens of each segment."""
    logical_tokens: int
    """Tokens of the segments on their own, each as far as it is read."""

    @property
    def physical_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def reuse(self) -> float:
        """Segments' tokens for each computed one."""
        return self.logical_tokens / self.physical_tokens


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forest, in lexicographic order, before each token has its place."""

    rows: tuple[Row, ...]
    lengths: Ids
    """[R] tokens of each row that are read."""
    shared: Ids
    """[R] those of them that the row before has too, from the start; 0 for the first."""

    @property
    def physical_tokens(self) -> int:
        return int((self.lengths - self.shared).sum())

    def lay_out(self, device: torch.device | str, dtype: torch.dtype) -> Forest:
        return _forest(list(self.rows), self.lengths, self.shared, torch.device(device), dtype)


def build_forests(
    segments: Sequence[TrainSegment],
    max_tokens: int,
    max_context: int,
    device: torch.device | str = "cpu",
    chosen: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    min_shared: int = MIN_SHARED,
) -> list[Forest]:
    """Forests that hold every segment with a trained token exactly once; of the `chosen` if given.

    `max_tokens` bounds the places of a forest; `dtype` is that of advantages, weights and log-probabilities. Raises
    ValueError for a segment longer than the model's window (`max_context`) or trained at its first token.
    """
    packed = pack(rows_of(segments, max_context, chosen), max_tokens, min_shared)
    return [each.lay_out(device, dtype) for each in packed]


def rows_of(segments: Sequence[TrainSegment], max_context: int, chosen: Sequence[int] | None = None) -> list[Row]:
    """The segments with a trained token, or the `chosen` of them, in lexicographic order. Raises as `build_forests`."""
    found = (row_of(segments[i], i) for i in (range(len(segments)) if chosen is None else chosen))
    rows = [row for row in found if row is not None]
    for row in rows:
        if len(row.tokens) + 1 > max_context:
            raise ValueError(
                f"segment {row.index} has {len(row.tokens) + 1} tokens, the model's window holds {max_context}"
            )
    return [rows[i] for i in in_order([row.tokens for row in rows])]


def pack(rows: Sequence[Row], max_tokens: int, min_shared: int = MIN_SHARED) -> list[Packed]:
    """Forests of at most `max_tokens` places, if no row alone has more, of rows in lexicographic order."""
    if not rows:
        return []
    shared = shared_lengths([row.tokens for row in rows])
    shared[shared < min_shared] = 0
    lengths = np.array([len(row.tokens) for row in rows], np.int64)
    begins = cut(lengths, shared, max_tokens, CUT_OVERHEAD)
    shared[begins] = 0
    return [
        Packed(tuple(rows[a:b]), lengths[a:b], shared[a:b])
        for a, b in zip(begins, [*begins[1:], len(rows)], strict=True)
    ]


def _forest(rows: list[Row], lengths: Ids, shared: Ids, device: torch.device, dtype: torch.dtype) -> Forest:
    trie = lay_out(lengths, shared)
    predicting = np.concatenate([places[row.before] for row, places in zip(rows, trie.places, strict=True)])
    places, predicts = np.unique(predicting, return_inverse=True)
    ids = np.concatenate([row.tokens[keep:] for row, keep in zip(rows, shared, strict=True)])

    def put(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def column(name: str) -> Tensor:
        whole = put(np.concatenate([getattr(row, name) for row in rows]))
        return whole.to(dtype) if whole.is_floating_point() else whole

    return Forest(
        indices=tuple(row.index for row in rows),
        input_ids=put(ids),
        positions=put(trie.depths),
        exits=put(trie.exits),
        nodes=Nodes.of(trie.owner, trie.exits),
        places=put(places),
        predicts=put(predicts),
        targets=column("targets"),
        advantages=column("advantages"),
        weights=column("weights"),
        sampler_logprobs=column("logprobs"),
        counts=tuple(len(row.before) for row in rows),
        logical_tokens=int(lengths.sum()),
    )
