"""Several samples of each problem: the figures that only they have.

Means and intervals stand in summary.py, where the samples of one problem are a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from statistics import fmean

from palimpsest.evaluation.samples import Sample

RIGHT = 1.0
"""The value of a sample that passes; a fractional reward passes where it is whole."""


def pass_at_k(n: int, right: int, k: int) -> float:
    """Unbiased probability that one of k samples is right, from n of which `right` are (Chen et al. 2021,
    arXiv 2107.03374, equation 1): 1 - C(n - right, k) / C(n, k).

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 0, 4), pass_at_k(4, 4, 1)
    (0.5, 0.0, 1.0)
    """
    return 1.0 - comb(n - right, k) / comb(n, k)


def passes(samples: Iterable[Sample], drawn: int) -> dict[str, float]:
    """Mean pass@k over problems, by k: 1, 2, 4... and `drawn`. A problem with fewer than k graded samples is not in it;
    empty where each problem was drawn once."""
    if drawn < 2:
        return {}
    problems = _by_problem(samples)
    sizes = sorted({*(2**power for power in range(drawn.bit_length())), drawn})
    means = {}
    for k in (size for size in sizes if size <= drawn):
        values = [pass_at_k(len(own), own.count(RIGHT), k) for own in problems if len(own) >= k]
        if values:
            means[str(k)] = fmean(values)
    return means


def disagreement(samples: Iterable[Sample], drawn: int) -> float | None:
    """Share of the problems with two graded samples at least whose samples are worth different values."""
    several = [values for values in _by_problem(samples) if len(values) > 1]
    return fmean(len(set(values)) > 1 for values in several) if drawn > 1 and several else None


def _by_problem(samples: Iterable[Sample]) -> Sequence[list[float]]:
    """The values of each problem's graded samples."""
    values: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        if sample.value is not None:
            values.setdefault((sample.name, sample.id), []).append(sample.value)
    return list(values.values())
