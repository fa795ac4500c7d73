"""Forward passes over the key-value pool: any transformers model, and a fused Llama-like one.

`HFForward` calls the unpatched model class with a cache object that writes into the pool and returns views of it.
`FusedForward` computes the same for Llama-like models with fewer, larger operations on a CPU:
- query, key and value (and gate and up) are one product; the norm before it is folded into its weights;
- the two halves that a rotation mixes are adjacent, so a rotation is one complex product (queries and keys are permuted
  alike, their products are unchanged);
- a prefill has no padding: products run over all tokens of all rows together, attention row by row;
- the last layer of a prefill computes only each row's last token.

In bfloat16 the weights, keys, values and inputs of products are bfloat16; the residual stream, norms, rotations and
sums are float32. Adapters (LoRA) are merged into the copy of the weights.

Guaranteed: `FusedForward` runs only models of known modules (engines/embedded/architecture.py), after `pick_forward`
has compared its logits with the model's own on a probe. Not covered by `FusedForward`: models on a GPU or above
`MAX_BYTES`, as it copies the weights; position encodings that change with the length. `HFForward` runs these models.

Axes: A decoded rows, B prefilled rows, S tokens of the longest, N tokens of the call, W hidden size, H query heads,
G key-value heads, D head size, L keys, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache

from palimpsest.engines.embedded.architecture import (
    FULL,
    SLIDING,
    base_of,
    context_of,
    decoder_of,
    head_of,
    is_plain,
    merged_weight,
    ropes,
)
from palimpsest.engines.embedded.compute import packs_weights
from palimpsest.engines.embedded.sampling.kv_cache import KVPool


@dataclass(frozen=True, slots=True)
class Decode:
    """Rows that continue by one token."""

    rows: NDArray[np.int64]
    """[A] ascending."""
    tokens: NDArray[np.int64]
    """[A]"""
    lengths: NDArray[np.int64]
    """[A] tokens in each row; the position of the new one."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """New rows: suffix i is written to row `rows[i]` from position `starts[i]`."""

    rows: NDArray[np.int64]
    """[B]"""
    suffixes: Sequence[NDArray[np.int64]]
    starts: NDArray[np.int64]
    """[B] tokens in each row."""


class Forward(Protocol):
    """Forward pass for sampling."""

    def step(self, decode: Decode | None, prefill: Prefill | None) -> Tensor:
        """[A + B, V] logits after each decoded token, then after each suffix. Writes keys and values into the pool."""
        ...

    def refresh(self) -> None:
        """Read changed weights."""
        ...


class PoolCache(Cache):
    """Cache object for a model's attention layers during one call."""

    def __init__(
        self,
        pool: KVPool,
        write: tuple[Tensor, Tensor],
        read: slice | Tensor,
        indices: Tensor | None,
        length: int,
    ):
        """`write`: row and position of each new token; `indices`: its index in the padded [N * S] call, None if all."""
        super().__init__(layers=[])
        self._pool, self._write, self._read, self._indices, self._length = pool, write, read, indices, length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        layer = self._pool.layers[layer_idx]
        rows, positions = self._write
        result = []
        for store, new in zip(layer, (key_states, value_states), strict=True):
            flat = new.transpose(1, 2).flatten(0, 1)
            _, heads, dim = flat.shape  # of this layer: the pool has room for the largest
            store[rows, :heads, positions, :dim] = flat if self._indices is None else flat[self._indices]
            result.append(store[self._read, :heads, : self._length, :dim])
        return result[0], result[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length


class Masks:
    """Attention masks in the form that the model's class and attention need."""

    def __init__(self, model: Any) -> None:
        context = context_of(model)
        self._sliding, self._mixed = context.sliding, context.mixed
        self._additive = model.dtype if model.config._attn_implementation == "eager" else None

    def __call__(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """[N, 1, S, length] causal mask of tokens at `positions` [N, S].

        A dictionary by kind of layer if only some slide.
        """
        at = positions[:, None, :, None]
        keys = torch.arange(length, device=positions.device)
        full = keys <= at
        if self._sliding is None:
            return self._form(full)
        near = self._form(full & (keys > at - self._sliding))
        return {FULL: self._form(full), SLIDING: near} if self._mixed else near

    def _form(self, mask: Tensor) -> Tensor:
        """Additive for eager attention, which would add True as 1."""
        if self._additive is None:
            return mask
        lowest = max(torch.finfo(self._additive).min, torch.finfo(torch.float32).min)
        return torch.zeros(mask.shape, dtype=self._additive, device=mask.device).masked_fill_(~mask, lowest)


class HFForward:
    """The generic path: padded calls of the model's own decoder."""

    def __init__(self, model: Any, pool: KVPool) -> None:
        self._decoder = decoder_of(model)
        self._head = head_of(model)
        self._masks = Masks(model)
        self._pool = pool
        self._device = pool.shape.device

    def refresh(self) -> None:
        """Does nothing: it reads the model's own weights."""

    @torch.inference_mode()
    def step(self, decode: Decode | None, prefill: Prefill | None) -> Tensor:
        """See `Forward.step`; two calls of the model."""
        outputs = [self._decode(decode)] if decode is not None else []
        if prefill is not None:
            outputs.append(self._prefill(prefill))
        return torch.cat(outputs)

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


# ---- Fused forward of Llama-like models ----------------------------------------------------------------------


STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
MAX_BYTES = 1 << 30  # of weights, since the forward copies them
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 0.1}
"""Root mean square of the differences of the probe's logits from the class's own, relative to their spread. In
bfloat16 (8 bits) SmolLM2-135M has 0.031, where its class is 0.020 from float32 and the fused forward 0.017."""


def pick_forward(model: Any, pool: KVPool) -> Forward:
    """The fused forward if it supports the model and a probe agrees, otherwise the generic one."""
    if not _supported(model):
        return HFForward(model, pool)
    probe = KVPool(pool.shape)
    agree = _agree(HFForward(model, probe), FusedForward(model, probe), probe)
    return FusedForward(model, pool) if agree else HFForward(model, pool)


def _supported(model: Any) -> bool:
    weight = model.get_input_embeddings().weight
    return (
        weight.device.type == "cpu"
        and weight.dtype in TOLERANCE
        and is_plain(base_of(model))
        and context_of(model).sliding is None
        and all(rope["rope_type"] in STATIC_ROPE for rope in ropes(model.config))
        and sum(p.nbytes for p in model.parameters()) <= MAX_BYTES
    )


def _agree(generic: Forward, fused: FusedForward, pool: KVPool) -> bool:
    """True if both compute the same logits for two short rows, partly prefilled after a stored prefix, then decoded."""
    results = []
    ids = (np.arange(12, dtype=np.int64) * 7919) % fused.vocab
    pool.resize(2, 16)
    rows = np.arange(2)
    for forward in (generic, fused):
        first = forward.step(None, Prefill(rows, [ids[:5], ids[:3]], np.zeros(2, np.int64)))
        second = forward.step(None, Prefill(rows[:1], [ids[5:9]], np.array([5])))
        third = forward.step(Decode(rows[:1], ids[10:11], np.array([9])), Prefill(rows[1:], [ids[3:5]], np.array([3])))
        results.append(torch.cat([first, second, third]).float())
    spread = float(results[0].std()) + 1e-6
    gap = float((results[0] - results[1]).square().mean().sqrt())
    return gap <= TOLERANCE[pool.shape.dtype] * spread  # False for NaN as well


class _Product:
    """`x @ weight.t() + bias`, `weight` [out, in]; in the layout that is the fastest on this machine."""

    def __init__(self, weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> None:
        weight, self._bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        self.packed = packs_weights(dtype, weight.numel())
        reorder = torch.ops.mkldnn._reorder_linear_weight
        self._weight = reorder(weight.contiguous()) if self.packed else weight.t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[N, out] from [N, in], in the weights' dtype."""
        x = x.to(self._weight.dtype)
        if not self.packed:
            return x @ self._weight if self._bias is None else torch.addmm(self._bias, x, self._weight)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return result

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """[N, out] float32 `to` plus the product."""
        if self.packed or self._weight.dtype != torch.float32:
            return to.add_(self(x))
        return to.addmm_(x, self._weight)


@dataclass(slots=True)
class _Layer:
    """Weights with norms folded in."""

    qkv: _Product
    head_norm: Tensor | None
    """[H + G, D] Qwen3's norm of queries and keys, with the attention scale."""
    out: _Product
    gate_up: _Product
    down: _Product


Span = tuple[int, int, int, int]
"""Row of the pool, position of the first token, its index in the call, one past the last."""
CausalMasks = dict[tuple[int, int], Tensor]
"""Causal masks by position of the first query and number of keys: every layer needs the same."""


@dataclass(frozen=True, slots=True)
class _Work:
    """All tokens of a call: the decoded ones, then each suffix."""

    tokens: NDArray[np.int64]
    """[N]; the next two are aligned with it."""
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    decoded: int
    """A: the first A tokens are decoded ones."""
    spans: list[Span]
    """One per suffix."""
    last: NDArray[np.int64]
    """[A + B] indices of the tokens whose logits are needed."""

    @classmethod
    def of(cls, decode: Decode | None, prefill: Prefill | None) -> _Work:
        empty = np.zeros(0, np.int64)
        tokens, rows, positions = (decode.tokens, decode.rows, decode.lengths) if decode else (empty, empty, empty)
        count = len(tokens)
        if prefill is None:
            return cls(tokens, rows, positions, count, [], np.arange(count))
        sizes = np.array([len(s) for s in prefill.suffixes])
        ends = count + np.cumsum(sizes)
        begins = ends - sizes
        inside = np.arange(count, ends[-1]) - np.repeat(begins - prefill.starts, sizes)
        return cls(
            np.concatenate([tokens, *prefill.suffixes]),
            np.concatenate([rows, np.repeat(prefill.rows, sizes)]),
            np.concatenate([positions, inside]),
            count,
            list(zip(*(each.tolist() for each in (prefill.rows, prefill.starts, begins, ends)), strict=True)),
            np.concatenate([np.arange(count), ends - 1]),
        )

    def last_spans(self) -> list[Span]:
        """The spans if only `last` continues."""
        return [(row, start + b - a - 1, i, i + 1) for i, (row, start, a, b) in enumerate(self.spans, self.decoded)]


class _Decoded:
    """Attention of all decoded rows over views of the pool, in one batched product."""

    def __init__(self, work: Decode, groups: int, dim: int) -> None:
        self._groups, self._dim = groups, dim
        self._width = int(work.rows[-1]) + 1
        self._rows = None if self._width == len(work.rows) else torch.from_numpy(work.rows)
        self._length = int(work.lengths.max()) + 1
        lengths = np.zeros(self._width, np.int64)
        lengths[work.rows] = work.lengths
        hidden = torch.arange(self._length) > torch.from_numpy(lengths)[:, None]
        self._mask = torch.zeros(self._width, groups, 1, self._length)
        self._mask.masked_fill_(hidden[:, None, None], -torch.inf)

    def attend(self, query: Tensor, pool: Tensor) -> Tensor:
        """[A, H, D] from queries of that shape; unused rows in between are computed and dropped."""
        shape = query.shape
        if self._rows is not None:
            query = query.new_zeros(self._width, *shape[1:]).index_copy_(0, self._rows, query)
        keys, values = pool[:, : self._width, :, : self._length]
        query = query.reshape(self._width, self._groups, -1, self._dim)
        if pool.dtype == torch.float32:  # two products beat the kernel for single queries
            weights = torch.baddbmm(self._mask.flatten(0, 1), query.flatten(0, 1), keys.flatten(0, 1).mT).softmax(-1)
            result = torch.bmm(weights, values.flatten(0, 1))
        else:  # sums in float32
            mask = self._mask.to(pool.dtype).expand(-1, -1, query.shape[2], -1)
            result = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=1.0)
        result = result.reshape(self._width, *shape[1:])
        return result if self._rows is None else result[self._rows]


class FusedForward:
    """Satisfies `forward.Forward`."""

    def __init__(self, model: Any, pool: KVPool) -> None:
        config = model.config
        self._model, self._pool = base_of(model), pool
        self._heads = config.num_attention_heads
        self._groups, self._dim = pool.shape.heads, pool.shape.head_dim
        self._eps = float(config.rms_norm_eps)
        self.vocab = int(model.get_output_embeddings().weight.shape[0])
        half = torch.arange(self._dim).view(2, -1)
        self._pairs = half.t().flatten()  # 0, D/2, 1, D/2 + 1, ...
        self._rotation = torch.empty(0)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again."""
        base = decoder_of(self._model)
        self._embedding = base.embed_tokens.weight.detach()
        self._layers = [self._fuse(layer) for layer in base.layers]
        self._head = self._product(self._model.get_output_embeddings().weight.float() * base.norm.weight)

    def _fuse(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        scale = float(attention.scaling)
        normed = hasattr(attention, "q_norm")
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [p.bias for p in projections if p.bias is not None]  # all or none

        def joined(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return torch.cat([self._pair(query) * (1.0 if normed else scale), self._pair(key), value.float()])

        qkv, head_norm = joined(*map(merged_weight, projections)) * layer.input_layernorm.weight, None
        if normed:
            q, k = attention.q_norm.weight[self._pairs] * scale, attention.k_norm.weight[self._pairs]
            head_norm = torch.cat([q.expand(self._heads, -1), k.expand(self._groups, -1)])
        gate_up = torch.cat([merged_weight(mlp.gate_proj), merged_weight(mlp.up_proj)]).float()
        return _Layer(
            qkv=self._product(qkv, joined(*biases) if biases else None),
            head_norm=head_norm,
            out=self._product(merged_weight(attention.o_proj)),
            gate_up=self._product(gate_up * layer.post_attention_layernorm.weight),
            down=self._product(merged_weight(mlp.down_proj)),
        )

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> _Product:
        return _Product(weight, self._pool.shape.dtype, bias)

    def _pair(self, weight: Tensor) -> Tensor:
        """Reorder the rows of each head so that the two numbers of a rotation are adjacent."""
        heads: Tensor = weight.float().unflatten(0, (-1, self._dim))
        return heads[:, self._pairs].flatten(0, 1)

    # ---- the call -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self, decode: Decode | None, prefill: Prefill | None) -> Tensor:
        """See `Forward.step`; decoded tokens and suffixes go through every product together."""
        work = _Work.of(decode, prefill)
        decoded = _Decoded(decode, self._groups, self._dim) if decode is not None else None
        turn = self._turns(int(work.positions.max()) + 1)[self._padded(work.positions)][:, None]
        store = self._pool.places(work.rows, work.positions)
        hidden = F.embedding(self._padded(work.tokens), self._embedding).float()
        spans, last = work.spans, len(self._layers) - 1
        masks = {(start, start + b - a): self._causal(start, start + b - a) for _, start, a, b in spans if start}
        for index, (layer, pool) in enumerate(zip(self._layers, self._pool.layers, strict=True)):
            heads = self._project(hidden, layer, turn)
            new = heads[: len(work.tokens), self._heads :]
            pool.view(-1, self._dim).index_copy_(0, store, new.reshape(-1, self._dim))
            query = heads[:, : self._heads]
            if index == last and prefill is not None:
                chosen = self._padded(work.last)
                hidden, query, spans = hidden[chosen], query[chosen], work.last_spans()
            attended = torch.zeros_like(query)
            if decoded is not None:
                attended[: work.decoded] = decoded.attend(query[: work.decoded], pool)
            self._attend(query, pool, spans, masks, attended)
            hidden = self._rest(hidden, attended.view(len(hidden), -1), layer)
        return self._head(self._unit(hidden))[: len(work.last)].float()

    def _padded(self, values: NDArray[np.int64]) -> Tensor:
        """`values` [N] and zeros up to a size that recurs: oneDNN compiles a kernel for each number of rows, which
        takes half a millisecond and a third of a megabyte. At most an eighth more."""
        count = len(values)
        step = 1 << max(0, (count - 1).bit_length() - 4) if self._head.packed else 1
        padded = np.zeros(count + -count % step, np.int64)  # np.pad takes ten times as long
        padded[:count] = values
        return torch.from_numpy(padded)

    def _attend(self, query: Tensor, pool: Tensor, spans: list[Span], masks: CausalMasks, result: Tensor) -> None:
        """Write the attention of each row's queries [a:b], at positions from `start`, into `result`."""
        query = query.transpose(0, 1)[None]
        grouped = self._heads != self._groups
        for row, start, a, b in spans:
            length = start + b - a
            result[a:b] = F.scaled_dot_product_attention(
                query[:, :, a:b],
                pool[0, row : row + 1, :, :length],
                pool[1, row : row + 1, :, :length],
                attn_mask=masks.get((start, length)) if b - a > 1 else None,
                is_causal=start == 0 and b - a > 1,
                scale=1.0,
                enable_gqa=grouped,
            )[0].transpose(0, 1)

    def _causal(self, start: int, length: int) -> Tensor:
        """[length - start, length] 0 for visible keys, -inf elsewhere."""
        return torch.full((length - start, length), -torch.inf, dtype=self._pool.shape.dtype).triu_(start + 1)

    # ---- parts ----------------------------------------------------------------------------------------------

    def _unit(self, x: Tensor) -> Tensor:
        """`x` over its root mean square: a norm with its weight folded into the next product."""
        return x * x.square().mean(-1, keepdim=True).add_(self._eps).rsqrt_()

    def _project(self, hidden: Tensor, layer: _Layer, turn: Tensor) -> Tensor:
        """[N, H + 2 G, D] queries and keys, rotated, then values."""
        heads = layer.qkv(self._unit(hidden)).view(len(hidden), -1, self._dim)
        turned = heads[:, : self._heads + self._groups].float()
        if layer.head_norm is not None:
            turned.copy_(self._unit(turned) * layer.head_norm)
        torch.view_as_complex(turned.unflatten(-1, (-1, 2))).mul_(turn)
        if heads.dtype != torch.float32:
            heads[:, : self._heads + self._groups] = turned
        return heads

    def _rest(self, hidden: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        """[N, W] the residual stream after attention's output and the feed-forward part."""
        hidden = layer.out.added(attended, hidden)
        both = layer.gate_up(self._unit(hidden))
        size = both.shape[1] // 2
        return layer.down.added(F.silu(both[:, :size]).mul_(both[:, size:]), hidden)

    def _turns(self, length: int) -> Tensor:
        """[at least length, D / 2] complex rotation of each position."""
        if self._rotation.shape[0] < length:
            size = max(length, self._pool.capacity)
            cos, sin = decoder_of(self._model).rotary_emb(torch.empty(0), torch.arange(size)[None])
            self._rotation = torch.complex(cos[0, :, : self._dim // 2], sin[0, :, : self._dim // 2])
        return self._rotation
