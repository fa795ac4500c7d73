"""Segments for tests of the prefix forest, and their gradients one by one."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Any

import torch
from torch import Tensor

from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.types import Completion, SampledSpan, Segment

VOCAB = 200


def credited(ids: Sequence[int], mask: Sequence[bool], draw: random.Random) -> TrainSegment:
    """A segment with different log-probabilities, advantages and weights for every token."""
    return TrainSegment(
        masked(ids, mask, [-draw.uniform(3, 7) if m else 0.0 for m in mask]),
        tuple(compress([draw.uniform(-1, 1) for _ in mask], mask)),
        tuple(compress([draw.uniform(0.001, 0.02) for _ in mask], mask)),
    )


def masked(ids: Sequence[int], mask: Sequence[bool], logprobs: Sequence[float]) -> Segment:
    """A segment of `ids` [T] whose tokens with a true `mask` [T] were sampled with `logprobs` [T]."""
    edges = [t for t, (a, b) in enumerate(pairwise([False, *mask, False])) if a != b]
    sampled = tuple(SampledSpan(*edge, 0) for edge in zip(edges[::2], edges[1::2], strict=True))
    return Segment(tuple(ids), sampled, tuple(compress(logprobs, mask)))


def completed(prompt: Sequence[int], done: Completion, advantage: float = 1.0, weight: float = 1.0) -> TrainSegment:
    """The prompt and its completion, of which all tokens are trained."""
    before, count = len(prompt), len(done.token_ids)
    segment = Segment((*prompt, *done.token_ids), (SampledSpan(before, before + count, 0),), done.logprobs)
    return TrainSegment(segment, (advantage,) * count, (weight,) * count)


def grown(draw: random.Random, *, depth: int, length: int, vocab: int = VOCAB, branches: int = 3) -> list[list[int]]:
    """Rows of a random tree of `depth` levels below its root; some end at inner nodes, some twice."""
    rows: list[list[int]] = []

    def grow(prefix: list[int], levels: int) -> None:
        row = prefix + [draw.randrange(vocab) for _ in range(draw.randint(1 if prefix else 2, length))]
        if levels == 0 or draw.random() < 0.2:
            rows.extend([row] * draw.choice((1, 1, 2)))
        for _ in range(draw.randint(1, branches) if levels else 0):
            grow(row, levels - 1)

    grow([], depth)
    draw.shuffle(rows)
    return rows


def batch_of_rows(rows: Sequence[Sequence[int]], draw: random.Random, share: float = 0.4) -> StepBatch:
    """`rows` as segments; about `share` of the tokens of each is trained, the last one always."""
    masks = [[i > 0 and (draw.random() < share or i == len(row) - 1) for i in range(len(row))] for row in rows]
    return StepBatch(tuple(credited(row, mask, draw) for row, mask in zip(rows, masks, strict=True)))


def exact(model: Any) -> Any:
    """A copy in float64 throughout; transformers' RMSNorm would still go through float32."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(_norm, module)
    return model


def _norm(module: Any, x: Tensor) -> Tensor:
    weight: Tensor = module.weight
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def apart(
    model: Any, batch: StepBatch, *, clipped: bool = True, temperature: float = 1.0
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the policy gradient with one forward pass per segment.

    An independent computation, with PPO's clip at 0.2 and the dual clip at 3 if `clipped`.
    """
    model.zero_grad(set_to_none=True)
    total, device = 0.0, next(model.parameters()).device
    for item in batch.segments:
        where = torch.tensor(item.segment.positions, device=device)
        if not len(where):
            continue
        ids = torch.tensor(item.segment.token_ids, device=device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, where - 1] / temperature
        every = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        logprobs = every.gather(1, ids[where][:, None])[:, 0]
        columns = [item.segment.logprobs, item.advantages, item.weights]
        sampler, advantages, weights = (torch.tensor(x, dtype=logprobs.dtype, device=device) for x in columns)
        ratio = (logprobs - sampler).exp()
        loss = -advantages * ratio
        if clipped:
            loss = torch.maximum(loss, -advantages * ratio.clamp(0.8, 1.2))
            loss = torch.where(advantages < 0, torch.minimum(loss, -3 * advantages), loss)
        (weights * loss).sum().backward()
        total += float((weights * loss).sum().detach())
    return total, gradients(model)


def largest_error(result: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Of all parameters, the largest difference relative to the parameter's largest gradient.

    Gradients below 1e-4 of the model's largest are sums that cancelled out, so that their errors are relative to that;
    errors are absolute if all gradients are 0 because every token is clipped.
    """
    assert result.keys() == wanted.keys()
    noise = 1e-4 * max(float(g.abs().max()) for g in wanted.values()) or 1.0
    return max(float((result[n] - g).abs().max()) / max(float(g.abs().max()), noise) for n, g in wanted.items())
