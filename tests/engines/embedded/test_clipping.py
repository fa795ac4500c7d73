"""The norm of gradients against one computed in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palimpsest.engines.embedded.optim import PIECE, clip_grad_norm, total_norm


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1e-3


def exact(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in tensors))


def bound(tensors: list[Tensor]) -> float:
    """Relative error where the squares of each piece are added one after the other in float32.

    No order of additions loses more. Processors add 4, 8 or 16 squares at once; each doubling leaves a third of the
    error.
    """
    pieces = [piece.square().numpy() for each in tensors for piece in each.flatten().split(PIECE) if len(piece)]
    total = math.fsum(float(np.cumsum(squares, dtype=np.float32)[-1]) for squares in pieces)
    return abs(math.sqrt(total) / exact(tensors) - 1)


def test_the_norm_of_a_large_gradient_is_right() -> None:
    large = drawn(10_000, 1_000)  # of which torch's is 4e-4 too small where 8 squares are added at once
    assert float(total_norm([large])) == pytest.approx(exact([large]), rel=bound([large]))


def test_several_gradients_have_one_norm_and_none_have_0() -> None:
    several = [drawn(PIECE + 1), drawn(3, 5, seed=1) * 100, drawn(1, seed=2), torch.zeros(0)]
    assert float(total_norm(several)) == pytest.approx(exact(several), rel=bound(several))
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
    weight = nn.Parameter(torch.zeros(10_000_000))
    weight.grad = drawn(10_000_000)
    most = bound([weight.grad]) + 1e-6  # torch divides by the norm and 1e-6
    clip_grad_norm([weight], 0.5)
    assert exact([weight.grad]) == pytest.approx(0.5, rel=most)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_has_no_finite_norm(value: float) -> None:
    grads = [drawn(PIECE + 1), drawn(5)]
    grads[0][-1] = value
    assert not math.isfinite(float(total_norm(grads)))
