"""Intervals and tests against enumeration, plain loops and figures of statsmodels 0.15."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.statistics import (
    bootstrap,
    clustered_wilson,
    mcnemar,
    paired,
    paired_interval,
    sign_flip,
    student,
    wilson,
)
from palimpsest.evaluation.summary import (
    EvalSummary,
    Score,
    cluster_notes,
    clusters_of,
    interval_notes,
    score,
    summarise,
)
from support.coverage import LAYOUTS, cluster_coverage, coverage
from support.evaluations import CHUNKS, sample
from support.score_test import STUDENT, score_test_ends

STATSMODELS_WILSON = {
    (0, 10): (0.0, 0.27753279986288926),
    (3, 10): (0.10779126740630104, 0.6032218525388546),
    (64, 128): (0.4146522462605072, 0.5853477537394928),
}


@pytest.mark.parametrize(("right", "n"), STATSMODELS_WILSON)
def test_wilsons_interval_is_that_of_statsmodels(right: int, n: int) -> None:
    assert wilson(right, n) == pytest.approx(STATSMODELS_WILSON[right, n], abs=1e-6)


def test_mcnemar_is_the_share_of_as_extreme_outcomes_among_all() -> None:
    for flips in range(1, 11):
        for better in range(flips + 1):
            worse = flips - better
            falls = [sum(flips_up) for flips_up in itertools.product((0, 1), repeat=flips)]
            extreme = sum(abs(2 * fall - flips) >= abs(better - worse) for fall in falls)
            assert mcnemar(better, worse) == pytest.approx(float(Fraction(extreme, len(falls))))


def test_mcnemar_is_that_of_statsmodels_on_many_flips() -> None:
    assert mcnemar(121, 59) == pytest.approx(4.4344492637551645e-06, rel=1e-9)
    assert mcnemar(600, 400) < 1e-9  # numbers that a float can't hold on the way


def loop_bootstrap(values: list[float], clusters: list[int], draws: int = 4000) -> tuple[float, float]:
    """The bootstrap without numpy."""
    rng, members = random.Random(5), defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        members[cluster].append(value)
    groups, means = list(members.values()), []
    for _ in range(draws):
        drawn = [value for group in rng.choices(groups, k=len(groups)) for value in group]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


@pytest.mark.parametrize("size", [1, 4])
def test_the_bootstrap_is_that_of_a_plain_loop(size: int) -> None:
    rng = random.Random(2)
    clusters = [index // size for index in range(80)]
    values = [min(1.0, 0.3 * (cluster % 3) + 0.4 * rng.random()) for cluster in clusters]
    low, high = bootstrap(values, clusters)
    loop_low, loop_high = loop_bootstrap(values, clusters)
    width = loop_high - loop_low
    assert (low, high) == pytest.approx((loop_low, loop_high), abs=0.06 * width)


def test_resampling_in_blocks_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [index / 30 for index in range(30)]
    unsplit = bootstrap(values)
    monkeypatch.setattr("palimpsest.evaluation.statistics._BLOCK", 70)
    assert bootstrap(values) == unsplit


def test_names_of_clusters_do_not_matter() -> None:
    values = [0.1, 0.2, 0.9, 1.0, 0.4, 0.3]
    assert bootstrap(values, "xxyyzz") == bootstrap(values, [7, 7, 0, 0, -1, -1])


@pytest.mark.parametrize("freedom", STUDENT)
def test_students_quantile_is_that_of_printed_tables(freedom: int) -> None:
    assert student(freedom) == pytest.approx(STUDENT[freedom], abs=1e-4)
    assert student(freedom + 0.5) < student(freedom)


def test_an_interval_over_clusters_that_are_all_right_counts_clusters() -> None:
    """Korn and Graubard (1998): three clusters, by the quantiles for 60 values and for three."""
    three = 3 * (STUDENT[59] / STUDENT[2]) ** 2
    interval = clustered_wilson([1.0] * 60, [index // 20 for index in range(60)])
    assert interval == pytest.approx(score_test_ends(1.0, three), abs=1e-4)
    assert clustered_wilson([1.0, 0.0, 1.0], range(3)) == pytest.approx(wilson(2, 3))


def test_an_interval_of_fractions_is_wilsons_of_an_effective_number() -> None:
    """Twelve values with half the variance of binary ones and Z**2 values of a prior with D = 1."""
    values = [0.0, 0.5, 0.5, 1.0] * 3
    effect = (12 * 0.125 + 3.8414) / (12 * 0.25 + 3.8414)
    assert clustered_wilson(values, range(12)) == pytest.approx(score_test_ends(0.5, 12 / effect), abs=1e-4)
    interval = score(values)
    assert (interval.low, interval.high) == pytest.approx(clustered_wilson(values, range(12)), abs=1e-4)


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [1.0, 0.0, 0.0]])
def test_one_problem_has_the_interval_0_to_1(values: list[float]) -> None:
    interval = score(values, ["document"] * len(values))
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_values_outside_of_0_to_1_have_a_bootstrap_and_one_problem_of_them_has_no_interval() -> None:
    values = [-1.0, 2.0, 0.5, 3.0] * 5
    interval = score(values)
    assert (interval.low, interval.high) == pytest.approx(bootstrap(values), abs=1e-4)
    assert score([2.0]) == Score(2.0, None, None)


@pytest.mark.parametrize("mean", [0.02, 0.1, 0.5, 0.98])
@pytest.mark.parametrize(
    ("shape", "n"), [("2 questions", 16), ("4 questions", 16), ("8 questions", 32), ("u-shaped", 64)]
)
def test_an_interval_of_fractions_covers_near_0_and_1_too(shape: str, n: int, mean: float) -> None:
    """800 draws: three standard errors are 2.3 points."""
    assert coverage(mean, shape, n, 800) >= 0.95 - 0.023


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("layout", ["8 of 8", "12 of 1 to 12", "32 of 1 to 12"])
def test_an_interval_over_few_or_uneven_clusters_covers(layout: str, mean: float) -> None:
    assert cluster_coverage(mean, LAYOUTS[layout], "0.95", 800) >= 0.95 - 0.023


TRIPLES = [index // 3 for index in range(72)]


def test_more_right_never_lowers_an_interval_over_clusters() -> None:
    """24 problems played three times: one right more, wherever it is, from none to all."""
    rng = random.Random(1)
    orders = [list(range(72)), [3 * group + draw for draw in range(3) for group in range(24)]]
    orders += [rng.sample(range(72), 72) for _ in range(20)]
    for order in orders:
        values, ends = [0.0] * 72, []
        for index in order:
            ends.append(clustered_wilson(values, TRIPLES))
            values[index] = 1.0
        ends.append(clustered_wilson(values, TRIPLES))
        lows, highs = zip(*ends, strict=True)
        assert list(lows) == sorted(lows)
        assert list(highs) == sorted(highs)


@pytest.mark.parametrize("agreement", [0.3, 2.0, 1e4])
@pytest.mark.parametrize(("groups", "size", "share"), [(24, 3, 0.02), (24, 3, 0.5), (20, 6, 0.1), (10, 20, 0.9)])
def test_an_interval_over_clusters_covers(groups: int, size: int, share: float, agreement: float) -> None:
    rng, hits, draws = np.random.default_rng(7), 0, 600
    clusters = [index // size for index in range(groups * size)]
    for _ in range(draws):
        shares = rng.beta(share * agreement, (1 - share) * agreement, groups)
        values = (rng.random(groups * size) < np.repeat(shares, size)).astype(float).tolist()
        low, high = clustered_wilson(values, clusters)
        hits += low <= share <= high
    assert hits / draws >= 0.93


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_equal_values_leave_an_interval(value: float, size: int) -> None:
    difference = paired([value] * 16, [value] * 16, [index // size for index in range(16)])
    assert (difference.low, difference.high) == pytest.approx(paired_interval(0, 0, 16 // size))
    assert difference.high > 0.1


def test_few_flips_in_clusters_and_one_change_everywhere_leave_an_interval_too() -> None:
    one = paired([0.0] * 72, [1.0, 1.0, 1.0] + [0.0] * 69, TRIPLES)
    assert one.low < 0 < one.mean < one.high
    everywhere = paired([0.0] * 40, [0.5] * 40)
    assert everywhere.low < 0.5 < everywhere.high < 0.6
    for better, n in ((4, 12), (4, 40), (3, 200)):
        difference = paired([0.0] * n, [1.0] * better + [0.0] * (n - better))
        assert difference.p > 0.05
        assert difference.low < 0 < difference.high


def test_the_interval_of_few_flips_in_clusters_covers() -> None:
    rng, hits, draws = random.Random(12), 0, 600
    for _ in range(draws):
        flipped = [rng.choices((1.0, -1.0, 0.0), (0.08, 0.02, 0.9))[0] for _ in range(24)]
        change = [flip for flip in flipped for _ in range(3)]
        difference = paired([float(flip < 0) for flip in change], [float(flip > 0) for flip in change], TRIPLES)
        hits += difference.low <= 0.06 <= difference.high
    assert hits / draws >= 0.93


def test_a_paired_interval_is_narrower_than_two_separate_ones() -> None:
    rng = random.Random(4)
    first = [float(rng.random() < 0.5) for _ in range(200)]
    second = [max(value, float(rng.random() < 0.1)) for value in first]
    difference = paired(first, second)
    assert difference.mean == pytest.approx(sum(second) / 200 - sum(first) / 200)
    assert 0 < difference.low < difference.mean < difference.high
    assert difference.high - difference.low < 0.6 * (wilson(100, 200)[1] - wilson(100, 200)[0])
    assert (difference.test, difference.worse) == ("mcnemar", 0)


@pytest.mark.parametrize(("n", "gain", "loss"), [(12, 0.15, 0.02), (60, 0.1, 0.1)])
def test_a_paired_interval_of_few_flips_covers(n: int, gain: float, loss: float) -> None:
    rng, hits, draws = random.Random(8), 0, 400
    for _ in range(draws):
        uniform = [rng.random() for _ in range(n)]
        first = [float(gain <= draw < gain + loss or draw > 0.7) for draw in uniform]
        second = [float(draw < gain or draw > 0.7) for draw in uniform]
        difference = paired(first, second)
        hits += difference.low - 1e-12 <= gain - loss <= difference.high + 1e-12
    assert hits / draws > 0.93


def test_fractions_and_clusters_are_tested_by_flipping_signs() -> None:
    first, second = [0.0, 0.5] * 20, [0.5, 0.5] * 20
    assert paired(first, second).test == "sign_flip"
    assert paired(first, second).p < 0.01
    right = [1.0] * 40
    assert paired([0.0, 1.0] * 20, right, [index // 4 for index in range(40)]).test == "sign_flip"
    same = paired(first, first)
    assert (same.mean, same.p) == (0, 1)
    assert -same.low == same.high > 0


def test_signs_are_flipped_as_a_plain_loop_flips_them() -> None:
    rng = random.Random(6)
    clusters = [index // 3 for index in range(30)]
    change = [rng.choice((-1.0, 0.0, 0.25, 1.0)) for _ in clusters]
    sums = [sum(c for c, member in zip(change, clusters, strict=True) if member == cluster) for cluster in range(10)]
    totals = [
        abs(sum(s * x for s, x in zip(signs, sums, strict=True))) for signs in itertools.product((1, -1), repeat=10)
    ]
    exact = sum(total >= abs(sum(sums)) - 1e-9 for total in totals) / len(totals)
    assert sign_flip(change, clusters) == pytest.approx(exact, abs=1e-12)


def test_random_signs_agree_with_mcnemar() -> None:
    for better, worse in ((20, 8), (15, 15), (30, 9)):
        p = sign_flip([1.0] * better + [-1.0] * worse)
        assert p == pytest.approx(mcnemar(better, worse), abs=0.015)


def dev_sample(id: str, value: float | None, **fields: Any) -> Sample:
    return sample(id, value, set="dev", unit="documents", **{"size": 4, "length": 4, **fields})


def test_questions_on_one_document_and_one_question_at_several_lengths_are_one_cluster() -> None:
    rows = [
        dev_sample("p1", 1.0, document="d1"),
        dev_sample("p2", 1.0, document="d1"),
        dev_sample("p2", 1.0, document="d2", size=50),
        dev_sample("p3", 1.0, document="d3"),
        dev_sample("p3", 1.0, document="d4", gold="another"),
    ]
    assert clusters_of(rows) == [0, 0, 0, 1, 2]


def test_a_summary_counts_documents_where_questions_share_them() -> None:
    values = [1.0] * 10 + [0.0] * 10
    alone = [dev_sample(f"p{index}", value, document=f"d{index}") for index, value in enumerate(values)]
    shared = [dev_sample(f"p{index}", value, document=f"d{index // 5}") for index, value in enumerate(values)]
    assert (summarise(CHUNKS, alone).clusters, summarise(CHUNKS, shared).clusters) == (20, 4)
    assert summarise(CHUNKS, alone).accuracy == score(values)
    accuracy = summarise(CHUNKS, shared).accuracy
    four = 4 * (STUDENT[19] / STUDENT[3]) ** 2
    assert (accuracy.low, accuracy.high) == pytest.approx(score_test_ends(0.5, four), abs=1e-4)
    (note,) = cluster_notes({"alone": summarise(CHUNKS, alone), "shared": summarise(CHUNKS, shared)})
    assert note.values == {"names": "shared", "problems": 20, "clusters": 4}


def test_a_table_with_intervals_of_two_kinds_names_the_rows_with_a_bootstraps() -> None:
    def row(*values: float | None) -> EvalSummary:
        return summarise(CHUNKS, [dev_sample(str(index), value) for index, value in enumerate(values)])

    fractions, outside, empty = row(0.0, 0.5, 1.0), row(0.5, 1.5, 1.0), row(None)
    assert interval_notes({"fractions": fractions, "binary": row(1.0, 0.0), "empty": empty}) == []
    assert interval_notes({"bonus": outside, "empty": empty}) == []
    (note,) = interval_notes({"fractions": fractions, "bonus": outside, "empty": empty})
    assert note.values == {"names": "bonus"}
