"""The pool of key-value rows: one row holds one sequence.

A request in flight owns one row, and rows in use are kept near the front, so that a decode step reads `pool[:n]` as a
view, without gathering. What is kept for later requests lies elsewhere (`radix.py`).

Not covered: paging. Memory is all rows times the longest request so far, rounded up: on a large model choose
`engine.batch_slots` accordingly.

Axes: L layers, R rows, H key-value heads, C capacity in tokens, D head size, N tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from palimpsest.errors import ModelError

CAPACITY_STEP = 64


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token's keys and values look like in a model."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> KVShape:
        """Read off the cache of one forward, since families name these numbers differently.

        Layers may differ, and keys from values: the pool has room for the largest. Raises ModelError for a model that
        keeps anything but keys and values.
        """
        weight = model.get_input_embeddings().weight
        token = torch.zeros((1, 1), dtype=torch.long, device=weight.device)
        cache = getattr(model.get_decoder()(input_ids=token, use_cache=True), "past_key_values", None)
        layers = list(getattr(cache, "layers", ()))
        if not layers or not {type(layer) for layer in layers} <= {DynamicLayer, DynamicSlidingWindowLayer}:
            raise ModelError(
                f"{type(model).__name__} keeps a state that is not keys and values, which is not supported"
            )
        layers = [layer for layer in layers if layer.is_initialized]  # others read the keys and values of one before
        shapes = [part.shape for layer in layers for part in (layer.keys, layer.values)]
        heads, dim = max(s[1] for s in shapes), max(s[3] for s in shapes)
        return cls(len(layers), heads, dim, layers[0].keys.dtype, weight.device)

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


class KVPool:
    """`layers[l]` is [2, R, H, C, D]: keys at 0, values at 1."""

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        self.rows = 0
        self.capacity = 0
        self.layers: list[Tensor] = []

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for so many rows of so many tokens; what is stored stays."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        rows = max(rows, self.rows)
        capacity = max(-(-capacity // CAPACITY_STEP) * CAPACITY_STEP, self.capacity)
        old, s = self.layers, self.shape
        self.layers = []
        for index in range(s.layers):
            # Zeros, not empty: a masked position still enters products, and NaN times 0 is NaN.
            layer = torch.zeros((2, rows, s.heads, capacity, s.head_dim), dtype=s.dtype, device=s.device)
            if old:
                layer[:, : self.rows, :, : self.capacity] = old[index]
                old[index] = layer  # frees the smaller one at once
            self.layers.append(layer)
        self.rows, self.capacity = rows, capacity

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` into row `target`."""
        for layer in self.layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]

    def places(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """[N * 2 * H] places of each token's keys, then values, among a layer's [2, R, H, C] vectors."""
        parts = np.arange(2)[None, :, None] * self.rows + rows[:, None, None]
        places = (parts * self.shape.heads + np.arange(self.shape.heads)) * self.capacity + positions[:, None, None]
        return torch.from_numpy(places.reshape(-1)).to(self.shape.device)
