"""Forward pass over prefix forests: hidden states and log-probabilities of the trained tokens.

The last layer's queries, feed-forward part and final norm are computed only for places before a trained token. With
prompts of 75 tokens and completions of 12 that saves six sevenths of the largest products of one layer. The vocabulary
projection runs in chunks of rows; if all logits exceed `KEPT_ELEMENTS`, the backward pass recomputes each chunk's
logits.

Memory in the backward pass, for a projection of P weights in bfloat16: 4 P bytes for the sum of gradients and 2 P for
the gradient of a chunk (3.3 GB for the 0.54 billion of a 7B model; 2 P + 2 P if summed in bfloat16). A chunk's logits
take at most 256 MiB in float32 on an accelerator; the backward pass needs about four copies.

Guaranteed: `adopt` compares the forest's logits with those of the separate segments on a small forest, to rounding. A
model that can't take a forest (recurrent layers, custom attention, ALiBi, capped scores, sinks) computes each segment
as a padded row of its class's own forward, compared in the same way. A model whose last layer is not plain
(engines/embedded/architecture.py) runs its full decoder. Without a forest the model computes as before. The
projection's gradient is summed over chunks in float32 or wider and rounded once.
Not covered: numbers that differ only at lengths beyond the probe's (engines/embedded/parity.py).

Axes: T places, U places that predict, N trained tokens, W hidden size, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from palimpsest.config.schema import Layout
from palimpsest.engines.embedded.architecture import (
    Head,
    check_layers,
    choose,
    context_of,
    decoder_of,
    head_of,
    last_layer_is_plain,
    ways_of,
)
from palimpsest.engines.embedded.forest.attention import NAME, attend, plan_of, register
from palimpsest.engines.embedded.forest.layout import Forest, build_forests, unweighted
from palimpsest.engines.embedded.parity import Ids, disagreement, fault_of
from palimpsest.engines.embedded.sampling.draw import log_probabilities
from palimpsest.errors import ModelError

# ---- Hidden states at the places that predict ----------------------------------------------------------------


def hidden_at(model: Any, forest: Forest, dtype: torch.dtype | None = None) -> Tensor:
    """[U, W] last hidden states at `forest.places`; call `adopt` on `model` first.

    `dtype`: compute dtype, if not the weights'.
    """
    decoder = decoder_of(model)
    if ways_of(model).layout == "segments":
        return _apart(decoder, forest)
    ids, positions = forest.input_ids[None], forest.positions[None]
    plan = plan_of(forest, dtype or model.dtype, window=context_of(model).sliding)
    *layers, last = getattr(decoder, "layers", (None,))  # others, such as GPT-2, have them under another name
    sharded = getattr(last, "forest_at", None)
    if plan.window is not None or not (sharded or last_layer_is_plain(model)):
        # transformers passes a mask of four dimensions on unread: the forest determines visibility.
        unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
        states: Tensor = decoder(
            input_ids=ids, position_ids=positions, attention_mask=unread, use_cache=False, forest=plan
        ).last_hidden_state
        return states[0, forest.places]
    hidden = decoder.embed_tokens(ids)
    rotation = decoder.rotary_emb(hidden, position_ids=positions)
    for layer in layers:
        hidden = layer(hidden, attention_mask=None, position_embeddings=rotation, forest=plan)
    hidden = sharded(hidden, rotation, forest) if sharded else last_layer_at(last, hidden, rotation, forest)
    normed: Tensor = decoder.norm(hidden)
    return normed


def _apart(decoder: Any, forest: Forest) -> Tensor:
    """[U, W] `hidden_at` of separate rows, padded at their ends: no token sees a later one."""
    begins = torch.nonzero(forest.positions == 0)[:, 0]
    sizes = torch.diff(begins, append=begins.new_tensor([forest.physical_tokens])).tolist()
    states: Tensor = decoder(
        input_ids=pad_sequence(forest.input_ids.split(sizes), batch_first=True), use_cache=False
    ).last_hidden_state
    rows = torch.searchsorted(begins, forest.places, right=True) - 1
    return states[rows, forest.positions[forest.places]]


def last_layer_at(last: Any, hidden: Tensor, rotation: tuple[Tensor, Tensor], forest: Forest) -> Tensor:
    """[U, W] output of the last layer at `forest.places`. Sharded layers have it as `forest_at` (ray/sharding.py)."""
    attended = _attention_at(last.self_attn, last.input_layernorm(hidden), rotation, forest)
    hidden = hidden[0, forest.places] + attended
    return hidden + last.mlp(last.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


def _attention_at(layer: Any, hidden: Tensor, rotation: tuple[Tensor, Tensor], forest: Forest) -> Tensor:
    """[U, W] output of an attention layer for `hidden` [1, T, W], with queries only at `forest.places`."""
    plan = plan_of(forest, hidden.dtype, forest.places)
    everywhere = slice(None)
    query = _heads(layer, "q", hidden, rotation, forest.places)
    key = _heads(layer, "k", hidden, rotation, everywhere)
    value = layer.v_proj(hidden).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
    projected: Tensor = layer.o_proj(attend(query, key, value, plan, layer.scaling)[0].flatten(1))
    return projected


def _heads(layer: Any, name: str, hidden: Tensor, rotation: tuple[Tensor, Tensor], where: Tensor | slice) -> Tensor:
    """Rotated queries or keys [1, heads, places, D]."""
    cos, sin = (table[:, None, where] for table in rotation)
    heads: Tensor = getattr(layer, f"{name}_proj")(hidden[:, where]).unflatten(-1, (-1, layer.head_dim))
    if hasattr(layer, f"{name}_norm"):
        heads = getattr(layer, f"{name}_norm")(heads)
    heads = heads.transpose(1, 2)
    left, right = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-right, left], dim=-1) * sin


# ---- Check of a model's attention over prefix forests --------------------------------------------------------


# A prefix of three, below it branches of one level and of two, and a separate row: a forest with every kind of part.
_PROBE = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 8), (1, 2, 3, 6, 7, 9, 10), (11, 12, 13))


def adopt(model: Any, layout: Layout | None = None) -> None:
    """Choose the learner's layout for `model`: forests if they are exact, otherwise separate segments.

    `layout`: that one. Raises ModelError if it, or without it neither, gives the logits of the model's class.
    """
    register()
    before = model.config._attn_implementation
    reason = "learner.layout=segments" if layout == "segments" else _fault(model, "forest")
    choose(model, layout_reason=reason or "")
    if reason is None:
        return
    if model._can_set_attn_implementation():
        model.set_attn_implementation(before)
    fault = reason if layout == "forest" else _fault(model, "segments")
    if fault is not None:
        raise ModelError(f"{type(model).__name__} supports sampling but not training: {fault}")


def _fault(model: Any, layout: Layout) -> str | None:
    """None if the logits in `layout` are the class's own; otherwise the reason."""
    choose(model, layout=layout)
    if layout == "forest":
        if not model._can_set_attn_implementation():
            return "its attention bypasses transformers' attention interface"
        model.set_attn_implementation(NAME)
    places = [(row, at) for row, tokens in enumerate(_PROBE) for at in range(len(tokens) - 1)]

    def check() -> str | None:
        if layout == "forest":
            check_layers(model)
        off = disagreement(model, _PROBE, places, lambda rows: _together(model, rows))
        return off and f"computed as {'a prefix forest' if layout == 'forest' else layout}, its {off}"

    return fault_of(check)


@torch.no_grad()
def _together(model: Any, rows: list[Ids]) -> Tensor:
    """[U, V] logits after every token but the last of each of `rows`, computed as one forest."""
    device = model.get_input_embeddings().weight.device
    layout = ways_of(model).layout or "forest"
    (forest,) = build_forests([unweighted(row) for row in rows], 1 << 20, 1 << 20, device, layout=layout, min_shared=1)
    states = hidden_at(model, forest)[forest.predicts].split(forest.counts)
    ordered = [states[forest.indices.index(i)] for i in range(len(rows))]
    return head_of(model)(torch.cat(ordered))


# ---- Log-probabilities of trained tokens, without all logits in memory ---------------------------------------


KEPT_ELEMENTS = 1 << 23  # logits stored for the backward pass, at most: 32 MiB in float32
CHUNK_ELEMENTS = 1 << 26  # logits of a chunk: 441 rows at 151,936 ids, enough for a product to be bound by arithmetic
CACHED_ELEMENTS = 1 << 19  # the same on a CPU: several passes go over them, which the cache makes cheap
CPU_ROWS = 64  # rows of a chunk on a CPU, at least: every chunk reads all weights of the projection


def token_logprobs(
    hidden: Tensor,
    head: Head,
    rows: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    chunk_rows: int | None = None,
    vocab: int,
) -> tuple[Tensor, Tensor]:
    """[N] nats of `targets` [N], each after the state in row `rows` [N] of `hidden` [U, W]; [N] entropies in nats.

    A row with several targets is projected once. The log-probabilities are differentiable; the entropies only with
    `entropy_gradient`, otherwise they cost no memory. `chunk_rows`: rows per recomputed chunk; None: chosen for the
    device, and few logits are stored.
    """
    order = torch.argsort(rows, stable=True)
    rows, targets = rows[order], targets[order]
    keep = torch.is_grad_enabled() and chunk_rows is None and len(hidden) * vocab <= KEPT_ELEMENTS
    chunk_rows = chunk_rows or _chunk_rows(hidden, vocab, keep)
    begins = torch.arange(0, len(hidden) + chunk_rows, chunk_rows, device=rows.device)
    chunks = _Chunks(
        head, chunk_rows, rows, targets, torch.searchsorted(rows, begins).tolist(), temperature, entropy_gradient
    )
    if torch.is_grad_enabled() and not keep:
        weights = [weight for weight in head.parameters() if weight.requires_grad]
        logprobs, entropies = _Recomputed.apply(chunks, hidden, *weights)  # type: ignore[no-untyped-call]
    else:
        logprobs, entropies = chunks.all_of(hidden)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return logprobs[back], entropies[back]


def _chunk_rows(hidden: Tensor, vocab: int, keep: bool) -> int:
    """Rows of a chunk. One chunk if autograd would sum the chunks' gradients in less than float32."""
    if keep and hidden.dtype.itemsize < torch.float32.itemsize:
        return max(1, len(hidden))
    if hidden.device.type == "cpu":
        return max(CPU_ROWS, CACHED_ELEMENTS // vocab)
    return max(1, CHUNK_ELEMENTS // vocab)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Targets, split by the rows of the predicting states."""

    head: Head
    size: int
    """Rows of a chunk."""
    rows: Tensor
    """[N] ascending."""
    targets: Tensor
    bounds: Sequence[int]
    """Start of each chunk in `rows`, and the end."""
    temperature: float
    entropy_gradient: bool

    def of(self, number: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        wanted = slice(self.bounds[number], self.bounds[number + 1])
        rows = self.rows[wanted] - number * self.size
        every = log_probabilities(self.head(hidden), self.temperature)
        with torch.set_grad_enabled(self.entropy_gradient and torch.is_grad_enabled()):
            # An id that a model masks with -inf adds nothing to the entropy, where 0 * -inf would be NaN.
            entropy = -(every.exp() * every.clamp(min=torch.finfo(every.dtype).min)).sum(dim=-1)
        return every.flatten().gather(0, rows * every.shape[1] + self.targets[wanted]), entropy[rows]

    def all_of(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[N] log-probabilities and [N] entropies in the order of `rows`."""
        chunks = [self.of(number, piece) for number, piece in enumerate(hidden.split(self.size))]
        return torch.cat([p[0] for p in chunks]), torch.cat([p[1] for p in chunks])


class _Recomputed(torch.autograd.Function):
    """`_Chunks.all_of` without stored logits; sums the gradients of the head's weights in float32."""

    @staticmethod
    def forward(ctx: Any, chunks: _Chunks, hidden: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        ctx.chunks = chunks
        ctx.save_for_backward(hidden, *weights)
        logprobs, entropies = chunks.all_of(hidden)
        if not chunks.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Chunks last to first, autograd's own order."""
        chunks: _Chunks = ctx.chunks
        hidden, *weights = ctx.saved_tensors
        hidden_grad, sums = torch.empty_like(hidden), dict[int, Tensor]()
        pieces, into = hidden.split(chunks.size), hidden_grad.split(chunks.size)
        outputs = 2 if chunks.entropy_gradient else 1
        for number in reversed(range(len(pieces))):
            wanted = slice(chunks.bounds[number], chunks.bounds[number + 1])
            piece = pieces[number].detach().requires_grad_()
            with torch.enable_grad():
                results = chunks.of(number, piece)[:outputs]
            of_piece, *of_weights = torch.autograd.grad(
                results, (piece, *weights), [grad[wanted] for grad in grads[:outputs]], allow_unused=True
            )
            into[number].copy_(of_piece)
            for at, grad in enumerate(of_weights):
                if grad is not None:
                    wide = torch.promote_types(weights[at].dtype, torch.float32)
                    sums[at] = sums[at].add_(grad) if at in sums else grad.to(wide)
        return None, hidden_grad, *(sums[at].to(w.dtype) if at in sums else None for at, w in enumerate(weights))
