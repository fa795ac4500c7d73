"""Attention over a forest as a list of parts, each a range of queries on a range of keys.

A place sees its path: the places of its own node before it, and all places of the nodes above. So a forest is

- for a long node, a triangle: its own places, causal;
- for a node with descendants, a rectangle: the queries of all its descendants, which are one range, on its keys;
- for small subtrees that stand next to each other, one square with a mask: their triangles and rectangles would cost
  more calls than the masked pairs cost time.

Every pair of a place and one it sees is in exactly one part. Where not all places have a query (in the last layer
only those that predict), ranges of queries count those that have one.

Layers with a window narrower than the forest is deep take a mask of all pairs instead (`Plan.near`): a place then sees
its path only so far back.

Axes: T places, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palimpsest.engines.embedded.forest.flex import block_mask
from palimpsest.engines.embedded.forest.layout import Forest
from palimpsest.engines.embedded.forest.trie import Ids

SQUARE = 128  # places of a masked square at the most
TILE = 1024  # queries of a rectangle at the most: its partial result is merged while it is in the cache


@dataclass(frozen=True, slots=True)
class Part:
    queries: slice
    keys: slice
    causal: bool = False
    mask: Tensor | None = None
    """[1, 1, queries, keys] 0 where a key is seen, -inf where not; None: all are, or as `causal` says."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the attention of one forest needs to know."""

    parts: tuple[Part, ...]
    """For the CPU; empty on CUDA."""
    exits: Tensor
    """[T]"""
    places: Tensor
    """[Q] place of each query, ascending."""
    blocks: Any = None
    """FlexAttention's BlockMask on CUDA."""
    window: int | None = None
    """Places that layers with a window see back, their own included; None where no path is longer."""
    near: Any = None
    """For these layers: a BlockMask on CUDA, else [1, 1, Q, T] what is added to scores."""


def plan_of(forest: Forest, dtype: torch.dtype, places: Tensor | None = None, *, window: int | None = None) -> Plan:
    """Attention of queries at `places` [Q], ascending; at all places if None. `dtype` is that of the model.

    `window`: what its sliding layers see.
    """
    device, exits, depths = forest.input_ids.device, forest.exits, forest.positions
    where = torch.arange(forest.physical_tokens, device=device) if places is None else places
    if window is not None and int(depths.max()) < window:
        window = None
    near: Any = None
    if device.type == "cuda":
        if window is not None:
            near = block_mask(exits, where, depths, window)
        return Plan((), exits, where, block_mask(exits, where), window, near)
    if window is not None:
        visible = seen(exits, where, torch.arange(len(exits))) & (depths[where][:, None] - depths < window)
        near = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)[None, None]
    return Plan(tuple(_Planner(forest, where.numpy(), dtype).parts), exits, where, None, window, near)


def seen(exits: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """[Q, K] whether the place of each key is on the path of the place of each query."""
    return (keys <= queries[:, None]) & (queries[:, None] < exits[keys])


class _Planner:
    def __init__(self, forest: Forest, places: Ids, dtype: torch.dtype) -> None:
        self._places, self._dtype, self._exits = torch.from_numpy(places), dtype, forest.exits
        has_query = np.zeros(forest.physical_tokens + 1, np.int64)
        has_query[places + 1] = 1
        self._before = np.cumsum(has_query)  # queries before each place
        self.parts: list[Part] = []
        self._walk(forest)

    def _walk(self, forest: Forest) -> None:
        nodes, total = forest.nodes, forest.physical_tokens
        starts, ends, exits = nodes.starts.tolist(), nodes.ends.tolist(), nodes.exits.tolist()
        k = 0
        while k < len(starts):
            start, stop = starts[k], exits[k]
            if stop - start > SQUARE:
                self._triangle(start, ends[k])
                self._rectangle(ends[k], stop, start, ends[k])
                k += 1
                continue
            following = k
            while stop < total:
                following = int(np.searchsorted(nodes.starts, stop))
                if exits[following] - start > SQUARE:
                    break
                stop = exits[following]
            if stop == ends[k]:
                self._triangle(start, stop)
            else:
                self._square(start, stop)
            k = int(np.searchsorted(nodes.starts, stop))

    def _queries(self, begin: int, end: int) -> slice:
        return slice(int(self._before[begin]), int(self._before[end]))

    def _triangle(self, start: int, end: int) -> None:
        """Places of a node on themselves: for each run of queries, what stands before it, then its own triangle."""
        queries = self._queries(start, end)
        if queries.stop - queries.start == end - start:
            self.parts.append(Part(queries, slice(start, end), causal=True))
            return
        places = self._places[queries].numpy()
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            if len(run):
                begin, stop = int(run[0]), int(run[-1]) + 1
                self._rectangle(begin, stop, start, begin)
                self.parts.append(Part(self._queries(begin, stop), slice(begin, stop), causal=True))

    def _rectangle(self, begin: int, stop: int, start: int, end: int) -> None:
        """Queries of places [begin, stop) on the keys [start, end), all of which they see."""
        queries = self._queries(begin, stop)
        for tile in range(queries.start, queries.stop, TILE) if end > start else ():
            self.parts.append(Part(slice(tile, min(tile + TILE, queries.stop)), slice(start, end)))

    def _square(self, start: int, stop: int) -> None:
        """Queries of whole subtrees on their keys, with a mask."""
        queries = self._queries(start, stop)
        if queries.start < queries.stop:
            hidden = ~seen(self._exits, self._places[queries], torch.arange(start, stop))
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
            self.parts.append(Part(queries, slice(start, stop), mask=mask[None, None]))
