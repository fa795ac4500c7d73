"""The losses: clipped policy gradient, and negative log-likelihood for the supervised cold start.

All inputs are flat, [N] over the trained tokens of a micro-batch. `weights` [N] holds the whole denominator,
global over the optimizer step (credit/aggregate.py), so a loss here is the plain sum of weight times token
loss and the losses of micro-batches add up: nothing is averaged a second time, however tokens are spread over
micro-batches.

Guaranteed: gradients flow only through `logprobs` and `entropy`; the metrics are sums over the N tokens, so they add up
over micro-batches too; they are detached scalars on the inputs' device.

Not covered: sequence-level ratios (GSPO), which have no agreed meaning over several segments of one
trajectory; non-finite inputs, which give a non-finite loss for the learner to skip.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palimpsest.config.schema import LossConfig

_LOG_RATIO_BOUND = 20.0  # exp stays finite in float32; as in verl
_K3_BOUND = 10.0  # per token, as in verl: one stray token can't own the KL term; its gradient is 0 beyond

Sums = dict[str, Tensor]
"""Metric name to [] sum over the tokens of a loss."""


def policy_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    ref_logprobs: Tensor | None,
    entropy: Tensor | None,
    config: LossConfig,
) -> tuple[Tensor, Sums]:
    """Loss [] and sums for metrics, from [N] log-probabilities in nats.

    Per token, with r = exp(logprob - old), A the advantage, e_lo = clip_ratio_low, e_hi = clip_ratio_high and
    c = dual_clip:

        L = max(-A r, -A clip(r, 1 - e_lo, 1 + e_hi))              PPO, arXiv 1707.06347, eq. 7;
                                                                   e_lo and e_hi: DAPO, 2503.14476, eq. 8
        L = min(L, -A c)  where A < 0                              dual clip, arXiv 1912.09729, eq. 5
        L = L * min(exp(old - sampler), importance_sampling_cap)   truncated weights, Ionides 2008; of sampler
                                                                   and learner, Yao et al. 2025
        L = L + kl_loss_coef * k3(ref - logprob)                   k3(d) = e^d - d - 1; Schulman, Approximating
                                                                   KL Divergence
        L = L - entropy_coeff * entropy

    and the loss is the sum of weight * L. Log-ratios are clamped to +-20 and k3 to 10, as in verl. The truncated weight
    is detached and applies only to the policy term.

    Sums: ratio, clip_fraction (tokens whose clipped branch was taken), dual_clip, approx_kl (k3 to the old
    policy), kl (k3 to the reference), entropy, tis_capped, logprob_gap (|learner - sampler|).

    >>> def t(*values): return torch.tensor(values)
    >>> loss, sums = policy_loss(
    ...     logprobs=t(-1.0, -1.0), old_logprobs=t(-1.0, -2.0), sampler_logprobs=t(-1.0, -2.0),
    ...     advantages=t(0.5, 0.5), weights=t(0.5, 0.5), ref_logprobs=None, entropy=None, config=LossConfig(),
    ... )
    >>> round(loss.item(), 6)  # 0.5 * (-0.5 * 1) + 0.5 * (-0.5 * 1.2): the second ratio is e, clipped
    -0.55
    >>> sums["clip_fraction"].item(), sums["approx_kl"].item() > 0
    (1.0, True)
    """
    _check_inputs(config, ref_logprobs, entropy)
    old_logprobs, sampler_logprobs = old_logprobs.detach(), sampler_logprobs.detach()
    log_ratio = _bounded(logprobs - old_logprobs)
    token_loss, sums = _clipped(log_ratio, advantages, config)
    if config.importance_sampling_cap is not None:
        importance = _bounded(old_logprobs - sampler_logprobs).exp()
        token_loss = token_loss * importance.clamp(max=config.importance_sampling_cap)
        sums["tis_capped"] = (importance > config.importance_sampling_cap).sum()
    if ref_logprobs is not None:
        kl = _k3(_bounded(ref_logprobs.detach() - logprobs)).clamp(max=_K3_BOUND)
        token_loss = token_loss + config.kl_loss_coef * kl
        sums["kl"] = kl.sum()
    if entropy is not None:
        if config.entropy_coeff:
            token_loss = token_loss - config.entropy_coeff * entropy
        sums["entropy"] = entropy.sum()
    loss = (weights * token_loss).sum()
    # Recomputed old ones are the learner's before any update; otherwise only the current ones show a gap.
    learner = old_logprobs if config.old_logprobs == "recompute" else logprobs
    sums["logprob_gap"] = (learner - sampler_logprobs).abs().sum()
    return loss, _detached(sums, logprobs)


def nll_loss(*, logprobs: Tensor, weights: Tensor) -> tuple[Tensor, Sums]:
    """Weighted negative log-likelihood [] of [N] tokens, for training on the same segments and weights.

    >>> loss, sums = nll_loss(logprobs=torch.tensor([-1.0, -3.0]), weights=torch.tensor([0.5, 0.5]))
    >>> loss.item(), sums["nll"].item()
    (2.0, 4.0)
    """
    loss = -(weights * logprobs).sum()
    return loss, _detached({"nll": -logprobs.sum()}, logprobs)


def _clipped(log_ratio: Tensor, advantages: Tensor, config: LossConfig) -> tuple[Tensor, Sums]:
    """Token losses [N] of the clipped and dual-clipped surrogate."""
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    token_loss = torch.maximum(unclipped, clipped)
    sums = {
        "ratio": ratio.sum(),
        "approx_kl": _k3(log_ratio).sum(),  # k3 to the old policy, whose samples these are
        "clip_fraction": (clipped > unclipped).sum(),
    }
    if config.dual_clip is not None:
        bound = -advantages * config.dual_clip
        over = (advantages < 0) & (token_loss > bound)
        token_loss = torch.where(over, bound, token_loss)
        sums["dual_clip"] = over.sum()
    return token_loss, sums


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)


def _k3(log_ratio: Tensor) -> Tensor:
    """e^d - d - 1 >= 0: unbiased for KL(p || q) where d = log(q / p) at samples of p."""
    return torch.expm1(log_ratio) - log_ratio


def _check_inputs(config: LossConfig, ref_logprobs: Tensor | None, entropy: Tensor | None) -> None:
    """A term with a coefficient must not vanish because its input is missing."""
    if config.kl_loss_coef and ref_logprobs is None:
        raise ValueError(f"loss.kl_loss_coef={config.kl_loss_coef} needs ref_logprobs")
    if config.entropy_coeff and entropy is None:
        raise ValueError(f"loss.entropy_coeff={config.entropy_coeff} needs entropy")


def _detached(sums: Sums, logprobs: Tensor) -> Sums:
    return {name: value.detach().to(logprobs.dtype) for name, value in sums.items()}
