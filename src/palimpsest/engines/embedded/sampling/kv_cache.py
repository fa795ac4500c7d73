"""Key-value cache: a pool of rows, their contents, and a prefix cache (radix tree over token ids).

A request in flight owns one row of the pool. Rows in use are kept near the front, so a decode step reads `pool[:n]` as
a view, without gathering; `PoolRows` holds each row's state as arrays, so it needs no Python loop over rows.

The prefix cache stores prompts and finished sequences, each distinct prefix once. An edge of its tree is a run of ids,
and every id owns one slot of a store of fixed size. A walk from the root finds the longest stored prefix of a prompt;
its slots are gathered into the row of the new request:

    stored          [s e c t i o n] -> [q u e s t i o n] -> [m e m 1]
                                                         -> [m e m 2]
    new prompt      [s e c t i o n   q u e s t i o n   m e m 3]         only m e m 3 is computed, and added

Storing whole sequences in rows of the pool would need less code, but 16 rollouts over one section of 1,000 tokens would
store it 16 times. Measured with 8 to 16 decoded rows and six documents, such a store computes 3.7 to 4.3 times fewer
prompt tokens, one copy of each section 4.6 times fewer.

Guaranteed: at most `capacity` tokens are stored; the least recently used leaf is evicted first. Using a sequence also
uses its prefixes, so a prefix is never evicted before its continuations.
Not covered: paging. Memory is the most rows used at once times the longest request so far, within a budget: long
requests get fewer rows. Entries of other weights: the owner calls `clear` when the weights change.

Axes: L layers, R rows, S slots, N tokens (in `PoolRows`: decoded rows), H key-value heads, C capacity in tokens,
D head size.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from palimpsest.engines.embedded.architecture import decoder_of
from palimpsest.engines.protocol import kv_rows
from palimpsest.errors import ModelError, SamplerError
from palimpsest.text.display_text import counted
from palimpsest.types import SamplingParams

CAPACITY_STEP = 64


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of one token's keys and values in a model."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> KVShape:
        """Read the shape from the cache of one forward, since families name these numbers differently.

        Layers may differ, and keys from values: the pool has room for the largest. Raises ModelError for a model with
        another state than keys and values.
        """
        weight = model.get_input_embeddings().weight
        token = torch.zeros((1, 1), dtype=torch.long, device=weight.device)
        cache = getattr(decoder_of(model)(input_ids=token, use_cache=True), "past_key_values", None)
        layers = list(getattr(cache, "layers", ()))
        if not layers or not {type(layer) for layer in layers} <= {DynamicLayer, DynamicSlidingWindowLayer}:
            raise ModelError(f"{type(model).__name__} has an unsupported state other than keys and values")
        layers = [layer for layer in layers if layer.is_initialized]  # others read the keys and values of one before
        shapes = [part.shape for layer in layers for part in (layer.keys, layer.values)]
        heads, dim = max(s[1] for s in shapes), max(s[3] for s in shapes)
        return cls(len(layers), heads, dim, layers[0].keys.dtype, weight.device)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


class RowPool(ABC):
    """Rows for the sequences in flight, within a budget."""

    def __init__(self, budget: int | None) -> None:
        """`budget`: bytes for `fit`, half of them for rows; None: no bound."""
        self.rows = self.capacity = 0
        self._budget = budget

    @abstractmethod
    def row_bytes(self, length: int) -> int:
        """Bytes of a sequence of `length` tokens, at least 1."""

    @abstractmethod
    def resize(self, rows: int, capacity: int, used: int = 0) -> None:
        """Reserve `rows` rows of `capacity` tokens, keeping the first `used`. Raises SamplerError without memory."""

    @abstractmethod
    def clear(self) -> None:
        """Free all rows: a later batch gets as many as in a new pool, and the learner their memory."""

    @abstractmethod
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` into row `target`."""

    def fit(self, used: int, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens, or as many as the budget allows, keeping the first `used`.

        Changes nothing while the rows in use have no room at that length. The budget always allows one row.
        """
        capacity = max(rounded(length), self.capacity)
        most = rows if self._budget is None else kv_rows(self._budget, self.row_bytes(capacity))
        if used <= most:
            self.resize(min(most, max(rows, self.rows)), capacity, used)


class KVPool(RowPool):
    """`layers[l]` is [2, R, H, C, D]: keys at 0, values at 1."""

    def __init__(self, shape: KVShape, budget: int | None = None) -> None:
        super().__init__(budget)
        self.shape = shape
        self.layers: list[Tensor] = []

    def row_bytes(self, length: int) -> int:
        return length * self.shape.token_bytes

    def resize(self, rows: int, capacity: int, used: int = 0) -> None:
        capacity = rounded(capacity)
        if (rows, capacity) == (self.rows, self.capacity):
            return
        old, s = self.layers, self.shape
        self.layers = []
        for index in range(s.layers):
            try:
                # Zeros, not empty: a masked position still enters products, and NaN times 0 is NaN.
                layer = torch.zeros((2, rows, s.heads, capacity, s.head_dim), dtype=s.dtype, device=s.device)
            except RuntimeError:
                self.clear()
                raise SamplerError(
                    f"no memory for keys and values: {counted(rows, 'sequence')} of up to {capacity:,} tokens need "
                    f"{rows * capacity * s.token_bytes / 1e9:.1f} GB; set engine.max_num_seqs, or shorten the prompts "
                    "and replies of the policy"
                ) from None
            if used:
                layer[:, :used, :, : self.capacity] = old[index][:, :used]
            if old:
                old[index] = layer  # frees the smaller one at once
            self.layers.append(layer)
        self.rows, self.capacity = rows, capacity

    def clear(self) -> None:
        self.rows, self.capacity, self.layers = 0, 0, []

    def copy(self, source: int, target: int, length: int) -> None:
        for layer in self.layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]

    def places(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """[N * 2 * H] indices of each token's keys, then values, among a layer's [2, R, H, C] vectors."""
        blocks = np.arange(2)[None, :, None] * self.rows + rows[:, None, None]
        places = (blocks * self.shape.heads + np.arange(self.shape.heads)) * self.capacity + positions[:, None, None]
        return torch.from_numpy(places.reshape(-1)).to(self.shape.device)


def rounded(length: int) -> int:
    return -(-length // CAPACITY_STEP) * CAPACITY_STEP


# ---- Prefix cache --------------------------------------------------------------------------------------------


ID_BYTES = 8  # edges are compared as bytes: one comparison for the whole edge

Ids = NDArray[np.int64]
Copy = tuple[int, int, Ids]  # row of the pool, position of the first token, slots of it and those after it


@dataclass(slots=True, eq=False)
class _Node:
    edge: bytes
    """Ids on the edge to this node."""
    slots: Ids
    """[N] slots of their keys and values."""
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    """Children by the first id of their edge."""

    @property
    def first(self) -> bytes:
        return self.edge[:ID_BYTES]


class PrefixCache:
    """`capacity` tokens of keys and values of the sequences in `pool`; 0 stores nothing.

    `flush` copies all inserted sequences together: rows must not change between `insert` and `flush`.
    """

    def __init__(self, pool: RowPool, capacity: int) -> None:
        self.capacity = capacity if isinstance(pool, KVPool) else 0  # other states belong to one sequence
        self.evicted = 0
        """Tokens evicted so far."""
        self._pool: Any = pool
        self.clear()

    def clear(self) -> None:
        """Drop all entries and free their memory."""
        self._layers: list[Tensor] = []  # each [S, 2, H, D]: one token is one stretch of memory
        self._root = _Node(b"", np.zeros(0, np.int64), None)
        self._order: OrderedDict[_Node, None] = OrderedDict()  # by last use; a parent is always after its children
        self._free = np.arange(self.capacity)
        self._unused = self.capacity  # the first N of `_free` are free slots
        self._pending: list[Copy] = []

    @property
    def tokens(self) -> int:
        """Stored tokens."""
        return self.capacity - self._unused

    def match(self, prompt: Ids) -> Ids:
        """[N] slots of the longest stored prefix of `prompt`, marked as used."""
        path, inside = self._walk(prompt.tobytes())
        self._touch(path[-1])
        return np.concatenate([*(node.slots for node in path[:-1]), path[-1].slots[:inside]])

    def insert(self, ids: Ids, row: int) -> None:
        """Store the new part of `ids` [N], whose keys and values are the first N tokens of a row of the pool.

        Stores as many of the new tokens as fit without evicting their own prefix.
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
        self._pending.append((row, length, slots))

    def load(self, copies: list[Copy]) -> None:
        """Copy the slots' contents into rows of the pool."""
        if not copies:
            return
        slots, places = self._indices(copies)
        for store, layer in zip(self._layers, self._pool.layers, strict=True):
            vectors = layer.view(-1, layer.shape[-1])
            vectors.index_copy_(0, places, store.index_select(0, slots).view(-1, layer.shape[-1]))

    def flush(self) -> None:
        """Copy sequences inserted since the last call out of the pool."""
        if not self._pending:
            return
        slots, places = self._indices(self._pending)
        self._pending = []
        for store, layer in zip(self._layers, self._pool.layers, strict=True):
            vectors = layer.view(-1, layer.shape[-1])
            store.index_copy_(0, slots, vectors.index_select(0, places).view(-1, *store.shape[1:]))

    def _indices(self, copies: list[Copy]) -> tuple[Tensor, Tensor]:
        """[N] slots and [N * 2 * H] pool indices of the same tokens."""
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
        """Mark as used; parents after their children, so that the oldest entry is always a leaf."""
        while node.parent is not None:
            self._order.move_to_end(node)
            node = node.parent

    def _split(self, node: _Node, at: int) -> _Node:
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
        """[at most count] free slots; evicts leaves, oldest first, but not `above` and its ancestors."""
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
        """Allocate the whole store on first use: on a CPU, untouched pages cost nothing."""
        shape = self._pool.shape
        size = (self.capacity, 2, shape.heads, shape.head_dim)
        self._layers = [torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.layers)]

    def _evict(self, leaf: _Node) -> None:
        assert leaf.parent is not None
        assert not leaf.children
        owner = leaf.slots if leaf.slots.base is None else leaf.slots.base  # a split edge has views
        if any(slots is owner for _, _, slots in self._pending):  # its slots are reused
            self.flush()
        del self._order[leaf]
        del leaf.parent.children[leaf.first]
        self._free[self._unused : self._unused + len(leaf.slots)] = leaf.slots
        self._unused += len(leaf.slots)
        self.evicted += len(leaf.slots)


def _agreeing(one: bytes, other: bytes) -> int:
    """Length of the common prefix of two runs that differ, or of which the second is shorter.

    >>> _agreeing(np.array([5, 6, 7]).tobytes(), np.array([5, 6, 8, 9]).tobytes())
    2
    """
    size = min(len(one), len(other))
    same = np.frombuffer(one[:size], np.int64) == np.frombuffer(other[:size], np.int64)
    return size // ID_BYTES if same.all() else int(same.argmin())


# ---- Contents of the pool's rows -----------------------------------------------------------------------------


class PoolRows:
    def __init__(self, slots: int, vocab: int) -> None:
        self.slots, self.vocab = slots, vocab
        self.tokens = np.full((slots, 0), -1, np.int64)
        """[R, C] ids; valid for assigned and sampled tokens."""
        self.valid = np.zeros(slots, np.int64)
        """[R] tokens whose keys and values are in the pool; the position of the next one."""
        self.active = np.zeros(slots, np.bool_)
        """[R] True if a request in flight owns the row."""
        self.count = np.zeros(slots, np.int64)
        """[R] tokens sampled so far."""
        self.limit = np.ones(slots, np.int64)
        self.seed = np.zeros(slots, np.uint64)
        self.temperature = np.ones(slots, np.float32)
        self.top_p = np.ones(slots, np.float32)
        self.stop_set = np.zeros(slots, np.int64)
        """[R] row of `stops`."""
        self.logprobs = np.zeros((slots, 0), np.float32)
        """[R, C] nats, by position in the sequence."""
        self.stops = np.zeros((0, vocab), np.bool_)
        """[stop sets, vocabulary]"""
        self.free = list(range(slots))
        """Sorted; the lowest is used first, which keeps used rows at the front."""
        self._stop_index: dict[tuple[int, ...], int] = {}

    @property
    def width(self) -> int:
        """Rows of a decode step: one more than the highest in use."""
        used = np.flatnonzero(self.active)
        return int(used[-1]) + 1 if len(used) else 0

    def widen(self, capacity: int) -> None:
        """Grow to the pool's capacity."""
        extra = capacity - self.tokens.shape[1]
        if extra > 0:
            self.tokens = np.pad(self.tokens, ((0, 0), (0, extra)), constant_values=-1)
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, extra)))

    def common(self, prompt: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[rows] length of the common prefix of `prompt` and each row's ids.

        >>> state = PoolRows(slots=2, vocab=9); state.widen(4); state.tokens[0, :3] = [5, 6, 7]
        >>> state.common(np.array([5, 6, 8]), np.array([0, 1])).tolist()
        [2, 0]
        """
        same = self.tokens[rows, : len(prompt)] == prompt
        first = same.argmin(axis=1)
        return np.where(same[np.arange(len(same)), first], len(prompt), first)

    def assign(self, prompt: NDArray[np.int64], params: SamplingParams) -> int:
        """Assign the lowest free row to a request; its prefix is not yet in the pool."""
        row = self.free.pop(0)
        self.tokens[row, : len(prompt)] = prompt
        self.valid[row] = 0
        self.active[row] = True
        self.count[row] = 0
        self.limit[row] = params.max_tokens
        self.seed[row] = params.seed & 0xFFFFFFFFFFFFFFFF
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.stop_set[row] = self._stops_of(params.stop_ids)
        return row

    def release(self, row: int) -> None:
        """Free the row of a finished request."""
        self.active[row] = False
        bisect.insort(self.free, row)

    def move(self, row: int, target: int) -> None:
        """Move the request of `row` to the free row `target` (the caller copies the pool)."""
        for array in (
            self.tokens,
            self.valid,
            self.count,
            self.limit,
            self.seed,
            self.temperature,
            self.top_p,
            self.stop_set,
            self.logprobs,
        ):
            array[target] = array[row]
        self.free.remove(target)
        self.active[target] = True
        self.release(row)

    def record(
        self, rows: NDArray[np.int64], ids: NDArray[np.int64], logprobs: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Append one sampled token to each of `rows`; returns finished rows."""
        where = self.valid[rows]
        self.tokens[rows, where] = ids
        self.logprobs[rows, where] = logprobs
        self.count[rows] += 1
        done = self.stops[self.stop_set[rows], ids] | (self.count[rows] >= self.limit[rows]) | ~np.isfinite(logprobs)
        return rows[done]

    def _stops_of(self, stop_ids: Sequence[int]) -> int:
        key = tuple(sorted({i for i in stop_ids if 0 <= i < self.vocab}))
        index = self._stop_index.get(key)
        if index is None:
            index = self._stop_index[key] = len(self.stops)
            self.stops = np.concatenate([self.stops, np.zeros((1, self.vocab), np.bool_)])
            self.stops[index, list(key)] = True
        return index
