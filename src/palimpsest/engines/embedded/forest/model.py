"""Fits a model with attention over prefix forests, or refuses it with the reason.

Guaranteed: a model that passes gives, on a small forest, the logits that it gives on the segments apart, to what
rounding does to it; one whose attention can't take a forest (attention of its own, ALiBi, capped scores, sinks) is
refused by name and never trained. Without a forest the model computes as before.
Not covered: numbers that differ only at lengths beyond the probe's (see agreement.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palimpsest.engines.embedded.agreement import Ids, disagreement
from palimpsest.engines.embedded.architecture import head_of
from palimpsest.engines.embedded.forest.attention import NAME, register
from palimpsest.engines.embedded.forest.hidden import hidden_at
from palimpsest.engines.embedded.forest.layout import build_forests
from palimpsest.engines.protocol import TrainSegment
from palimpsest.errors import ModelError
from palimpsest.types import Segment

# A prefix of three, below it branches of one level and of two, and a row of its own: a forest with every kind of part.
_PROBE = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 8), (1, 2, 3, 6, 7, 9, 10), (11, 12, 13))


def adopt(model: Any) -> None:
    """Make `model` take forests; raises ModelError if it can't."""
    register()
    refusal = f"{type(model).__name__} can be sampled but not trained"
    if not model._can_set_attn_implementation():
        raise ModelError(f"{refusal}: it has attention of its own, outside transformers' attention interface")
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    places = [(row, at) for row, tokens in enumerate(_PROBE) for at in range(len(tokens) - 1)]
    try:
        off = disagreement(model, _PROBE, places, lambda rows: _together(model, rows))
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError, ModelError) as error:
        model.set_attn_implementation(before)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{refusal}: {reason}") from None
    if off is not None:
        model.set_attn_implementation(before)
        raise ModelError(f"{refusal}: computed as a prefix forest, its {off}")


@torch.no_grad()
def _together(model: Any, rows: list[Ids]) -> Tensor:
    """[U, V] logits after every token but the last of each of `rows`, computed as one forest."""
    device = model.get_input_embeddings().weight.device
    (forest,) = build_forests([_trained(row) for row in rows], 1 << 20, 1 << 20, device, min_shared=1)
    states = hidden_at(model, forest)[forest.predicts].split(forest.counts)
    ordered = [states[forest.indices.index(i)] for i in range(len(rows))]
    return head_of(model)(torch.cat(ordered))


def _trained(row: tuple[int, ...]) -> TrainSegment:
    """A segment in which all but the first token is trained."""
    size = len(row)
    mask = (False,) + (True,) * (size - 1)
    segment = Segment(row, mask, (0.0,) * size, (-1,) + (0,) * (size - 1))
    return TrainSegment(segment, (0.0,) * size, (0.0,) * size)
