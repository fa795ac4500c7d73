"""The optimizer: norms of gradients compared with float64, AdamW, schedules."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.optim import PIECE, clip_grad_norm, learning_rate, total_norm
from palimpsest.engines.protocol import StepBatch, UpdateStats
from support.forests import batch_of_rows, gradients, grown
from support.models import build_llama

VOCAB = 200
UP = "model.layers.0.mlp.up_proj.weight"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1e-3


def exact(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def bound(tensors: list[Tensor]) -> float:
    """Relative error if the squares of each piece are added one by one in float32; no other order has a larger one."""
    pieces = [piece.square().numpy() for tensor in tensors for piece in tensor.flatten().split(PIECE) if len(piece)]
    total = math.fsum(float(np.cumsum(squares, dtype=np.float32)[-1]) for squares in pieces)
    return abs(math.sqrt(total) / exact(tensors) - 1)


def test_the_norm_of_gradients_is_right() -> None:
    large = [drawn(10_000, 1_000)]  # torch's norm is 4e-4 too small if 8 squares are added at once
    several = [drawn(PIECE + 1), drawn(3, 5, seed=1) * 100, drawn(1, seed=2), torch.zeros(0)]
    for tensors in (large, several):
        assert float(total_norm(tensors)) == pytest.approx(exact(tensors), rel=bound(tensors))
    assert float(total_norm([])) == 0.0


@pytest.mark.parametrize("bound", [0.01, 1e6, math.inf])
def test_small_gradients_are_clipped_as_torch_clips_them_to_the_bit(bound: float) -> None:
    ours, theirs = ([nn.Parameter(torch.zeros(n, 7)) for n in (500, 3)] for _ in range(2))
    for a, b in zip(ours, theirs, strict=True):
        a.grad, b.grad = drawn(*a.shape), drawn(*a.shape)
    unused = nn.Parameter(torch.zeros(2))
    assert torch.equal(clip_grad_norm([*ours, unused], bound), nn.utils.clip_grad_norm_(theirs, bound))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


def test_a_large_gradient_is_scaled_to_the_bound() -> None:
    weight = nn.Parameter(torch.zeros(3_000_000))
    weight.grad = drawn(3_000_000)
    most = bound([weight.grad]) + 1e-6  # torch divides by the norm and 1e-6
    clip_grad_norm([weight], 0.5)
    assert exact([weight.grad]) == pytest.approx(0.5, rel=most)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_has_no_finite_norm(value: float) -> None:
    grads = [drawn(PIECE + 1), drawn(5)]
    grads[0][-1] = value
    assert not math.isfinite(float(total_norm(grads)))


def batch() -> StepBatch:
    draw = random.Random(0)
    return batch_of_rows(grown(draw, depth=1, length=12), draw)


def test_adamw_follows_the_formula() -> None:
    model = build_llama(VOCAB)
    config = OptimConfig(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=None, betas=(0.8, 0.9), eps=1e-6)
    start = dict(model.named_parameters())[UP].detach().clone()
    learner = ForestLearner(model, optim=config)
    learner.accumulate(batch())
    gradient = gradients(model)[UP]
    learner.apply(UpdateStats())
    # First step: both moments are the gradient's, so bias-corrected they are g and g squared.
    expected = start * (1 - 1e-2 * 0.1) - 1e-2 * gradient / (gradient.abs() + 1e-6)
    assert torch.allclose(dict(model.named_parameters())[UP], expected, atol=1e-6)


def test_bfloat16_weights_keep_updates_smaller_than_their_spacing() -> None:
    learner = ForestLearner(build_llama(VOCAB).to(torch.bfloat16), optim=OptimConfig(learning_rate=1e-5))
    master = learner._optimizer._masters[UP]
    before = master.detach().clone()
    learner.update([batch()])
    assert (master != before).float().mean() > 0.9


def test_schedules() -> None:
    cosine = OptimConfig(learning_rate=1.0, warmup_steps=2, lr_scheduler_type="cosine")
    rates = [learning_rate(cosine, step, 10) for step in (0, 1, 2, 6, 10, 99)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0, 0.0])
    assert learning_rate(OptimConfig(learning_rate=1.0), 1000, 10) == 1.0
