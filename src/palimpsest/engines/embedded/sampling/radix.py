"""Keys and values of prompts and finished sequences, each distinct prefix once: a radix tree over token ids.

An edge of the tree is a run of ids; every id on it owns one slot of a store of fixed size. A prompt's longest stored
prefix is found by walking down from the root, and its slots are gathered into the row that is to go on from it.
Sequences that begin alike share the slots of their common beginning:

    stored          [s e c t i o n] -> [q u e s t i o n] -> [m e m 1]
                                                         -> [m e m 2]
    new prompt      [s e c t i o n   q u e s t i o n   m e m 3]         only m e m 3 is computed, and added

Why not whole sequences in rows of the pool, which needs less code: 16 rollouts that read one section of 1,000 tokens
would keep it 16 times. Measured with 8 to 16 decoded rows and six documents at once, such a store reached 3.7 to 4.3 of
the 4.6 times fewer prompt tokens that one copy of each section makes possible.

Guaranteed: at most `capacity` tokens are stored; when they are used up, the leaf unused for longest goes first. A use
of a sequence is a use of its beginnings, so nothing goes before what continues it.
Not covered: what was stored with other weights; the owner calls `clear` when they change.

Axes: S slots, N tokens, H key-value heads, D head size.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palimpsest.engines.embedded.sampling.kv import KVPool

ID_BYTES = 8  # edges are compared as bytes: one comparison for the whole edge

Ids = NDArray[np.int64]
Copy = tuple[int, int, Ids]  # row of the pool, position of the first token, slots of it and those after it


@dataclass(slots=True, eq=False)
class _Node:
    edge: bytes
    """The ids that lead here."""
    slots: Ids
    """[N] where their keys and values lie."""
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    """By the first id of their edge."""

    @property
    def first(self) -> bytes:
        return self.edge[:ID_BYTES]


class PrefixCache:
    """`capacity` tokens of keys and values of the sequences in `pool`; 0 stores nothing.

    What `insert` was told is copied by the next `flush`, all of it in one go: rows must not change between the two.
    """

    def __init__(self, pool: KVPool, capacity: int) -> None:
        self.capacity = capacity
        self.evicted = 0
        """Tokens that had to make room so far."""
        self._pool = pool
        self._layers: list[Tensor] = []  # each [S, 2, H, D]: one token is one stretch of memory
        self.clear()

    def clear(self) -> None:
        """Drop everything; the memory is kept for what comes."""
        self._root = _Node(b"", np.zeros(0, np.int64), None)
        self._order: OrderedDict[_Node, None] = OrderedDict()  # by last use; a parent is always after its children
        self._free = np.arange(self.capacity)
        self._unused = self.capacity  # the first so many of `_free` are free slots
        self._told: list[Copy] = []

    @property
    def tokens(self) -> int:
        """Tokens stored now."""
        return self.capacity - self._unused

    def match(self, prompt: Ids) -> Ids:
        """[N] slots of the longest stored prefix of `prompt`, which counts as used now."""
        path, inside = self._walk(prompt.tobytes())
        self._touch(path[-1])
        return np.concatenate([*(node.slots for node in path[:-1]), path[-1].slots[:inside]])

    def insert(self, ids: Ids, row: int) -> None:
        """Store what is new of `ids` [N], whose keys and values are the first N tokens of a row of the pool.

        Where nothing is left to make room but what leads to them, as many of the new tokens as fit.
        """
        if self.capacity == 0:
            return
        data = ids.tobytes()
        path, inside = self._walk(data)
        node = path[-1]
        self._touch(node)
        length = sum([len(above.slots) for above in path[:-1]]) + inside
        if length == len(ids):
            return
        if inside < len(node.slots):
            node = self._split(node, inside)
        slots = self._take(len(ids) - length, node)
        if not len(slots):
            return
        new = _Node(data[length * ID_BYTES : (length + len(slots)) * ID_BYTES], slots, node)
        node.children[new.first] = new
        self._order[new] = None
        self._touch(new)
        self._told.append((row, length, slots))

    def load(self, copies: list[Copy]) -> None:
        """Copy what the slots hold into rows of the pool."""
        if not copies:
            return
        slots, places = self._indices(copies)
        for store, layer in zip(self._layers, self._pool.layers, strict=True):
            vectors = layer.view(-1, layer.shape[-1])
            vectors.index_copy_(0, places, store.index_select(0, slots).view(-1, layer.shape[-1]))

    def flush(self) -> None:
        """Copy what was inserted since the last call out of the pool."""
        if not self._told:
            return
        slots, places = self._indices(self._told)
        self._told = []
        for store, layer in zip(self._layers, self._pool.layers, strict=True):
            vectors = layer.view(-1, layer.shape[-1])
            store.index_copy_(0, slots, vectors.index_select(0, places).view(-1, *store.shape[1:]))

    def _indices(self, copies: list[Copy]) -> tuple[Tensor, Tensor]:
        """[N] slots and [N * 2 * H] places in the pool of the same tokens."""
        slots = np.concatenate([slots for _, _, slots in copies])
        rows = np.repeat([row for row, _, _ in copies], [len(slots) for _, _, slots in copies])
        positions = np.concatenate([np.arange(start, start + len(slots)) for _, start, slots in copies])
        return torch.from_numpy(slots).to(self._pool.shape.device), self._pool.places(rows, positions)

    # ---- the tree -------------------------------------------------------------------------------------------

    def _walk(self, data: bytes) -> tuple[list[_Node], int]:
        """The nodes along a sequence, root first, and how many ids of the last one's edge agree with it."""
        node, at = self._root, 0
        path = [node]
        while (child := node.children.get(data[at : at + ID_BYTES])) is not None:
            path.append(child)
            if not data.startswith(child.edge, at):
                return path, _agreeing(child.edge, data[at:])
            node, at = child, at + len(child.edge)
        return path, len(node.slots)

    def _touch(self, node: _Node) -> None:
        """Used now; parents after their children, so that the first in the order never has any."""
        while node.parent is not None:
            self._order.move_to_end(node)
            node = node.parent

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut an edge in two; returns the new node in its middle."""
        assert node.parent is not None
        cut = at * ID_BYTES
        upper = _Node(node.edge[:cut], node.slots[:at], node.parent)
        node.parent.children[upper.first] = upper
        node.edge, node.slots, node.parent = node.edge[cut:], node.slots[at:], upper
        upper.children[node.first] = node
        self._order[upper] = None
        self._touch(upper)
        return upper

    # ---- slots ----------------------------------------------------------------------------------------------

    def _take(self, count: int, above: _Node) -> Ids:
        """[at most count] free slots; leaves go, oldest first, but not `above` and what leads to it."""
        if not self._layers:
            self._allocate()
        while self._unused < count and self._order:
            oldest = next(iter(self._order))
            if oldest is above:
                break
            self._evict(oldest)
        count = min(count, self._unused)
        self._unused -= count
        return self._free[self._unused : self._unused + count].copy()

    def _allocate(self) -> None:
        """The whole store at its first use: on a CPU, pages that nothing was written to cost nothing."""
        shape = self._pool.shape
        size = (self.capacity, 2, shape.heads, shape.head_dim)
        self._layers = [torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.layers)]

    def _evict(self, leaf: _Node) -> None:
        assert leaf.parent is not None
        assert not leaf.children
        self.flush()  # the leaf may be among what was told, and its slots are given away
        del self._order[leaf]
        del leaf.parent.children[leaf.first]
        self._free[self._unused : self._unused + len(leaf.slots)] = leaf.slots
        self._unused += len(leaf.slots)
        self.evicted += len(leaf.slots)


def _agreeing(one: bytes, other: bytes) -> int:
    """Ids in common at the beginning of two runs that differ, or of which the second is the shorter.

    >>> _agreeing(np.array([5, 6, 7]).tobytes(), np.array([5, 6, 8, 9]).tobytes())
    2
    """
    size = min(len(one), len(other))
    same = np.frombuffer(one[:size], np.int64) == np.frombuffer(other[:size], np.int64)
    return size // ID_BYTES if same.all() else int(same.argmin())
