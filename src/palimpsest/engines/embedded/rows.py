"""What is in each row of the key-value pool, as arrays over rows, so that a decode step has no Python loop over rows.

A row in use belongs to one request. A free row still holds what its last request left, and kept rows (behind the
slots) hold copies of finished sequences; both serve as sources of prefixes until they are overwritten.

Axes: R rows (slots first, kept rows behind), C capacity in tokens, N decoded rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from palimpsest.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Source:
    """Where a prompt's prefix already lies."""

    row: int
    length: int


@dataclass(slots=True)
class Rows:
    slots: int
    kept: int
    vocab: int
    tokens: NDArray[np.int64] = field(init=False)
    """[R, C] ids; meaningful up to what was assigned or sampled."""
    valid: NDArray[np.int64] = field(init=False)
    """[R] tokens whose keys and values are in the pool; the next one fed goes to this position."""
    active: NDArray[np.bool_] = field(init=False)
    """[slots] a request in flight owns the row."""
    count: NDArray[np.int64] = field(init=False)
    """[slots] tokens sampled so far."""
    limit: NDArray[np.int64] = field(init=False)
    seed: NDArray[np.uint64] = field(init=False)
    temperature: NDArray[np.float32] = field(init=False)
    top_p: NDArray[np.float32] = field(init=False)
    stop_set: NDArray[np.int64] = field(init=False)
    """[slots] row of `stops`."""
    logprobs: NDArray[np.float32] = field(init=False)
    """[slots, C] nats, by position in the sequence."""
    stops: NDArray[np.bool_] = field(init=False)
    """[stop sets, vocabulary]"""
    free: list[int] = field(init=False)
    """Sorted; the lowest is taken first, which keeps rows in use at the front."""
    _stop_index: dict[tuple[int, ...], int] = field(init=False)
    _used: NDArray[np.int64] = field(init=False)
    """[R] when each row was last a source, in calls of `touch`."""
    _clock: int = field(init=False)

    def __post_init__(self) -> None:
        total = self.slots + self.kept
        self.tokens = np.full((total, 0), -1, np.int64)
        self.logprobs = np.zeros((self.slots, 0), np.float32)
        self.valid = np.zeros(total, np.int64)
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
        self._used = np.zeros(total, np.int64)
        self._clock = 0

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

    def forget(self) -> None:
        """Drop every stored prefix, as after a change of weights."""
        self.valid[: self.slots][~self.active] = 0
        self.valid[self.slots :] = 0
        self._used[:] = 0
        self._clock = 0

    def common(self, prompt: NDArray[np.int64], rows: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        """[rows] length of the common prefix of `prompt` and each row's ids.

        >>> state = Rows(slots=2, kept=0, vocab=9); state.widen(4); state.tokens[0, :3] = [5, 6, 7]
        >>> state.common(np.array([5, 6, 8]), slice(0, 2)).tolist()
        [2, 0]
        """
        same = self.tokens[rows, : len(prompt)] == prompt
        first = same.argmin(axis=1)
        return np.where(same[np.arange(len(same)), first], len(prompt), first)

    def source(self, prompt: NDArray[np.int64], preferred: int) -> Source:
        """The longest stored prefix of `prompt`, one token short of all of it at the most; `preferred` wins ties."""
        lengths = np.minimum(self.common(prompt, slice(None)), self.valid)
        best = preferred if lengths[preferred] == lengths.max() else int(lengths.argmax())
        return Source(best, min(int(lengths[best]), len(prompt) - 1))

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
        """The request is over; what the row holds stays readable as a prefix until it is given away."""
        self.active[row] = False
        bisect.insort(self.free, row)

    def touch(self, row: int) -> None:
        """Mark a row as used now, for `oldest_kept`."""
        self._clock += 1
        self._used[row] = self._clock

    def oldest_kept(self) -> int:
        """The kept row that has gone unused for longest."""
        return self.slots + int(self._used[self.slots :].argmin())

    def duplicate(self, row: int, target: int) -> None:
        """`target` holds the same sequence as `row` (the pool is copied by the caller)."""
        self.tokens[target] = self.tokens[row]
        self.valid[target] = self.valid[row]
        self.touch(target)

    def move(self, row: int, target: int) -> None:
        """Hand the request of `row` over to the free row `target`."""
        self.duplicate(row, target)
        for array in (
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
