"""Runs any transformers causal language model over the key-value pool.

`HFForward` calls the unpatched model class with a cache object that writes into the pool and hands back views of it.
`fused.py` computes the same for Llama-like models with less overhead per call.

Axes: A decoded rows, B prefilled rows, S tokens of the longest, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache

from palimpsest.engines.embedded.architecture import FULL, SLIDING, context_of, head_of
from palimpsest.engines.embedded.sampling.kv import KVPool


@dataclass(frozen=True, slots=True)
class Decode:
    """Rows that go on by one token."""

    rows: NDArray[np.int64]
    """[A] ascending."""
    tokens: NDArray[np.int64]
    """[A]"""
    lengths: NDArray[np.int64]
    """[A] tokens each row holds already; the new one goes to this position."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Rows that begin: suffix i goes into row `rows[i]` from position `starts[i]` on."""

    rows: NDArray[np.int64]
    """[B]"""
    suffixes: Sequence[NDArray[np.int64]]
    starts: NDArray[np.int64]
    """[B] tokens each row holds already."""


class Forward(Protocol):
    """The one call that sampling needs."""

    def step(self, decode: Decode | None, prefill: Prefill | None) -> Tensor:
        """[A + B, V] logits after each decoded token, then after each suffix. Writes keys and values into the pool."""
        ...

    def refresh(self) -> None:
        """The weights have changed."""
        ...


class PoolCache(Cache):
    """What a model's attention layers see as their cache during one call."""

    def __init__(
        self,
        pool: KVPool,
        write: tuple[Tensor, Tensor],
        read: slice | Tensor,
        kept: Tensor | None,
        length: int,
    ):
        """`write`: row and position of each new token; `kept`: its index in the padded [N * S] call, None if all."""
        super().__init__(layers=[])
        self._pool, self._write, self._read, self._kept, self._length = pool, write, read, kept, length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        layer = self._pool.layers[layer_idx]
        rows, positions = self._write
        result = []
        for store, new in zip(layer, (key_states, value_states), strict=True):
            flat = new.transpose(1, 2).flatten(0, 1)
            _, heads, dim = flat.shape  # of this layer: the pool has room for the largest
            store[rows, :heads, positions, :dim] = flat if self._kept is None else flat[self._kept]
            result.append(store[self._read, :heads, : self._length, :dim])
        return result[0], result[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length


class Masks:
    """What a model's layers are told each token sees, in the form that its class and its attention take."""

    def __init__(self, model: Any) -> None:
        context = context_of(model)
        self._sliding, self._mixed = context.sliding, context.mixed
        self._additive = model.dtype if model.config._attn_implementation == "eager" else None

    def __call__(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """[N, 1, S, length] of tokens at `positions` [N, S], each of which sees itself and those before it.

        By kind of layer where only some slide.
        """
        at = positions[:, None, :, None]
        keys = torch.arange(length, device=positions.device)
        full = keys <= at
        if self._sliding is None:
            return self._form(full)
        near = self._form(full & (keys > at - self._sliding))
        return {FULL: self._form(full), SLIDING: near} if self._mixed else near

    def _form(self, seen: Tensor) -> Tensor:
        """Eager attention adds its mask, and would add True as 1."""
        if self._additive is None:
            return seen
        lowest = max(torch.finfo(self._additive).min, torch.finfo(torch.float32).min)
        return torch.zeros(seen.shape, dtype=self._additive, device=seen.device).masked_fill_(~seen, lowest)


class HFForward:
    """The generic path: padded calls of the model's own decoder."""

    def __init__(self, model: Any, pool: KVPool) -> None:
        self._decoder = model.get_decoder()
        self._head = head_of(model)
        self._masks = Masks(model)
        self._pool = pool
        self._device = pool.shape.device

    def refresh(self) -> None:
        """Nothing to do: the model's own weights are read."""

    @torch.inference_mode()
    def step(self, decode: Decode | None, prefill: Prefill | None) -> Tensor:
        """See `Forward.step`; two calls of the model."""
        parts = [self._decode(decode)] if decode is not None else []
        if prefill is not None:
            parts.append(self._prefill(prefill))
        return torch.cat(parts)

    def _prefill(self, work: Prefill) -> Tensor:
        sizes = np.array([len(s) for s in work.suffixes])
        width, length = int(sizes.max()), int((sizes + work.starts).max())
        steps = np.arange(width)
        real = steps[None, :] < sizes[:, None]
        positions = np.minimum(work.starts[:, None] + steps[None, :], length - 1)
        ids = np.zeros(real.shape, np.int64)
        ids[real] = np.concatenate(work.suffixes)
        where = self._to(positions)
        write = self._to(np.repeat(work.rows, sizes)), self._to(positions[real])
        cache = PoolCache(self._pool, write, self._to(work.rows), self._to(np.flatnonzero(real)), length)
        hidden = self._call(self._to(ids), where, cache)
        return self._head(hidden[torch.arange(len(sizes), device=self._device), self._to(sizes - 1)])

    def _decode(self, work: Decode) -> Tensor:
        count, length = len(work.rows), int(work.lengths.max()) + 1
        positions, rows = self._to(work.lengths), self._to(work.rows)
        without_holes = int(work.rows[-1]) + 1 == count
        cache = PoolCache(self._pool, (rows, positions), slice(0, count) if without_holes else rows, None, length)
        return self._head(self._call(self._to(work.tokens)[:, None], positions[:, None], cache)[:, 0])

    def _call(self, ids: Tensor, positions: Tensor, cache: PoolCache) -> Tensor:
        """[N, S, W] hidden states of tokens at `positions` [N, S]."""
        mask = self._masks(positions, cache.get_seq_length())
        states: Tensor = self._decoder(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return states

    def _to(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
