"""Whether another way to compute a model gives the model's own numbers, judged by what rounding alone does to them.

How far two correct kernels are apart depends on the model: in bfloat16 by a hundredth of the logits' spread, or by a
third where a few hidden units are huge. So the model's own eager forward is computed twice, the second time padded
and with attention in twice the precision: another way is right if it is no further off than a few times that noise.

Guaranteed: a probe of a dozen tokens reaches beyond a sliding window of any size, for it is run with a narrow one.
Not covered: numbers that differ only at lengths beyond the probe's, for another reason than the window.

Axes: U places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from palimpsest.engines.embedded.architecture import context_of, head_of, text_config
from palimpsest.engines.embedded.forest.attention import PRECISE, register

FLOOR = {torch.float64: 1e-6, torch.float32: 1e-4}  # of the logits' spread: less is no fault, whatever the noise
LEAST = 0.02  # the same for shorter floats
FACTOR = 4  # times the noise
TRIES = 3  # probes that all have to differ: where experts are chosen, one rounding now and then chooses another
WINDOW = 3  # tokens that a sliding layer sees during a probe

Ids = tuple[int, ...]
Place = tuple[int, int]
"""Index of a row, and of a token in it."""


def disagreement(
    model: Any, rows: Sequence[Ids], places: Sequence[Place], compute: Callable[[list[Ids]], Tensor]
) -> str | None:
    """None if `compute(rows)` gives the model's own logits [U, V] after the tokens at `places`; else how far it is off.

    `rows` are mapped to ids of the vocabulary, equal tokens to equal ids.
    """
    vocab = model.get_output_embeddings().weight.shape[0]
    with narrowed(model):
        for attempt in range(TRIES):
            drawn = [tuple((token * 7919 + attempt * 104_729) % vocab for token in row) for row in rows]
            own, noise = reference(model, drawn, places)
            off = gap(compute(drawn), own)
            if off <= max(FLOOR.get(model.dtype, LEAST), FACTOR * noise):  # False where it is NaN
                return None
    return f"logits differ from its own by {off:.2g} of their spread, where rounding makes {noise:.1g}"


@torch.no_grad()
def reference(model: Any, rows: Sequence[Ids], places: Sequence[Place]) -> tuple[Tensor, float]:
    """[U, V] logits of the model's own eager forward of each row, and how far rounding moves them."""
    with attention(model, "eager"):
        own = own_logits(model, rows)
        exact = torch.stack([own[row][at] for row, at in places])
    width = max(map(len, rows))
    with attention(model, PRECISE):
        padded = own_logits(model, [tuple(row) + (row[-1],) * (width - len(row)) for row in rows], together=True)
    return exact, gap(torch.stack([padded[row][at] for row, at in places]), exact)


@torch.no_grad()
def own_logits(model: Any, rows: Sequence[Ids], *, together: bool = False) -> list[Tensor]:
    """For each row [its length, V] logits; `together` in one call, for which all must be of one length."""
    device, decoder = model.get_input_embeddings().weight.device, model.get_decoder()
    calls = [torch.tensor(rows, device=device)] if together else [torch.tensor([row], device=device) for row in rows]
    states = [decoder(input_ids=ids, use_cache=False).last_hidden_state for ids in calls]
    return [head_of(model)(each) for state in states for each in state]


def gap(found: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference of logits [U, V], relative to the spread of those wanted.

    >>> gap(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 2.0]]))  # a shift of all changes no probability
    0.0
    """
    kept = wanted.isfinite().all(0)  # a class may mask ids with -inf
    found, wanted = found[:, kept].double(), wanted[:, kept].double()
    off = found - wanted
    off = off - off.mean(-1, keepdim=True)
    spread = (wanted - wanted.mean(-1, keepdim=True)).square().mean().sqrt()
    return float(off.square().mean().sqrt() / (spread + 1e-30))


@contextmanager
def attention(model: Any, name: str) -> Iterator[None]:
    """Within it `model` computes attention by `name`, if its class lets others do so at all."""
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
    """Within it the sliding layers of `model` see `WINDOW` tokens."""
    wide = context_of(model).sliding
    if wide is None:
        yield
        return
    holders = [text_config(model), *(m for m in model.get_decoder().modules() if _window(m) is not None)]
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
