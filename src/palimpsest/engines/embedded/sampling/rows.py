"""What is in each row of the key-value pool, as arrays over rows, so that a decode step has no Python loop over rows.

A row in use belongs to one request; what was computed for requests before it lives on in `radix.py`.

Axes: R rows, C capacity in tokens, N decoded rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from palimpsest.types import SamplingParams


@dataclass(slots=True)
class Rows:
    slots: int
    vocab: int
    tokens: NDArray[np.int64] = field(init=False)
    """[R, C] ids; meaningful up to what was assigned or sampled."""
    valid: NDArray[np.int64] = field(init=False)
    """[R] tokens whose keys and values are in the pool; the next one fed goes to this position."""
    active: NDArray[np.bool_] = field(init=False)
    """[R] a request in flight owns the row."""
    count: NDArray[np.int64] = field(init=False)
    """[R] tokens sampled so far."""
    limit: NDArray[np.int64] = field(init=False)
    seed: NDArray[np.uint64] = field(init=False)
    temperature: NDArray[np.float32] = field(init=False)
    top_p: NDArray[np.float32] = field(init=False)
    stop_set: NDArray[np.int64] = field(init=False)
    """[R] row of `stops`."""
    logprobs: NDArray[np.float32] = field(init=False)
    """[R, C] nats, by position in the sequence."""
    stops: NDArray[np.bool_] = field(init=False)
    """[stop sets, vocabulary]"""
    free: list[int] = field(init=False)
    """Sorted; the lowest is taken first, which keeps rows in use at the front."""
    _stop_index: dict[tuple[int, ...], int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = np.full((self.slots, 0), -1, np.int64)
        self.logprobs = np.zeros((self.slots, 0), np.float32)
        self.valid = np.zeros(self.slots, np.int64)
        self.active = np.zeros(self.slots, np.bool_)
        self.count = np.zeros(self.slots, np.int64)
        self.limit = np.ones(self.slots, np.int64)
        self.seed = np.zeros(self.slots, np.uint64)
        self.temperature = np.ones(self.slots, np.float32)
        self.top_p = np.ones(self.slots, np.float32)
        self.stop_set = np.zeros(self.slots, np.int64)
        self.stops = np.zeros((0, self.vocab), np.bool_)
        self.free = list(range(self.slots))
        self._stop_index = {}

    @property
    def width(self) -> int:
        """Rows a decode step must cover: one more than the highest in use."""
        used = np.flatnonzero(self.active)
        return int(used[-1]) + 1 if len(used) else 0

    def widen(self, capacity: int) -> None:
        """Follow the pool's capacity."""
        extra = capacity - self.tokens.shape[1]
        if extra > 0:
            self.tokens = np.pad(self.tokens, ((0, 0), (0, extra)), constant_values=-1)
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, extra)))

    def common(self, prompt: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[rows] length of the common prefix of `prompt` and each row's ids.

        >>> state = Rows(slots=2, vocab=9); state.widen(4); state.tokens[0, :3] = [5, 6, 7]
        >>> state.common(np.array([5, 6, 8]), np.array([0, 1])).tolist()
        [2, 0]
        """
        same = self.tokens[rows, : len(prompt)] == prompt
        first = same.argmin(axis=1)
        return np.where(same[np.arange(len(same)), first], len(prompt), first)

    def assign(self, prompt: NDArray[np.int64], params: SamplingParams) -> int:
        """Give the lowest free row to a request; its prefix is not yet in the pool."""
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
        """The request is over."""
        self.active[row] = False
        bisect.insort(self.free, row)

    def move(self, row: int, target: int) -> None:
        """Hand the request of `row` over to the free row `target` (the pool is copied by the caller)."""
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
        """Append one sampled token to each of `rows`; returns the rows that are done."""
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
