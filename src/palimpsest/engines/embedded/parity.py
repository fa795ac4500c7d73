"""Parity checks: the sampler's forward and the forest's match the logits of the model's class.

The distance of two correct kernels depends on the model: in bfloat16 a hundredth of the logits' spread, or a third if a
few hidden units are huge. The noise is measured: the model's own eager forward runs twice, the second time padded and
with attention in twice the precision. Another forward passes within a few times that noise.

`admit` runs the checks of the sampler when a model is loaded and chooses how to sample; a learner runs those of the
forest when it is built (forest/forest_model.py).

Guaranteed: a probe of a dozen tokens reaches beyond any sliding window, because it runs with a narrow one. A model that
passes samples like its class, sharing keys and values if it can; any other is rejected in one line that names the class
and the missing feature.
Not covered: numbers that differ only beyond the probe's length, for another reason than the window.

Axes: U places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from palimpsest.engines.embedded.architecture import (
    check_layers,
    choose,
    context_of,
    decoder_of,
    head_of,
    text_config,
)
from palimpsest.engines.embedded.forest.attention import NAME, PRECISE, register
from palimpsest.engines.embedded.sampling.continuous_batch import StateForward, StatePool
from palimpsest.engines.embedded.sampling.forward import Decode, Forward, HFForward, Prefill
from palimpsest.engines.embedded.sampling.kv_cache import KVPool, KVShape
from palimpsest.errors import ModelError, first_line

FLOOR = {torch.float64: 1e-6, torch.float32: 1e-4}  # of the logits' spread: less passes for any noise
LEAST = 0.02  # the same for shorter floats
FACTOR = 4  # times the noise
TRIES = 3  # a fault must differ in all probes: rounding sometimes changes the choice of experts
WINDOW = 3  # tokens that a sliding layer sees during a probe

Ids = tuple[int, ...]
Place = tuple[int, int]
"""Index of a row, and of a token in it."""


def disagreement(
    model: Any, rows: Sequence[Ids], places: Sequence[Place], compute: Callable[[list[Ids]], Tensor]
) -> str | None:
    """None if `compute(rows)` matches the model's own logits [U, V] at `places`; otherwise the difference.

    `rows` are mapped to ids of the vocabulary, equal tokens to equal ids.
    """
    vocab = model.get_output_embeddings().weight.shape[0]
    with narrowed(model):
        for attempt in range(TRIES):
            drawn = [tuple((token * 7919 + attempt * 104_729) % vocab for token in row) for row in rows]
            expected, noise = reference(model, drawn, places)
            off = gap(compute(drawn), expected)
            if off <= max(FLOOR.get(model.dtype, LEAST), FACTOR * noise):  # False where it is NaN
                return None
    return f"logits differ from its own by {off:.2g} of their spread, rounding explains {noise:.1g}"


def fault_of(check: Callable[[], str | None]) -> str | None:
    """The result of `check`, or the first line of its error: classes fail in many ways."""
    try:
        return check()
    except (ModelError, *_ERRORS) as error:
        return first_line(error)


@torch.no_grad()
def reference(model: Any, rows: Sequence[Ids], places: Sequence[Place]) -> tuple[Tensor, float]:
    """[U, V] logits of the model's own eager forward of each row, and their rounding noise."""
    with attention(model, "eager"):
        logits = model_logits(model, rows)
        exact = torch.stack([logits[row][at] for row, at in places])
    width = max(map(len, rows))
    with attention(model, PRECISE):
        padded = model_logits(model, [tuple(row) + (row[-1],) * (width - len(row)) for row in rows], together=True)
    return exact, gap(torch.stack([padded[row][at] for row, at in places]), exact)


@torch.no_grad()
def model_logits(model: Any, rows: Sequence[Ids], *, together: bool = False) -> list[Tensor]:
    """Logits [length, V] per row; `together` in one call, which needs rows of one length."""
    device, decoder = model.get_input_embeddings().weight.device, decoder_of(model)
    calls = [torch.tensor(rows, device=device)] if together else [torch.tensor([row], device=device) for row in rows]
    states = [decoder(input_ids=ids, use_cache=False).last_hidden_state for ids in calls]
    return [head_of(model)(row) for state in states for row in state]


def gap(actual: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference of logits [U, V], relative to the spread of `wanted`.

    >>> gap(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 2.0]]))  # a shift of all changes no probability
    0.0
    """
    finite = wanted.isfinite().all(0)  # a class may mask ids with -inf
    actual, wanted = actual[:, finite].double(), wanted[:, finite].double()
    off = actual - wanted
    off = off - off.mean(-1, keepdim=True)
    spread = (wanted - wanted.mean(-1, keepdim=True)).square().mean().sqrt()
    return float(off.square().mean().sqrt() / (spread + 1e-30))


@contextmanager
def attention(model: Any, name: str) -> Iterator[None]:
    """Context in which `model` computes attention by `name`, if its class allows that."""
    if not model._can_set_attn_implementation():
        yield
        return
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def narrowed(model: Any) -> Iterator[None]:
    """Context in which the sliding layers of `model` see `WINDOW` tokens."""
    wide = context_of(model).sliding
    if wide is None:
        yield
        return
    holders = [text_config(model), *(m for m in decoder_of(model).modules() if _window(m) is not None)]
    before = [_window(holder) for holder in holders]
    for holder in holders:
        holder.sliding_window = WINDOW
    try:
        yield
    finally:
        for holder, window in zip(holders, before, strict=True):
            holder.sliding_window = window


def _window(holder: Any) -> Any:
    return getattr(holder, "sliding_window", None)


# ---- Checks of the sampler when a model is loaded ------------------------------------------------------------


ROWS: tuple[Ids, ...] = (tuple(range(1, 13)), tuple(range(21, 28)))
PLACES = ((0, 4), (1, 2), (0, 8), (0, 9), (1, 4), (0, 10), (1, 5))
"""Row and token of the logits of `steps`."""
_AHEAD = {torch.float64: 1e-3, torch.float32: 1e-3}  # of the logits' spread: what later tokens may change by rounding
_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NotImplementedError, AssertionError)


def admit(model: Any) -> None:
    """Choose attention and sampling of `model` so that it matches its class; raises ModelError if it can't be sampled.

    Keys and values in the sampler's pool; otherwise the class's own cache, or no cache if that is wrong too.
    """
    refusal = f"{type(model).__name__} can't be sampled"
    context_of(model)
    if model._can_set_attn_implementation():
        register()
        model.set_attn_implementation(NAME)
    try:
        _check_modules(model)
        _check_causal(model)
        _check_head(model)
        _check_positions(model)
    except _ERRORS as error:
        raise ModelError(f"{refusal}: its forward fails ({first_line(error):.160})") from None
    reason = _fault(model, _pooled)
    choose(model, sampling="pool" if reason is None else "cache", sampling_reason=reason or "")
    if reason is None or _fault(model, partial(_kept, keep=True)) is None:
        return
    choose(model, sampling="whole")
    if (fault := _fault(model, partial(_kept, keep=False))) is not None:
        raise ModelError(f"{refusal}: {fault}")


def _fault(model: Any, compute: Callable[[Any, list[Ids]], Tensor]) -> str | None:
    reason = fault_of(lambda: disagreement(model, ROWS, PLACES, partial(compute, model)))
    return reason and f"{reason:.160}"


def _pooled(model: Any, rows: list[Ids]) -> Tensor:
    check_layers(model)
    pool = KVPool(KVShape.of(model))
    return steps(HFForward(model, pool), pool, rows)


def _kept(model: Any, rows: list[Ids], *, keep: bool) -> Tensor:
    """[U, V] logits at `PLACES`, of whole prompts and tokens decoded after them."""
    forward, ids = StateForward(model, StatePool(model, keep=keep)), [np.array(row, np.int64) for row in rows]
    first = forward.step(None, Prefill(np.arange(2), [ids[0][:5], ids[1][:3]], np.zeros(2, np.int64)))
    seen = dict(zip(PLACES, first, strict=False))
    for row, at in ((row, at) for row, start, end in ((0, 5, 11), (1, 3, 6)) for at in range(start, end)):
        seen[row, at] = forward.step(Decode(np.array([row]), ids[row][at : at + 1], np.array([at])), None)[0]
    return torch.stack([seen[place] for place in PLACES])


@torch.no_grad()
def steps(forward: Forward, pool: KVPool, rows: list[Ids]) -> Tensor:
    """[U, V] logits at `PLACES` of two rows, prefilled in part after a stored prefix, then decoded."""
    pool.resize(2, 16)
    first, second = (np.array(row, np.int64) for row in rows)
    both = np.arange(2)
    calls = (
        (None, Prefill(both, [first[:5], second[:3]], np.zeros(2, np.int64))),
        (None, Prefill(both[:1], [first[5:9]], np.array([5]))),
        (Decode(both[:1], first[9:10], np.array([9])), Prefill(both[1:], [second[3:5]], np.array([3]))),
        (Decode(both, np.array([first[10], second[5]]), np.array([10, 5])), None),
    )
    return torch.cat([forward.step(*call) for call in calls])


def _check_modules(model: Any) -> None:
    projection, decoder = model.get_output_embeddings(), decoder_of(model)
    if not isinstance(projection, torch.nn.Linear) or not isinstance(decoder, PreTrainedModel) or decoder is model:
        raise ModelError(
            f"{type(model).__name__} can't be sampled: it has no decoder with one separate linear output projection"
        )


def _check_head(model: Any) -> None:
    """Reject models that change their logits after the output projection in a way unknown to `head_of`."""
    projection = model.get_output_embeddings()
    ids = torch.arange(1, 5, device=projection.weight.device)[None] % projection.weight.shape[0]

    def enlarge(module: Any, inputs: Any, output: Any) -> None:
        output.last_hidden_state.mul_(1000)  # and the logits, for a cap to show

    handle = decoder_of(model).register_forward_hook(enlarge)
    try:
        with torch.no_grad():
            full = model(input_ids=ids, use_cache=False).logits[0]
            states = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state
            ours = head_of(model)(states)[0]
    finally:
        handle.remove()
    if not gap(ours, full) < _AHEAD.get(model.dtype, LEAST):  # ours may be float32 where the class rounds to bfloat16
        raise ModelError(f"{type(model).__name__} can't be sampled: it changes its logits after the output projection")


def _check_causal(model: Any) -> None:
    """Reject encoders: later tokens must not change a token."""
    half = len(ROWS[0]) // 2
    vocab = model.get_output_embeddings().weight.shape[0]
    start, rest, other = (tuple(t * 7919 % vocab for t in row) for row in (ROWS[0][:half], ROWS[0][half:], ROWS[1]))
    (one,), (two,) = (model_logits(model, [start + end]) for end in (rest, other[: len(rest)]))
    if any(bool((logits.isnan() | logits.isposinf()).any()) for logits in (one, two)):  # a class may mask with -inf
        raise ModelError(
            f"{type(model).__name__} can't be sampled: its weights give logits that are not finite; take another copy "
            "of the model, or model.dtype=float32"
        )
    if not gap(two[:half], one[:half]) < _AHEAD.get(model.dtype, 0.1):
        raise ModelError(
            f"{type(model).__name__} can't be sampled: its tokens see later ones, as in an encoder; use a decoder"
        )


def _check_positions(model: Any) -> None:
    """Reject models whose rotation of a token depends on later tokens of the call."""
    if not _rotary(model):
        return
    device, last = model.get_input_embeddings().weight.device, context_of(model).tokens
    ids = torch.ones(2, 2, dtype=torch.long, device=device)
    near = torch.tensor([[0, 1], [0, 1]], device=device)
    far = torch.tensor([[0, 1], [last - 2, last - 1]], device=device)
    turns = []
    for positions in (near, far):
        with _rotations(model) as rotations, torch.no_grad():
            decoder_of(model)(input_ids=ids, position_ids=positions, use_cache=False)
        turns.append(rotations)
    for alone, batched in zip(*turns, strict=True):
        if alone.shape[0] == 2 and not torch.equal(alone[0], batched[0]):
            raise ModelError(
                f"{type(model).__name__} can't be sampled: its rotation of a token depends on the longest position in "
                "the call, so requests would affect each other"
            )


@contextmanager
def _rotations(model: Any) -> Iterator[list[Tensor]]:
    """Context that appends the outputs of the model's rotary positions to the list."""
    rotations: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        rotations.extend(output if isinstance(output, tuple) else (output,))

    handles = [module.register_forward_hook(keep) for module in _rotary(model)]
    try:
        yield rotations
    finally:
        for handle in handles:
            handle.remove()


def _rotary(model: Any) -> list[Any]:
    return [module for module in decoder_of(model).modules() if "rotary" in type(module).__name__.lower()]
