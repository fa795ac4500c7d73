"""Summaries of samples: pass@k against counting, figures by length, means over problems."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest

from palimpsest.evaluation.sample_log import Cell, Sample
from palimpsest.evaluation.summary import disagreement, pass_at_k, passes, summarise
from support.evaluations import CHUNKS, sample
from support.score_test import STUDENT, score_test_ends


def drawn(values: dict[str, list[float | None]]) -> list[Sample]:
    return [sample(name, value, draw=draw) for name, row in values.items() for draw, value in enumerate(row)]


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(n: int) -> None:
    for right in range(n + 1):
        for k in range(1, n + 1):
            chosen = [any(index < right for index in choice) for choice in combinations(range(n), k)]
            assert pass_at_k(n, right, k) == pytest.approx(fmean(chosen))


def test_figures_of_several_samples_have_problems_as_clusters() -> None:
    samples = drawn({"a": [1.0, 0.0, 1.0], "b": [0.0, 0.0, 0.0], "c": [1.0, None, 1.0]})
    summary = summarise(CHUNKS, samples, drawn=3)
    assert (summary.problems, summary.graded, summary.ungraded, summary.samples) == (3, 8, 1, 3)
    assert summary.accuracy.mean == pytest.approx(4 / 8)
    assert summary.pass_at == {
        "1": pytest.approx(5 / 9),
        "2": pytest.approx((1 + 0 + 1) / 3),
        "3": pytest.approx((1 + 0) / 2),  # c has two graded samples
    }
    assert summary.disagreement == pytest.approx(1 / 3)


def test_three_times_the_samples_do_not_narrow_an_interval_over_the_same_problems() -> None:
    once = summarise(CHUNKS, drawn({str(n): [float(n % 2)] for n in range(20)}))
    thrice = summarise(CHUNKS, drawn({str(n): [float(n % 2)] * 3 for n in range(20)}), drawn=3)
    as_many = 20 * (STUDENT[59] / STUDENT[19]) ** 2  # Korn and Graubard (1998): 60 values in 20 clusters
    assert (thrice.accuracy.low, thrice.accuracy.high) == pytest.approx(score_test_ends(0.5, as_many), abs=1e-4)
    assert (once.accuracy.low, once.accuracy.high) == pytest.approx(score_test_ends(0.5, 20), abs=1e-4)
    assert (once.pass_at, once.disagreement) == ({}, None)
    assert passes(drawn({"a": [1.0]}), 1) == {}
    assert passes(drawn({"a": [1.5, 0.75]}), 2) == {"1": 0.5, "2": 1.0}
    assert disagreement(drawn({"a": [1.0]}), 1) is None


def test_cells_of_a_family_are_in_the_order_of_the_sizes_in_their_names() -> None:
    names = ["test-4", "test-8", "test-16", "train"]
    cells = [Cell(name, None, None, "edit") for name in names]
    assert sorted({*cells}, key=lambda cell: cell.order) == cells


def test_figures_by_document_length_agree_with_counting_by_hand() -> None:
    cases = [(1.0, 4, 10), (0.0, 4, 30), (1.0, 16, 100), (None, 16, 0)]
    rows = [sample(f"p{i}", value, length=length, prompt_tokens=n) for i, (value, length, n) in enumerate(cases)]
    summary = summarise(CHUNKS, rows)
    assert summary == summarise(CHUNKS, rows[::-1])
    short, long = summary.lengths
    assert (short.length, short.accuracy.mean, short.tokens_per_document) == (4, 0.5, 30.0)
    assert (long.length, long.accuracy.mean, long.problems, long.graded) == (16, 1.0, 2, 1)
    assert summary.accuracy.mean == pytest.approx(2 / 3)
    assert summary.answer_chars == 12  # of \boxed{Rome}, \boxed{Oslo}, \boxed{Rome}
