"""Confidence intervals and significance tests for figures of evaluations.

    wilson              right or wrong, independent: score interval of a share (Wilson 1927)
    clustered_wilson    fractions, clusters: Wilson's for an effective number of values (Kish 1965; Korn, Graubard 1998)
    bootstrap           means of any values: percentile interval over resampled clusters (Efron 1979)
    paired              difference of two evaluations on the same problems, with interval and p
    paired_interval     right or wrong, pairwise: adjusted Wald interval of the difference (Bonett and Price 2012)
    sign_flip           any values, pairwise: two-sided p by flipping the signs of clusters (Fisher 1935)
    mcnemar             right or wrong, pairwise: exact two-sided p of the flips (McNemar 1947)
    student_interval    few values, such as means of seeds: Student's t (1908)
    holm                p-values of several tests: adjusted for their number (Holm 1979)

A cluster is a group of dependent values: several questions on one document, several samples of one problem. An
interval that ignores clusters is too narrow.

Axes: N values, G clusters.

Guaranteed: equal values give the same interval on every machine, regardless of the names of clusters; work is
vectorised, with memory for at most `_BLOCK` draws.
Not covered: nested clusters; fewer than about 10 clusters of values outside 0 to 1, for which a bootstrap is too
narrow.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from palimpsest.seeding import derive_seed

Z = 1.959964  # 95%
RESAMPLES = 2000
FLIPS = 10_000
FEW = 10  # clusters that differ; with fewer, too many resamples contain none of them
_ENUMERATED = 12  # up to this many clusters, every pattern of signs is tried
_BLOCK = 4_000_000  # draws in memory at a time

Floats = npt.NDArray[np.float64]
Clusters = Sequence[Hashable]
"""[N] cluster of each value."""


def wilson(successes: float, n: float) -> tuple[float, float]:
    """Wilson's 95% score interval of a proportion (Wilson 1927), sensible at 0 and 1 too.

    >>> [round(x, 3) for x in wilson(10, 10)]
    [0.722, 1.0]
    """
    share = successes / n
    centre = share + Z**2 / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n * n))
    scale = 1 + Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def clustered_wilson(values: Sequence[float], clusters: Clusters) -> tuple[float, float]:
    """Wilson's 95% interval of the mean of clustered `values` [N] in 0..1, fractions included.

    The interval is Wilson's for N/D independent right-or-wrong values. The design effect D (Kish 1965; Franco et al.
    2019) is the cluster-robust variance over m(1 - m), the variance of right-or-wrong values with the same mean m.
    Fractions vary less, so their D is below 1. D is shrunk towards the D of clusters with equal values, with the
    weight of Z**2 values, as Wilson's centre is shrunk towards 0.5. Clusters never decrease D. N/D is multiplied by
    the squared ratio of Student's quantiles for N and for G (Korn and Graubard 1998), which matters for few clusters.

    One cluster contains no information on variation between clusters: its interval is 0 to 1.

    >>> [round(end, 3) for end in clustered_wilson([0.5] * 32, range(32))]
    [0.403, 0.597]
    >>> clustered_wilson([1.0, 0.5], "aa")
    (0.0, 1.0)
    >>> of_24_in_threes = [[1.0] * right + [0.0] * (72 - right) for right in (0, 1)]
    >>> [round(clustered_wilson(each, [n // 3 for n in range(72)])[1], 3) for each in of_24_in_threes]
    [0.147, 0.152]
    """
    scores = np.asarray(values, dtype=np.float64)
    number, share = len(scores), float(scores.mean())
    residuals = scores - share
    sums, _ = _by_cluster(residuals, clusters)
    if len(sums) < 2:
        return 0.0, 1.0
    groups = independent(clusters)
    clustered = float(np.square(sums).sum()) + Z**2 * number / groups
    alone = float(np.square(residuals).sum()) + Z**2
    effect = max(clustered, alone) / (number * share * (1 - share) + Z**2)
    effective = number / effect * (student(number - 1) / student(groups - 1)) ** 2
    return wilson(share * effective, effective)


@cache
def student(freedom: float) -> float:
    """97.5% quantile of Student's t with `freedom` degrees, clipped to 1..10,000; fractions are allowed.

    t is sqrt(freedom) tan(angle), and the density of the angle is cos(angle)**(freedom - 1).

    >>> [round(student(freedom), 3) for freedom in (1, 2, 7, 23, 1e9)]
    [12.706, 4.303, 2.365, 2.069, 1.96]
    """
    freedom = min(max(freedom, 1.0), 1e4)
    return math.sqrt(freedom) * math.tan(np.interp(0.95, *_angles(freedom)))


@cache
def _angles(freedom: float) -> tuple[Floats, Floats]:
    """Shares of Student's |t| below the angles, and these angles."""
    edges = np.linspace(0, math.pi / 2, 20_001)
    shares = np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (freedom - 1))
    return np.insert(shares / shares[-1], 0, 0.0), edges


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean of two or more independent values, by Student's t.

    >>> student_interval([0.9, 1.0, 0.95])
    (0.8258, 1.0742)
    """
    mean, error = _mean_and_error(values)
    spread = student(len(values) - 1) * error
    return round(mean - spread, 4), round(mean + spread, 4)


def student_p(values: Sequence[float]) -> float:
    """Two-sided p of the mean of two or more independent differences, by Student's t; 0 if they are all equal, which
    shows no spread.

    >>> student_p([0.4, 0.5, 0.3]), student_p([0.1, -0.1]), student_p([0.2, 0.2])
    (0.0202, 1.0, 0.0)
    """
    (mean, error), freedom = _mean_and_error(values), len(values) - 1
    if error == 0.0:
        return float(mean == 0.0)
    shares, edges = _angles(float(freedom))
    return round(1.0 - float(np.interp(math.atan(abs(mean) / error / math.sqrt(freedom)), edges, shares)), 4)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def holm(values: Sequence[float]) -> list[float]:
    """p-values of several tests, adjusted so that the probability of any false one stays below the level (Holm 1979,
    Scandinavian Journal of Statistics 6).

    >>> holm([0.01, 0.04, 0.03, 0.9])
    [0.04, 0.09, 0.09, 0.9]
    """
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def independent(clusters: Clusters) -> float:
    """Effective number of independent values, if all values of a cluster are equal (Kish 1965).

    >>> independent("aabbcc"), independent("abbbbbbb")
    (3.0, 1.28)
    """
    sizes = list(Counter(clusters).values())
    return sum(sizes) ** 2 / sum(size * size for size in sizes)


def bootstrap(values: Sequence[float], clusters: Clusters | None = None) -> tuple[float, float]:
    """95% percentile bootstrap of the mean of `values` [N]; resamples whole `clusters` if given.

    >>> bootstrap([0.5, 0.5, 0.5])
    (0.5, 0.5)
    """
    sums, counts = _by_cluster(np.asarray(values, dtype=np.float64), clusters)
    rng, rows, means = np.random.default_rng(derive_seed("bootstrap", len(sums))), max(1, _BLOCK // len(sums)), []
    for begin in range(0, RESAMPLES, rows):
        drawn = rng.integers(len(sums), size=(min(rows, RESAMPLES - begin), len(sums)))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Difference:
    """Second evaluation less the first, over the problems that both graded."""

    mean: float
    low: float
    high: float
    """Ends of the 95% interval: Bonett and Price's for mcnemar or below `FEW` differing clusters, otherwise a
    bootstrap."""
    p: float
    """Two-sided probability that chance makes a difference at least this large."""
    test: str
    """mcnemar (exact), or sign_flip for fractions and for clustered problems."""
    better: int
    """Problems with a higher value in the second evaluation."""
    worse: int


def paired(first: Sequence[float], second: Sequence[float], clusters: Clusters | None = None) -> Difference:
    """Difference of two evaluations, second less first; `first` and `second` are [N], values of the same problems in
    one order.

    McNemar's exact test compares right-or-wrong values of independent problems, with an interval that stays sensible
    for few flips. Sign flips of whole clusters test other values.

    >>> difference = paired([0.0] * 8 + [1.0] * 2, [1.0] * 8 + [0.0] * 2)
    >>> difference.mean, difference.test, round(difference.p, 4), difference.better, difference.worse
    (0.6, 'mcnemar', 0.1094, 8, 2)
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    change = two - one
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    binary = bool(np.isin(np.concatenate([one, two]), (0.0, 1.0)).all())
    independent = clusters is None or len(set(clusters)) == len(change)
    if binary and independent:
        (low, high), p, test = paired_interval(better, worse, len(change)), mcnemar(better, worse), "mcnemar"
    else:
        (low, high) = _interval_of_changes(change, clusters)
        p, test = sign_flip([float(value) for value in change], clusters), "sign_flip"
    return Difference(float(change.mean()), low, high, p, test, better, worse)


def paired_interval(better: int, worse: int, n: int) -> tuple[float, float]:
    """95% interval of the difference of two shares over the same n problems, from the flips each way.

    Wald's interval with one flip added each way (Bonett and Price 2012, Journal of Educational and Behavioral
    Statistics 37).

    >>> [round(end, 3) for end in paired_interval(7, 1, 21)]
    [0.013, 0.508]
    """
    gained, lost = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    spread = Z * math.sqrt((gained + lost - (gained - lost) ** 2) / (n + 2))
    return max(-1.0, gained - lost - spread), min(1.0, gained - lost + spread)


def _interval_of_changes(change: Floats, clusters: Clusters | None) -> tuple[float, float]:
    """95% interval of the mean of differences [N]: a bootstrap over clusters if enough of them differ.

    A bootstrap is too narrow for few clusters that differ or for equal clusters. Their interval is Bonett and Price's
    for whole clusters, with one added cluster that wins everything and one that loses everything: 1, or the largest
    difference if it is larger.
    """
    sums, counts = _by_cluster(change, clusters)
    means = sums / counts
    if np.count_nonzero(sums) >= FEW and np.ptp(means) > 0:
        return bootstrap(change.tolist(), clusters)
    most = max(1.0, float(np.abs(change).max()))
    size = counts.mean()
    sums, counts = np.append(sums, [most * size, -most * size]), np.append(counts, [size, size])
    mean = sums.sum() / counts.sum()
    spread = Z * math.sqrt(np.square(sums - mean * counts).sum()) / counts.sum()
    return max(-most, float(mean - spread)), min(most, float(mean + spread))


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided p of `better` and `worse` flips, if both directions are equally likely.

    >>> mcnemar(0, 0), mcnemar(5, 0), mcnemar(3, 3)
    (1.0, 0.0625, 1.0)
    """
    flips, fewer = better + worse, min(better, worse)
    ways = term = 1
    for k in range(1, fewer + 1):
        term = term * (flips - k + 1) // k
        ways += term
    return min(1.0, 2 * ways / (1 << flips))


def sign_flip(change: Sequence[float], clusters: Clusters | None = None) -> float:
    """Two-sided p of a mean of paired differences [N]: share of random signs of clusters that give a mean as far from
    0.

    Fisher's randomisation test (1935), over every pattern of signs for few clusters, otherwise over `FLIPS` random
    patterns. It only assumes that the two sides are exchangeable.

    >>> sign_flip([1.0] * 5), sign_flip([1.0, -1.0]), sign_flip([0.0, 0.0])
    (0.0625, 1.0, 1.0)
    """
    sums, _ = _by_cluster(np.asarray(change, dtype=np.float64), clusters)
    sums = sums[sums != 0]
    groups, extreme = len(sums), abs(sums.sum()) * (1 - 1e-12)  # equal sums may differ in their last bit
    if groups <= _ENUMERATED:
        patterns = (np.arange(1 << groups)[:, None] >> np.arange(groups)) & 1
        return float((np.abs((2 * patterns - 1) @ sums) >= extreme).mean())
    rng = np.random.default_rng(derive_seed("sign flip", groups))
    rows, reached = max(1, _BLOCK // groups), 0
    for begin in range(0, FLIPS, rows):
        signs = 2 * rng.integers(2, size=(min(rows, FLIPS - begin), groups)) - 1
        reached += int((np.abs(signs @ sums) >= extreme).sum())
    return (reached + 1) / (FLIPS + 1)


def _by_cluster(values: Floats, clusters: Clusters | None) -> tuple[Floats, Floats]:
    """([G] sums, [G] counts), clusters in order of appearance."""
    if clusters is None:
        return values, np.ones_like(values)
    places: dict[Hashable, int] = {}
    index = np.fromiter((places.setdefault(cluster, len(places)) for cluster in clusters), np.intp, len(values))
    sums, counts = np.zeros(len(places)), np.zeros(len(places))
    np.add.at(sums, index, values)
    np.add.at(counts, index, 1.0)
    return sums, counts
