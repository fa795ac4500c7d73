"""Simulated coverage of the interval of `score`: fractions, clusters of even and uneven size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from palimpsest.evaluation.summary import over_seeds, score

Floats = npt.NDArray[np.float64]

MEANS = (0.02, 0.05, 0.2, 0.5, 0.8, 0.95, 0.98)
NUMBERS = (16, 32, 64, 128)
SHAPES: dict[str, Callable[[np.random.Generator, float, int], Floats]] = {
    "right or wrong": lambda rng, mean, n: (rng.random(n) < mean).astype(float),
    "2 questions": lambda rng, mean, n: rng.binomial(2, mean, n) / 2,
    "4 questions": lambda rng, mean, n: rng.binomial(4, mean, n) / 4,
    "8 questions": lambda rng, mean, n: rng.binomial(8, mean, n) / 8,
    "u-shaped": lambda rng, mean, n: rng.beta(mean / 2, (1 - mean) / 2, n),
    "bell-shaped": lambda rng, mean, n: rng.beta(8 * mean, 8 * (1 - mean), n),
}
"""Values [n] in 0..1 of independent problems whose expectation is `mean`."""

LAYOUTS: dict[str, tuple[int, ...]] = {
    "8 of 8": (8,) * 8,
    "12 of 1 to 12": tuple(range(1, 13)),
    "16 of 4": (4,) * 16,
    "20 of 6": (6,) * 20,
    "32 of 1 to 12": tuple(1 + n % 12 for n in range(32)),
    "64 of 2": (2,) * 64,
}
"""Sizes of clusters."""

ALIKE = {"0.95": 1 / 0.95 - 1, "0.3": 1 / 0.3 - 1, "0.1": 1 / 0.1 - 1}
"""By intraclass correlation: the sum of the parameters of the beta distribution that clusters' means are drawn from."""

Interval = Callable[[Sequence[float], Sequence[int] | None], tuple[float, float]]


def scored(values: Sequence[float], clusters: Sequence[int] | None) -> tuple[float, float]:
    """The interval of `score`."""
    interval = score(values, clusters)
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def coverage(mean: float, shape: str, n: int, draws: int, seed: int = 0, interval: Interval = scored) -> float:
    """Share of `draws` evaluations of n independent problems whose interval holds `mean`."""
    rng, hits = np.random.default_rng((seed, n)), 0
    for _ in range(draws):
        low, high = interval(SHAPES[shape](rng, mean, n).tolist(), None)
        hits += low <= mean <= high
    return hits / draws


def cluster_coverage(
    mean: float, sizes: Sequence[int], alike: str, draws: int, seed: int = 0, interval: Interval = scored
) -> float:
    """The same of right-or-wrong values in clusters of `sizes`, of an intraclass correlation named in `ALIKE`."""
    rng, hits, sum_of_parameters = np.random.default_rng((seed, len(sizes))), 0, ALIKE[alike]
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    for _ in range(draws):
        means = rng.beta(mean * sum_of_parameters, (1 - mean) * sum_of_parameters, len(sizes))
        values = (rng.random(len(clusters)) < means[clusters]).astype(float)
        low, high = interval(values.tolist(), clusters.tolist())
        hits += low <= mean <= high
    return hits / draws


SPREADS = (0.0, 0.3, 1.0)
"""Standard deviations of the log-odds of seeds."""


def seed_coverage(
    mean: float, seeds: int, problems: int, spread: float, draws: int, seed: int = 0, *, resampled: bool = False
) -> float:
    """Share of `draws` leagues whose interval over seeds holds `mean`. `resampled`: a bootstrap of seeds and problems.

    Each seed has its own accuracy, whose log-odds are normal with the deviation `spread`, and `problems` of its own.
    """
    rng, hits = np.random.default_rng((seed, seeds, problems)), 0
    normal = np.random.default_rng(0).standard_normal(20_000)
    lowest, highest = -12.0, 12.0
    for _ in range(50):  # the log-odds at which the mean over seeds is `mean`
        middle = (lowest + highest) / 2
        below = float((1 / (1 + np.exp(-middle - spread * normal))).mean()) < mean
        lowest, highest = (middle, highest) if below else (lowest, middle)
    for _ in range(draws):
        shares = 1 / (1 + np.exp(-middle - spread * rng.standard_normal(seeds)))
        values = (rng.random((seeds, problems)) < shares[:, None]).astype(float)
        if resampled:
            drawn = values.mean(axis=1)[rng.integers(seeds, size=(500, seeds))]
            low, high = np.quantile(rng.binomial(problems, drawn).mean(axis=1) / problems, (0.025, 0.975))
        else:
            found = over_seeds(score(values.ravel().tolist()), values.mean(axis=1).tolist())
            low, high = found.low, found.high
        hits += bool(low - 1e-12 <= mean <= high + 1e-12)
    return hits / draws
