"""Fits a model with attention over prefix forests, or refuses it with the reason.

Guaranteed: a model that passes gives, on a small forest, the hidden states that it gives on the segments apart; one
whose attention can't take a forest (attention of its own, ALiBi, capped scores, sinks) is refused by name and never
trained. Without a forest the model computes as before.
Not covered: numbers that differ only at lengths beyond the probe's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.engines.embedded.forest.attention import NAME, register
from palimpsest.engines.embedded.forest.hidden import hidden_at
from palimpsest.engines.embedded.forest.layout import build_forests
from palimpsest.engines.protocol import TrainSegment
from palimpsest.errors import ModelError
from palimpsest.types import Segment

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}  # relative to the states' spread

# A prefix of three, below it branches of one level and of two, and a row of its own: a forest with every kind of part.
_PROBE = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 8), (1, 2, 3, 6, 7, 9, 10), (11, 12, 13))


def adopt(model: Any) -> None:
    """Make `model` take forests; raises ModelError if it can't."""
    register()
    refusal = f"{type(model).__name__} can't be trained on prefix forests"
    if not model._can_set_attn_implementation():
        raise ModelError(f"{refusal}: it has attention of its own, outside transformers' attention interface")
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        gap = _probe(model)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, ModelError) as error:
        model.set_attn_implementation(before)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{refusal}: {reason}") from None
    if not gap <= TOLERANCE.get(model.dtype, 0.1):  # also where it is NaN
        model.set_attn_implementation(before)
        raise ModelError(f"{refusal}: hidden states differ from those of its segments by {gap:.1g} of their spread")


@torch.no_grad()
def _probe(model: Any) -> float:
    """Largest gap of hidden states between the probe's forest and its rows apart, relative to their spread."""
    vocab = model.get_input_embeddings().weight.shape[0]
    device = model.get_input_embeddings().weight.device
    rows = [tuple(token % vocab for token in row) for row in _PROBE]
    (forest,) = build_forests([_trained(row) for row in rows], 1 << 20, 1 << 20, device, min_shared=1)
    together = hidden_at(model, forest)[forest.predicts].float()
    apart = torch.cat([_states(model, rows[i], device) for i in forest.indices]).float()
    return float((together - apart).abs().max() / (apart.std() + 1e-6))


def _states(model: Any, row: tuple[int, ...], device: torch.device) -> Tensor:
    ids = torch.tensor([row[:-1]], device=device)
    states: Tensor = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
    return states


def _trained(row: tuple[int, ...]) -> TrainSegment:
    """A segment in which all but the first token is trained."""
    size = len(row)
    mask = (False,) + (True,) * (size - 1)
    segment = Segment(row, mask, (0.0,) * size, (-1,) + (0,) * (size - 1))
    return TrainSegment(segment, (0.0,) * size, (0.0,) * size)
