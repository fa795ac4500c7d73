"""The losses compared with the published formulas in plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palimpsest.config.schema import LossConfig
from palimpsest.engines.losses import nll_loss, policy_loss


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def grads(tensor: Tensor) -> list[float]:
    assert tensor.grad is not None
    return tensor.grad.tolist()


def numbers(sums: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in sums.items()}


def loss_of(
    *, new: Tensor, old: Tensor, advantage: Tensor, sampler: Tensor | None = None, ref: Tensor | None = None,
    entropy: Tensor | None = None, **config: Any,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """The mean over tokens, after its backward pass."""
    loss, sums = policy_loss(
        logprobs=new,
        old_logprobs=old,
        sampler_logprobs=old if sampler is None else sampler,
        advantages=advantage,
        weights=torch.full_like(new, 1 / new.numel()),
        ref_logprobs=ref,
        entropy=entropy,
        config=LossConfig(**config),
    )
    if loss.requires_grad:
        loss.backward()
    return loss, sums


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [
        # low .2, high .3, dual clip 3; the gradient is by the log-probability
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 1.0, -1.2, -1.2),  # between the usual bound and clip-higher's
        (1.5, 1.0, -1.3, 0.0),  # clipped above
        (0.5, 1.0, -0.5, -0.5),  # an answer that became less likely keeps its gradient
        (0.5, -1.0, 0.8, 0.0),  # clipped below
        (1.5, -1.0, 1.5, 1.5),
        (2.9, -1.0, 2.9, 2.9),
        (5.0, -1.0, 3.0, 0.0),  # dual clip
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_branches_of_the_clipped_surrogate(ratio: float, advantage: float, expected: float, gradient: float) -> None:
    new = t(math.log(ratio) - 2).requires_grad_()
    loss, _ = loss_of(new=new, old=t(-2), advantage=t(advantage), clip_ratio_low=0.2, clip_ratio_high=0.3)
    assert loss.item() == pytest.approx(expected)
    assert grads(new) == pytest.approx([gradient])


def test_without_the_dual_clip_the_loss_of_a_bad_token_has_no_bound() -> None:
    loss, sums = loss_of(new=t(math.log(50) - 9), old=t(-9), advantage=t(-1), dual_clip=None)
    assert loss.item() == pytest.approx(50)
    assert "dual_clip" not in sums


def test_k3_is_capped_at_ten_per_token() -> None:
    loss, _ = loss_of(new=t(-50), old=t(-50), advantage=t(0), ref=t(0), kl_loss_coef=1.0)
    assert loss.item() == 10


def test_truncated_importance_sampling_scales_the_policy_term_and_has_no_gradient() -> None:
    # old over sampler: .5, 4 and 8, capped at 2
    old, new = (t(-1, -1, -1).requires_grad_() for _ in range(2))
    sampler = t(*(-1 - math.log(ratio) for ratio in (0.5, 4, 8))).requires_grad_()
    config: dict[str, Any] = {"old_logprobs": "recompute", "importance_sampling_cap": 2.0}
    loss, sums = loss_of(new=new, old=old, sampler=sampler, advantage=t(1, 1, 1), **config)
    assert (old.grad, sampler.grad) == (None, None)
    assert loss.item() == pytest.approx(-(0.5 + 2 + 2) / 3)
    assert grads(new) == pytest.approx([-0.5 / 3, -2 / 3, -2 / 3])
    assert sums["tis_capped"].item() == 2
    assert sums["logprob_gap"].item() == pytest.approx(math.log(2) + math.log(4) + math.log(8))


def test_entropy_is_a_bonus() -> None:
    entropy = t(2.0, 4.0).requires_grad_()
    loss, sums = loss_of(new=t(-1, -1), old=t(-1, -1), advantage=t(0, 0), entropy=entropy, entropy_coeff=0.5)
    assert loss.item() == pytest.approx(-1.5)
    assert grads(entropy) == [-0.25, -0.25]
    assert sums["entropy"].item() == 6


def test_entropy_without_a_coefficient_is_only_a_metric() -> None:
    entropy = t(math.inf).requires_grad_()
    loss, sums = loss_of(new=t(-1).requires_grad_(), old=t(-1), advantage=t(1), entropy=entropy)
    assert (loss.item(), entropy.grad, sums["entropy"].item()) == (-1, None, math.inf)


@pytest.mark.parametrize(("key", "missing"), [("kl_loss_coef", "ref_logprobs"), ("entropy_coeff", "entropy")])
def test_a_term_without_its_input_is_rejected(key: str, missing: str) -> None:
    coefficient: dict[str, Any] = {key: 0.1}
    with pytest.raises(ValueError, match=f"{key}.*{missing}"):
        loss_of(new=t(-1), old=t(-1), advantage=t(1), **coefficient)


def test_metrics_count_tokens() -> None:
    ratios = [1.0, 1.5, 0.5, 5.0]
    new = t(*(math.log(r) - 3 for r in ratios))
    _, sums = loss_of(new=new, old=t(-3, -3, -3, -3), sampler=t(-3, -3, -3, -2), advantage=t(1, 1, -1, -1))
    assert numbers(sums) == pytest.approx({
        "ratio": 8,
        "clip_fraction": 2,  # the second above, the third below
        "dual_clip": 1,
        "approx_kl": sum(r - 1 - math.log(r) for r in ratios),
        "logprob_gap": math.log(1.5) - math.log(0.5) + abs(math.log(5) - 1),
    })  # fmt: skip
    assert all(value.shape == () and not value.requires_grad for value in sums.values())


def test_an_extreme_ratio_stays_finite_in_single_precision() -> None:
    new = torch.tensor([-0.1, -300.0], requires_grad=True)
    old = torch.tensor([-300.0, -0.1])
    loss, _ = loss_of(new=new, old=old, advantage=torch.tensor([-1.0, 1.0]), dual_clip=None)
    assert math.isfinite(loss.item())
    assert all(map(math.isfinite, grads(new)))


def token_loss(new: float, old: float, sampler: float, ref: float, advantage: float) -> float:
    """The formulas for one token."""
    ratio = math.exp(new - old)
    value = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.28))
    if advantage < 0:
        value = min(value, -advantage * 3.0)
    value *= min(math.exp(old - sampler), 1.5)
    return value + 0.01 * (math.exp(ref - new) - (ref - new) - 1)


NATS = st.floats(-2.5, -0.01)


@given(st.lists(st.tuples(NATS, NATS, NATS, NATS, st.floats(-2, 2), st.floats(0, 1)), min_size=1, max_size=20))
@settings(max_examples=50)
def test_the_loss_is_that_of_plain_python_and_micro_batches_add_up(tokens: list[tuple[float, ...]]) -> None:
    config = LossConfig(
        clip_ratio_low=0.2, clip_ratio_high=0.28, kl_loss_coef=0.01, old_logprobs="recompute",
        importance_sampling_cap=1.5, dual_clip=3.0,
    )  # fmt: skip

    def run(rows: list[tuple[float, ...]]) -> tuple[float, dict[str, float]]:
        new, old, sampler, ref, advantages, weights = (t(*column) for column in zip(*rows, strict=True))
        loss, sums = policy_loss(
            logprobs=new, old_logprobs=old, sampler_logprobs=sampler, advantages=advantages, weights=weights,
            ref_logprobs=ref, entropy=None, config=config,
        )  # fmt: skip
        return loss.item(), numbers(sums)

    total, sums = run(tokens)
    assert total == pytest.approx(sum(weight * token_loss(*token) for *token, weight in tokens), abs=1e-9)
    micro = [run([token]) for token in tokens]
    assert sum(loss for loss, _ in micro) == pytest.approx(total, abs=1e-9)
    assert {name: sum(part[name] for _, part in micro) for name in sums} == pytest.approx(sums, abs=1e-9)


def test_nll_is_the_weighted_sum() -> None:
    logprobs = t(-1, -2, -4).requires_grad_()
    loss, sums = nll_loss(logprobs=logprobs, weights=t(0.5, 0.25, 0.25))
    loss.backward()
    assert loss.item() == 2.0
    assert grads(logprobs) == [-0.5, -0.25, -0.25]
    assert numbers(sums) == {"nll": 7}
