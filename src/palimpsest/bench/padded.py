"""The ways that the forest is measured against, written plainly.

`padded_gradient` is how the originals train: every segment a row of equal width, logits for every position.
`plain_gradient` is one row after another of its own length, logits where they are needed: as fast as rows that share
nothing get, and the independent computation for the gradient.

Axes: B rows, T tokens of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from palimpsest.config.schema import LossConfig
from palimpsest.engines.losses import policy_loss
from palimpsest.engines.protocol import StepBatch, TrainSegment


def padded_gradient(
    model: Any, segments: Sequence[TrainSegment], width: int, micro_batch_tokens: int, loss: LossConfig | None = None
) -> float:
    """Loss, its gradient accumulated, from rows of `width` tokens and full logits; as many rows at once as fit."""
    rows = max(1, micro_batch_tokens // width)
    parts = [segments[begin : begin + rows] for begin in range(0, len(segments), rows)]
    return sum(_padded(model, part, width, loss or LossConfig()) for part in parts)


def _padded(model: Any, part: Sequence[TrainSegment], width: int, config: LossConfig) -> float:
    def column(values: Any, fill: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*v, *[fill] * (width - len(v))] for v in map(values, part)], dtype=dtype)

    ids = column(lambda item: item.segment.token_ids, 0, torch.long)
    mask = column(lambda item: item.segment.loss_mask, False, torch.bool)[:, 1:]
    attention = column(lambda item: [1] * len(item.segment.token_ids), 0, torch.long)
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    every = logits.float().log_softmax(-1)
    entropy = -(every.detach().exp() * every.detach()).sum(-1)
    logprobs = every.gather(-1, ids[:, 1:, None])[..., 0]
    sampler = column(lambda item: item.segment.logprobs, 0.0, torch.float32)[:, 1:][mask]
    loss, _ = policy_loss(
        logprobs=logprobs[mask],
        old_logprobs=sampler,
        sampler_logprobs=sampler,
        advantages=column(lambda item: item.advantages, 0.0, torch.float32)[:, 1:][mask],
        weights=column(lambda item: item.weights, 0.0, torch.float32)[:, 1:][mask],
        ref_logprobs=None,
        entropy=entropy[mask],
        config=config,
    )
    loss.backward()
    return float(loss.detach())


def plain_gradient(model: Any, batch: StepBatch, loss: LossConfig | None = None) -> float:
    """Loss, its gradient accumulated, one segment at a time."""
    total, device = 0.0, model.get_input_embeddings().weight.device
    for item in batch.segments:
        ids = torch.tensor([item.segment.token_ids], device=device)
        chosen = torch.tensor(item.segment.loss_mask[1:], device=device)
        states = model.get_decoder()(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0]
        logits = model.get_output_embeddings()(states[chosen])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logprobs = logits.log_softmax(-1).gather(-1, ids[0, 1:][chosen][:, None])[:, 0]
        sampler, advantages, weights = (
            torch.tensor(values[1:], dtype=logprobs.dtype, device=device)[chosen]
            for values in (item.segment.logprobs, item.advantages, item.weights)
        )
        value, _ = policy_loss(
            logprobs=logprobs,
            old_logprobs=sampler,
            sampler_logprobs=sampler,
            advantages=advantages,
            weights=weights,
            ref_logprobs=None,
            entropy=None,
            config=loss or LossConfig(),
        )
        value.backward()
        total += float(value.detach())
    return total
