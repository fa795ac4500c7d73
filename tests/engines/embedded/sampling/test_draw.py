"""Draws depend on (seed, position) and follow the softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from palimpsest.engines.embedded.sampling.draw import draw, nucleus, uniforms

DRAWS = 20_000
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -torch.inf])


def counts_of(temperature: float, top_p: float) -> np.ndarray:
    u = torch.from_numpy(uniforms(np.arange(DRAWS, dtype=np.uint64), np.full(DRAWS, 3)))
    ids, _ = draw(LOGITS.expand(DRAWS, -1), temperature, top_p, u)
    return np.bincount(ids.numpy(), minlength=len(LOGITS))


def chi_square(counts: np.ndarray, expected: list[float]) -> float:
    return float(sum((c - DRAWS * p) ** 2 / (DRAWS * p) for c, p in zip(counts, expected, strict=True) if p > 0))


def softmax(values: list[float]) -> list[float]:
    weights = [math.exp(v) for v in values]
    return [w / sum(weights) for w in weights]


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    counts = counts_of(temperature=1.5, top_p=1.0)
    expected = softmax([v / 1.5 for v in LOGITS.tolist()])
    assert counts[5] == 0, "an id of probability 0 was drawn"
    assert chi_square(counts, expected) < 18.5  # 4 degrees of freedom, p = .001


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    exact = softmax(LOGITS.tolist())
    assert exact[0] + exact[1] < 0.85 < exact[0] + exact[1] + exact[2]
    mass = sum(exact[:3])
    counts = counts_of(temperature=1.0, top_p=0.85)
    assert counts[3:].sum() == 0
    assert chi_square(counts, [p / mass for p in exact[:3]] + [0.0] * 3) < 13.8  # 2 degrees of freedom


def test_the_nucleus_contains_the_most_likely_token() -> None:
    ((first, second),) = nucleus(torch.tensor([[0.9, 0.1]]), torch.tensor([0.01])).tolist()
    assert first > second == 0.0
    assert nucleus(torch.tensor([[0.2, 0.8]]), torch.tensor([1e-46]))[0].tolist() == pytest.approx([0.0, 0.8])


def test_log_probabilities_are_taken_before_top_p() -> None:
    ids, logprobs = draw(LOGITS[None], 1.0, 0.1, torch.tensor([0.5], dtype=torch.float64))
    assert ids.item() == 0
    assert math.isclose(logprobs.item(), math.log(softmax(LOGITS.tolist())[0]), rel_tol=1e-6)


def test_temperature_zero_takes_the_most_likely_and_records_its_log_probability_at_temperature_one() -> None:
    mixed = torch.tensor([0.0, 2.0])
    u = torch.tensor([0.999, 0.0], dtype=torch.float64)
    ids, logprobs = draw(LOGITS.expand(2, -1), mixed, 1.0, u)
    assert ids.tolist() == [0, 0]
    assert math.isclose(logprobs[0].item(), math.log(softmax(LOGITS.tolist())[0]), rel_tol=1e-6)
    assert math.isclose(logprobs[1].item(), math.log(softmax([v / 2 for v in LOGITS.tolist()])[0]), rel_tol=1e-6)


def test_uniforms_are_spread_and_uncorrelated_over_seeds_and_positions() -> None:
    seeds, positions = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(100))
    u = uniforms(seeds.ravel(), positions.ravel()).reshape(100, 300)
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((counts - 1500) ** 2 / 1500).sum() < 43.8  # 19 degrees of freedom, p = .001
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.02


def test_the_largest_uniform_still_draws_an_id_of_positive_probability() -> None:
    u = torch.tensor([1 - 2.0**-52], dtype=torch.float64)
    ids, _ = draw(LOGITS[None], 1.0, 1.0, u)
    assert ids.item() == 4
