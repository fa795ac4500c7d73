"""Intervals of predicted accuracies against bounds of a single rate, simulated agents and the reads needed."""

from __future__ import annotations

import itertools
import random

import pytest

from palimpsest.metrics.hazards import EVIDENCE as SEEN
from palimpsest.metrics.hazards import FALSE, NEAR_MISS, NOTHING, QUIET, TRUE, WIDEST, Hazards

MANY = 10**7


def keeping(lost: int, reads: int) -> Hazards:
    """Of an agent whose other rates are known: it takes all evidence in, makes nothing up and answers as it holds."""
    hazards = Hazards()
    hazards.reads[QUIET, NOTHING, NOTHING] = hazards.reads[SEEN, NOTHING, TRUE] = MANY
    hazards.reads[QUIET, TRUE, TRUE], hazards.reads[QUIET, TRUE, NOTHING] = reads - lost, lost
    hazards.answers[1, 1] = hazards.answers[0, 0] = MANY
    return hazards


def held(rate: float, sections: int) -> float:
    """Where evidence in section k of n is held, mean over k, if each later section loses it at `rate`."""
    return sum((1 - rate) ** later for later in range(sections)) / sections


def bound(reads: int) -> float:
    """97.5% quantile of Beta(1/2, reads), Jeffreys' upper end for no loss: its root has the density (1 - u^2)^(n-1)."""
    steps = 20_000
    density = [(1 - (u / steps) ** 2) ** (reads - 1) for u in range(steps)]
    below = list(itertools.accumulate(density))
    return (next(u for u in range(steps) if below[u] >= 0.975 * below[-1]) / steps) ** 2


@pytest.mark.parametrize("sections", [4, 64, 1024])
def test_reads_without_a_loss_predict_what_the_bound_of_their_rate_allows(sections: int) -> None:
    assert bound(46) == pytest.approx(0.0533, abs=2e-4)
    found = keeping(0, 46).predicted(sections, 0.0)
    assert found["low"] == pytest.approx(held(bound(46), sections), abs=0.01)
    assert found["high"] == pytest.approx(1.0, abs=1e-3)


def test_a_length_that_the_reads_do_not_support_has_no_accuracy_but_the_reads_it_needs() -> None:
    assert keeping(0, 46).expected_accuracy(1024, 0.0) == 1.0
    found = keeping(0, 46).predicted(1024, 0.0)
    assert found["accuracy"] is None
    assert found["low"] < 0.05
    factor = next(n for n in range(46, MANY, 46) if held(bound(n), 1024) >= 1 - WIDEST) / 46
    assert found["reads needed"] == pytest.approx(factor * keeping(0, 46).reads.sum(), rel=0.12)


def test_enough_reads_predict_the_length_again() -> None:
    few, many = keeping(2, 1000).predicted(1024, 0.0), keeping(20, 10_000).predicted(1024, 0.0)
    assert (few["accuracy"], many["reads needed"]) == (None, None)
    assert many["accuracy"] == pytest.approx(held(0.002, 1024))
    assert 0 < many["low"] < held(0.002, 1024) < many["high"] < 1
    assert many["high"] - many["low"] <= WIDEST < few["high"] - few["low"]


def test_a_state_that_was_never_counted_is_not_taken_for_a_faultless_one() -> None:
    hazards = keeping(0, MANY)
    hazards.reads[QUIET, TRUE, TRUE] = 0
    found = hazards.predicted(64, 0.0)
    assert (found["accuracy"], found["reads needed"]) == (None, None)
    assert (round(found["low"], 2), found["high"]) == (0.02, 1.0)  # it may lose all that isn't in the last section


RATES = {"invents": 0.006, "takes": 0.9, "keeps": 0.997, "overruled": 0.6}


def count_documents(rng: random.Random, documents: int, sections: int) -> Hazards:
    """Reads of an agent with these rates, one near miss in ten sections, which it reads like any other section."""
    hazards = Hazards()
    for _ in range(documents):
        state, place = NOTHING, rng.randrange(sections)
        for k in range(sections):
            sight = SEEN if k == place else NEAR_MISS if rng.random() < 0.1 else QUIET
            after = moved(rng, state, sight)
            hazards.reads[sight, state, after] += 1
            state = after
        hazards.answers[int(state == TRUE), int(state == TRUE)] += 1
    return hazards


def moved(rng: random.Random, state: int, sight: int) -> int:
    if sight == SEEN:
        takes = {NOTHING: RATES["takes"], FALSE: RATES["overruled"], TRUE: 1.0}[state]
        return TRUE if rng.random() < takes else state
    if state == TRUE:
        return TRUE if rng.random() < RATES["keeps"] else NOTHING
    return FALSE if state == NOTHING and rng.random() < RATES["invents"] else state


def truth(sections: int) -> float:
    """By the recursion over sections, of the rates themselves."""
    total = 0.0
    for place in range(sections):
        invented = 1 - (1 - RATES["invents"]) ** place
        taken = (1 - invented) * RATES["takes"] + invented * RATES["overruled"]
        total += taken * RATES["keeps"] ** (sections - 1 - place)
    return total / sections


@pytest.mark.parametrize(
    ("documents", "sections"),
    [(16, 64), (64, 64), (64, 256)],
)
@pytest.mark.slow
def test_an_interval_holds_the_true_accuracy(documents: int, sections: int) -> None:
    """Counted at 16 sections; 150 draws of an interval that covers 95 % give at least 90 % but for 1 time in 200."""
    rng = random.Random(sections + documents)
    found = [count_documents(rng, documents, 16).predicted(sections, 0.1) for _ in range(150)]
    assert sum(each["low"] <= truth(sections) <= each["high"] for each in found) >= 0.9 * 150
