"""Prefix forest layout: packs segments so that each distinct prefix token is computed once.

The computation is shared; training stays per segment. At a branch one place predicts several next tokens; a token
sampled in two trajectories is trained twice, with the advantage of each:

    segments    1 2 3 4     1 2 5     (4 and 5 are trained)
    places      1 2 3   (a row ends before its last trained token)
    predicts    the place of 3 predicts 4, that of 2 predicts 5

Lexicographic order of the rows is the depth-first order of their trie, so the layout follows from the prefix each row
shares with the previous one (`shared`): a row adds only later tokens. No loop runs over tokens.

Guaranteed: every trained token is predicted exactly once, at the place of its context. Within a tree every distinct
prefix has one place, and the descendants of a token are the places from it up to its exit. The same rows give the same
layout, in any order. A forest is within the token budget unless a single segment is longer; larger forests are cut
where the least is computed twice.
Not covered: sharing across micro-batches, or of other parts than a prefix from the first token.

Axes: T places, U places that predict, N trained tokens, R segments (rows), K nodes, S tokens of a row, M trained tokens
of a row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.config.schema import Layout
from palimpsest.engines.protocol import TrainSegment
from palimpsest.types import SampledSpan, Segment

# ---- Rows: the computed and the trained tokens of each segment -----------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment as arrays."""

    index: int
    """Index in the step's segments."""
    tokens: NDArray[np.int64]
    """[S] input tokens."""
    before: NDArray[np.int64]
    """[M] index in `tokens` before each trained token; the next four are aligned with it."""
    targets: NDArray[np.int64]
    advantages: NDArray[np.float64]
    weights: NDArray[np.float64]
    logprobs: NDArray[np.float64]


def row_of(item: TrainSegment, index: int) -> SegmentRow | None:
    """The row of a segment, None if none of its tokens is trained.

    Raises ValueError for a trained token without context.
    """
    segment = item.segment
    if not segment.logprobs:
        return None
    where = np.concatenate([np.arange(span.start, span.end) for span in segment.sampled])
    if where[0] == 0:
        raise ValueError(f"segment {index}: its first token has no context, so it can't be trained")
    tokens = as_array(segment.token_ids, np.int64)
    return SegmentRow(
        index=index,
        tokens=tokens[: where[-1]],
        before=where - 1,
        targets=tokens[where],
        advantages=as_array(item.advantages, np.float64),
        weights=as_array(item.weights, np.float64),
        logprobs=as_array(segment.logprobs, np.float64),
    )


def as_array(values: Sequence[float], dtype: type[np.int64 | np.float64]) -> NDArray[Any]:
    """Read-only array, in a third of the time of np.array.

    >>> as_array((1, 2), np.int64), as_array((0.5,), np.float64)
    (array([1, 2]), array([0.5]))
    """
    kind = "q" if dtype is np.int64 else "d"
    return np.frombuffer(struct.Struct(f"{len(values)}{kind}").pack(*values), dtype)


def unweighted(ids: Sequence[int]) -> TrainSegment:
    """Segment in which all tokens but the first are trained, with weight 0."""
    zeros = (0.0,) * (len(ids) - 1)
    return TrainSegment(Segment(tuple(ids), (SampledSpan(1, len(ids), 0),), zeros), zeros, zeros)


def with_signal(segments: Sequence[TrainSegment]) -> list[int]:
    """Indices of the segments with a trained token of non-zero advantage; of the shortest segment if there is none.

    A clipped policy gradient is exactly 0 for other segments. At least one remains, so that a step without a signal
    also has a gradient (of zeros) and metrics.
    """
    trained = [index for index, item in enumerate(segments) if item.weights]
    selected = [i for i in trained if any(segments[i].advantages)]
    return selected or sorted(trained, key=lambda i: len(segments[i].segment.token_ids))[:1]


# ---- Trie of token rows, in depth-first order ----------------------------------------------------------------


Ids = NDArray[np.int64]


def in_order(rows: Sequence[Ids]) -> list[int]:
    """Indices of `rows` in lexicographic order, prefixes first, equal rows by index.

    >>> in_order([np.array([5, 1]), np.array([2, 300, 7]), np.array([2, 300]), np.array([2, 4])])
    [3, 2, 1, 0]
    """
    keys = [row.astype(">i8").tobytes() for row in rows]  # big-endian bytes compare like the ids
    return sorted(range(len(rows)), key=lambda i: (keys[i], i))


def shared_lengths(rows: Sequence[Ids]) -> Ids:
    """[R] length of the prefix that each row shares with the previous one; 0 for the first.

    >>> shared_lengths([np.array([1, 2]), np.array([1, 2, 3]), np.array([1, 4]), np.array([7])]).tolist()
    [0, 2, 1, 0]
    """
    shared = np.zeros(len(rows), np.int64)
    for r in range(1, len(rows)):
        left, right = rows[r - 1], rows[r]
        size = min(len(left), len(right))
        differs = left[:size] != right[:size]
        first = int(differs.argmax()) if size else 0
        shared[r] = first if size and differs[first] else size
    return shared


def cut(lengths: Ids, shared: Ids, budget: int, overhead: int) -> list[int]:
    """Rows at which a new forest starts, so that each has at most `budget` places, at the lowest cost.

    A cut costs the shared prefix of its neighbours, then computed twice, plus `overhead` for the extra call. A row
    longer than the budget gets a separate forest; a row that is a prefix of the next one costs nothing and stays with
    it. Four rows of 4 tokens, of which the middle two share only 1:

    >>> cut(np.full(4, 4), np.array([0, 3, 1, 3]), budget=8, overhead=2)
    [0, 2]
    """
    count = len(lengths)
    added = np.cumsum(lengths - shared)
    allowed = np.ones(count, np.bool_)
    allowed[1:] = shared[1:] < lengths[:-1]
    price = np.where(allowed, shared + overhead, np.iinfo(np.int64).max // 4)
    price[0] = 0
    cost = np.zeros(count + 1, np.int64)  # of the first N rows
    origin = np.zeros(count, np.int64)
    low = 0
    for r in range(count):
        while low < r and lengths[low] + added[r] - added[low] > budget:
            low += 1
        while low and not allowed[low]:
            low -= 1  # no longer for it: all of these rows lie on one path
        origin[r] = low + int(np.argmin(cost[low : r + 1] + price[low : r + 1]))
        cost[r + 1] = cost[origin[r]] + price[origin[r]]
    begins, end = [], count
    while end:
        end = int(origin[end - 1])
        begins.append(end)
    return begins[::-1]


@dataclass(frozen=True, slots=True)
class Trie:
    """Rows laid out together; see `lay_out`."""

    places: list[Ids]
    """Places of each row's tokens."""
    owner: Ids
    """[T] first row that has the place."""
    depths: Ids
    """[T] tokens before the place on the path from its root."""
    exits: Ids
    """[T] one past the last place that descends from it."""


def lay_out(lengths: Ids, shared: Ids) -> Trie:
    """Lay out rows in lexicographic order; each shares `shared` tokens with the previous one.

    Rows `1 2 3`, `1 2 4` and `1 5` share `1 2` and `1`:

    >>> trie = lay_out(np.array([3, 3, 2]), np.array([0, 2, 1]))
    >>> [places.tolist() for places in trie.places]
    [[0, 1, 2], [0, 1, 3], [0, 4]]
    >>> trie.depths.tolist(), trie.exits.tolist()
    ([0, 1, 2, 2, 1], [5, 4, 3, 4, 5])
    """
    added = lengths - shared
    ends = np.cumsum(added)
    begins = ends - added
    total, deepest = int(ends[-1]), int(lengths.max())
    depths = np.arange(total) - np.repeat(begins - shared, added)
    path, places = np.empty(deepest, np.int64), []
    for begin, end, keep, length in zip(begins, ends, shared, lengths, strict=True):
        path[keep:length] = np.arange(begin, end)
        places.append(path[:length].copy())
    exits, stop = np.empty(total, np.int64), np.full(deepest, total)
    for begin, end, keep, length in reversed(list(zip(begins, ends, shared, lengths, strict=True))):
        exits[begin:end] = stop[keep:length]
        stop[keep:] = begin  # the previous rows' places at these depths end here
    return Trie(places, np.repeat(np.arange(len(lengths)), added), depths, exits)


# ---- Packing into prefix forests -----------------------------------------------------------------------------


CUT_OVERHEAD = 64  # tokens whose computation costs as much as one more pass
MIN_SHARED = 8  # a shorter common prefix is computed again: separate attention would cost more


@dataclass(frozen=True, slots=True)
class Nodes:
    """Runs of places without a branch, in depth-first order."""

    starts: Ids
    """[K]"""
    ends: Ids
    """[K] one past the last place of the run."""
    exits: Ids
    """[K] one past the last place of its subtree; descendants are at [end, exit)."""

    @classmethod
    def of(cls, owner: Ids, exits: Ids) -> Nodes:
        """Nodes of places with rows [T] and exits [T].

        >>> nodes = Nodes.of(np.array([0, 0, 0, 1, 2]), np.array([5, 4, 3, 4, 5]))
        >>> nodes.starts.tolist(), nodes.ends.tolist(), nodes.exits.tolist()
        ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [5, 4, 3, 4, 5])
        """
        begins = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(exits, prepend=-1) != 0))
        return cls(begins, np.append(begins[1:], len(exits)), exits[begins])


@dataclass(frozen=True, slots=True)
class Forest:
    """One micro-batch. Place i sees place j if j <= i < exits[j]."""

    indices: tuple[int, ...]
    """[R] index of each segment in the step's segments."""
    input_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] depth in the tree: the token's position in every segment that has it."""
    exits: Tensor
    """[T] one past the last place that descends from it."""
    nodes: Nodes
    places: Tensor
    """[U] places before a trained token, ascending."""
    predicts: Tensor
    """[N] index into `places` per trained token, in order of segments, as the next four."""
    targets: Tensor
    advantages: Tensor
    weights: Tensor
    sampler_logprobs: Tensor
    counts: tuple[int, ...]
    """[R] trained tokens of each segment."""
    logical_tokens: int
    """Input tokens of the segments without sharing."""

    @property
    def physical_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def reuse(self) -> float:
        """Segments' tokens per computed token."""
        return self.logical_tokens / self.physical_tokens


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forest, in lexicographic order, before layout."""

    rows: tuple[SegmentRow, ...]
    lengths: Ids
    """[R] input tokens of each row."""
    shared: Ids
    """[R] length of the prefix shared with the previous row; 0 for the first."""

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
    *,
    layout: Layout = "forest",
    min_shared: int = MIN_SHARED,
) -> list[Forest]:
    """Forests with every segment that has a trained token, exactly once.

    `max_tokens` bounds the places of a forest; `layout`, `min_shared`: see `pack`. Raises ValueError for a segment
    longer than the model's window (`max_context`) or trained at its first token.
    """
    packed = pack(rows_of(segments, max_context), max_tokens, layout, min_shared)
    return [forest.lay_out(device, torch.float32) for forest in packed]


def rows_of(
    segments: Sequence[TrainSegment], max_context: int, chosen: Sequence[int] | None = None
) -> list[SegmentRow]:
    """The segments with a trained token, or the `chosen` of them, in lexicographic order. Raises as `build_forests`."""
    candidates = (row_of(segments[i], i) for i in (range(len(segments)) if chosen is None else chosen))
    rows = [row for row in candidates if row is not None]
    for row in rows:
        if len(row.tokens) + 1 > max_context:
            raise ValueError(
                f"segment {row.index} has {len(row.tokens) + 1} tokens, the model's window has {max_context}"
            )
    return [rows[i] for i in in_order([row.tokens for row in rows])]


def pack(
    rows: Sequence[SegmentRow], max_tokens: int, layout: Layout = "forest", min_shared: int = MIN_SHARED
) -> list[Packed]:
    """Pack rows in lexicographic order into forests of at most `max_tokens` places, unless a single row has more.

    Rows share prefixes of at least `min_shared` tokens. With `layout` segments they share nothing, rows of similar
    length are together, and `max_tokens` counts the padding to the longest.
    """
    if not rows:
        return []
    if layout == "segments":
        rows = sorted(rows, key=lambda row: len(row.tokens))
    lengths = np.array([len(row.tokens) for row in rows], np.int64)
    if layout == "segments":
        shared, begins = np.zeros(len(rows), np.int64), _by_length(lengths.tolist(), max_tokens)
    else:
        shared = shared_lengths([row.tokens for row in rows])
        shared[shared < min_shared] = 0
        begins = cut(lengths, shared, max_tokens, CUT_OVERHEAD)
        shared[begins] = 0
    return [
        Packed(tuple(rows[a:b]), lengths[a:b], shared[a:b])
        for a, b in zip(begins, [*begins[1:], len(rows)], strict=True)
    ]


def forest_reuse(rows: Sequence[SegmentRow]) -> float:
    """Tokens of `rows`, in lexicographic order, per distinct prefix token: what a forest saves."""
    lengths = sum(len(row.tokens) for row in rows)
    return lengths / max(1, lengths - int(shared_lengths([row.tokens for row in rows]).sum()))


def _by_length(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Rows, in ascending order of length, at which a new batch starts: its rows times its longest are in `max_tokens`.

    >>> _by_length([2, 3, 3, 9], max_tokens=9)
    [0, 3]
    """
    begins = [0]
    for index, length in enumerate(lengths):
        if (index - begins[-1] + 1) * length > max_tokens and index > begins[-1]:
            begins.append(index)
    return begins


def _forest(rows: list[SegmentRow], lengths: Ids, shared: Ids, device: torch.device, dtype: torch.dtype) -> Forest:
    trie = lay_out(lengths, shared)
    predicting = np.concatenate([places[row.before] for row, places in zip(rows, trie.places, strict=True)])
    places, predicts = np.unique(predicting, return_inverse=True)
    ids = np.concatenate([row.tokens[keep:] for row, keep in zip(rows, shared, strict=True)])

    def put(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def column(name: str) -> Tensor:
        values = put(np.concatenate([getattr(row, name) for row in rows]))
        return values.to(dtype) if values.is_floating_point() else values

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
