"""The prefix forest of a group: runs of tokens that its segments share, each of which training computes once.

    segments    1 2 3 4     1 2 5     1 2 3 6        nodes    1 2 (3 segments)
                                                                ├ 3 (2)
                                                                │ ├ 4 (1)   └ 6 (1)
                                                                └ 5 (1)

Guaranteed: every token of every segment is in exactly one node on its way from the root; a node comes before those
that hang below it.
Not covered: which of them training computes (`computed`); how a step's micro-batches cut a forest
(engines/embedded/forest/layout.py): this is a group by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from palimpsest.rollout.segments import segments_of
from palimpsest.types import Segment, Trajectory
from palimpsest.view.words import Tokens

_BLOCK = 256  # tokens compared at once


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens without a branch."""

    parent: int | None
    start: int
    """Tokens before it, from the root."""
    end: int
    rows: tuple[int, int]
    """[first, last) of `Forest.rows` that share it."""
    trained: int
    """Of its tokens, those that one of the rows is trained on."""


@dataclass(frozen=True, slots=True)
class Row:
    """A segment."""

    rollout: int
    """Place in the group."""
    segment: int
    """Number in its trajectory."""
    turns: tuple[int, int]
    """The first and the last turn it trains."""
    tokens: Tokens
    trained: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Forest:
    """Of a group."""

    rows: tuple[Row, ...]
    """Segments in lexicographic order, so that those that share a beginning are neighbours."""
    nodes: tuple[Node, ...]

    @property
    def logical_tokens(self) -> int:
        """Of the segments on their own."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def physical_tokens(self) -> int:
        """Of the nodes: the distinct ones."""
        return sum(node.end - node.start for node in self.nodes)

    def tokens(self, node: Node) -> Tokens:
        """Those of a node."""
        return self.rows[node.rows[0]].tokens[node.start : node.end]


@dataclass(frozen=True, slots=True)
class Computed:
    """What training computes of a group by itself."""

    segments: int
    """With a token whose advantage isn't 0; the gradient of the others is 0, and they are left out."""
    logical_tokens: int
    """Of these segments on their own, each without its last trained token, which is predicted and never read."""
    physical_tokens: int
    """The distinct ones of them."""


def computed(segments: Sequence[tuple[Segment, Sequence[float]]]) -> Computed:
    """Of segments with the advantage of each token: what engines/embedded/forest/batches.py leaves of them.

    >>> long = Segment((1, 2, 3, 4), (False, False, True, True), (0.0,) * 4, (-1, -1, 0, 0))
    >>> other = Segment((1, 2, 5), (False, False, True), (0.0,) * 3, (-1, -1, 0))
    >>> computed([(long, (0.0, 0.0, 0.5, 0.5)), (other, (0.0, 0.0, -0.5)), (other, (0.0, 0.0, 0.0))])
    Computed(segments=2, logical_tokens=5, physical_tokens=3)
    """
    rows: list[Tokens] = []
    for segment, advantages in segments:
        trained = [at for at, mask in enumerate(segment.loss_mask) if mask]
        if any(advantages[at] for at in trained):
            rows.append(tuple(segment.token_ids[: trained[-1]]))
    rows.sort()
    shared = sum(common_length(a, b) for a, b in pairwise(rows))
    total = sum(map(len, rows))
    return Computed(len(rows), total, total - shared)


def prefix_forest(trajectories: Sequence[Trajectory]) -> Forest:
    """The forest of all segments of some trajectories."""
    rows = [
        _row(rollout, number, segment)
        for rollout, trajectory in enumerate(trajectories)
        for number, segment in enumerate(segments_of(trajectory))
    ]
    rows.sort(key=lambda row: (row.tokens, row.rollout, row.segment))
    shared = [0, *(common_length(a.tokens, b.tokens) for a, b in pairwise(rows)), 0]
    nodes: list[Node] = []
    _grow(nodes, rows, shared, (0, len(rows)), 0, None)
    return Forest(tuple(rows), tuple(nodes))


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common from the start.

    >>> common_length((1, 2, 3), (1, 2, 4, 5)), common_length((), (1,))
    (2, 0)
    """
    start, size = 0, min(len(a), len(b))
    while start < size and a[start : start + _BLOCK] == b[start : start + _BLOCK]:
        start += _BLOCK
    while start < size and a[start] == b[start]:
        start += 1
    return min(start, size)


def _row(rollout: int, number: int, segment: Segment) -> Row:
    turns = [index for index in segment.turn_index if index >= 0]
    return Row(rollout, number, (min(turns), max(turns)), segment.token_ids, segment.loss_mask)


def _grow(
    nodes: list[Node], rows: Sequence[Row], shared: Sequence[int], part: tuple[int, int], depth: int, parent: int | None
) -> None:
    """Add the nodes of rows [first, last), which share `depth` tokens; by a stack, as a forest may be very deep."""
    stack = [(part, depth, parent)]
    while stack:
        (first, last), depth, parent = stack.pop()
        begins = [first, *(at for at in range(first + 1, last) if shared[at] <= depth), last]
        below = []
        for start, end in pairwise(begins):
            if start == end or len(rows[end - 1].tokens) <= depth:
                continue
            until = min((shared[at] for at in range(start + 1, end)), default=len(rows[start].tokens))
            until = min(until, len(rows[start].tokens))
            trained = sum(
                any(mask) for mask in zip(*(row.trained[depth:until] for row in rows[start:end]), strict=True)
            )
            below.append(Node(parent, depth, until, (start, end), trained))
        for node in below:
            nodes.append(node)
            if node.rows[1] - node.rows[0] > 1:
                stack.append((node.rows, node.end, len(nodes) - 1))
