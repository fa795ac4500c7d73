"""What is tried of a model when it is loaded: that the sampler's way to compute it gives the model's own numbers.

Guaranteed: a model that passes is sampled as its class would; another is refused in one line that names the class and
what is missing.
Not covered: training, which a learner tries when it is built (forest/model.py).

Axes: U places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from palimpsest.engines.embedded.agreement import Ids, disagreement, gap, own_logits
from palimpsest.engines.embedded.architecture import check_layers, context_of, head_of
from palimpsest.engines.embedded.forest.attention import NAME, register
from palimpsest.engines.embedded.sampling.forward import Decode, Forward, HFForward, Prefill
from palimpsest.engines.embedded.sampling.kv import KVPool, KVShape
from palimpsest.errors import ModelError

ROWS: tuple[Ids, ...] = (tuple(range(1, 13)), tuple(range(21, 28)))
PLACES = ((0, 4), (1, 2), (0, 8), (0, 9), (1, 4), (0, 10), (1, 5))
"""Where `steps` has logits."""
_AHEAD = {torch.float64: 1e-3, torch.float32: 1e-3}  # of the logits' spread: what later tokens may change by rounding
_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NotImplementedError, AssertionError)


def admit(model: Any) -> None:
    """Have `model` compute its attention as its class does; raises ModelError if it can't be sampled."""
    name = type(model).__name__
    check_layers(model)
    context_of(model)
    try:
        if model._can_set_attn_implementation():
            register()
            model.set_attn_implementation(NAME)
        _check_parts(model)
        _check_causal(model)
        pool = KVPool(KVShape.of(model))
        _check_head(model)
        _check_positions(model)
        off = disagreement(model, ROWS, PLACES, lambda rows: steps(HFForward(model, pool), pool, rows))
    except _ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{name} can't be sampled: its forward does not take positions, masks and keys of several sequences "
            f"({reason:.160})"
        ) from None
    if off is not None:
        raise ModelError(f"{name} can't be sampled: {off}")


@torch.no_grad()
def steps(forward: Forward, pool: KVPool, rows: list[Ids]) -> Tensor:
    """[U, V] logits at `PLACES` of two rows, prefilled in part after a stored prefix, then decoded."""
    pool.reserve(2, 16)
    first, second = (np.array(row, np.int64) for row in rows)
    both = np.arange(2)
    calls = (
        (None, Prefill(both, [first[:5], second[:3]], np.zeros(2, np.int64))),
        (None, Prefill(both[:1], [first[5:9]], np.array([5]))),
        (Decode(both[:1], first[9:10], np.array([9])), Prefill(both[1:], [second[3:5]], np.array([3]))),
        (Decode(both, np.array([first[10], second[5]]), np.array([10, 5])), None),
    )
    return torch.cat([forward.step(*call) for call in calls])


def _check_parts(model: Any) -> None:
    projection, decoder = model.get_output_embeddings(), model.get_decoder()
    if not isinstance(projection, torch.nn.Linear) or not isinstance(decoder, PreTrainedModel) or decoder is model:
        raise ModelError(
            f"{type(model).__name__} can't be sampled: it has no decoder apart from one linear output projection"
        )


def _check_head(model: Any) -> None:
    """Refuse models that change their logits after the output projection in a way that `head_of` doesn't know."""
    projection = model.get_output_embeddings()
    ids = torch.arange(1, 5, device=projection.weight.device)[None] % projection.weight.shape[0]
    # Large logits, for a cap to show.
    handle = projection.register_forward_hook(lambda module, inputs, logits: logits * 1000)
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, use_cache=False).logits.float()
            states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            ours = head_of(model)(states).float()
    finally:
        handle.remove()
    if not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ModelError(f"{type(model).__name__} can't be sampled: it changes its logits after the output projection")


def _check_causal(model: Any) -> None:
    """Refuse encoders: what stands behind a token must not change it."""
    half = len(ROWS[0]) // 2
    vocab = model.get_output_embeddings().weight.shape[0]
    start, rest, other = (tuple(t * 7919 % vocab for t in row) for row in (ROWS[0][:half], ROWS[0][half:], ROWS[1]))
    (one,), (two,) = (own_logits(model, [start + end]) for end in (rest, other[: len(rest)]))
    if any(bool((logits.isnan() | logits.isposinf()).any()) for logits in (one, two)):  # a class may mask with -inf
        raise ModelError(
            f"{type(model).__name__} can't be sampled: its weights give logits that are not finite; take another copy "
            "of the model, or model.dtype=float32"
        )
    if not gap(two[:half], one[:half]) < _AHEAD.get(model.dtype, 0.1):
        raise ModelError(
            f"{type(model).__name__} can't be sampled: its tokens see those behind them, as in an encoder; use a "
            "decoder"
        )


def _check_positions(model: Any) -> None:
    """Refuse models that turn a token otherwise when a later one stands in the same call."""
    device, last = model.get_input_embeddings().weight.device, context_of(model).tokens
    ids = torch.ones(2, 2, dtype=torch.long, device=device)
    near = torch.tensor([[0, 1], [0, 1]], device=device)
    far = torch.tensor([[0, 1], [last - 2, last - 1]], device=device)
    turns = []
    for positions in (near, far):
        with _rotations(model) as seen, torch.no_grad():
            model.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False)
        turns.append(seen)
    for alone, beside in zip(*turns, strict=True):
        if alone.shape[0] == 2 and not torch.equal(alone[0], beside[0]):
            raise ModelError(
                f"{type(model).__name__} can't be sampled: how it turns a token depends on the longest position in "
                "the call, so requests would change each other"
            )


@contextmanager
def _rotations(model: Any) -> Iterator[list[Tensor]]:
    """Within it, what the model's rotary positions give is added to the list, first rows first."""
    seen: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        seen.extend(output if isinstance(output, tuple) else (output,))

    modules = [m for m in model.get_decoder().modules() if "rotary" in type(m).__name__.lower()]
    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
