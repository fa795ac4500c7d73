"""Intervals of predicted accuracies against bounds of a single rate, simulated agents and the reads needed."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from palimpsest.metrics.hazards import WIDEST, Hazards, Holds, Sight, predicted

NONE, FALSE, TRUE = Holds
QUIET, NEAR, SEEN = Sight
MANY = 10**7


def keeping(lost: int, reads: int) -> Hazards:
    """Of an agent whose other rates are known: it takes all evidence in, makes nothing up and answers as it holds."""
    known = {(NONE, QUIET, NONE): MANY, (NONE, SEEN, TRUE): MANY}
    kept = {(TRUE, QUIET, TRUE): reads - lost, (TRUE, QUIET, NONE): lost}
    return Hazards(Counter({**known, **kept}), Counter(), Counter({(True, True): MANY, (False, False): MANY}))


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
    found = predicted(keeping(0, 46), sections, 0.0)
    assert found.low == pytest.approx(held(bound(46), sections), abs=0.01)
    assert found.high == pytest.approx(1.0, abs=1e-3)


def test_a_length_that_the_reads_do_not_support_has_no_accuracy_but_the_reads_it_needs() -> None:
    assert keeping(0, 46).expected_accuracy(1024, 0.0) == 1.0
    found = predicted(keeping(0, 46), 1024, 0.0)
    assert found.accuracy is None
    assert found.low < 0.05
    factor = next(n for n in range(46, MANY, 46) if held(bound(n), 1024) >= 1 - WIDEST) / 46
    assert found.reads_needed == pytest.approx(factor * keeping(0, 46).transitions.total(), rel=0.12)


def test_enough_reads_predict_the_length_again() -> None:
    few, many = predicted(keeping(2, 1000), 1024, 0.0), predicted(keeping(20, 10_000), 1024, 0.0)
    assert (few.accuracy, many.reads_needed) == (None, None)
    assert many.accuracy == pytest.approx(held(0.002, 1024))
    assert 0 < many.low < held(0.002, 1024) < many.high < 1
    assert many.high - many.low <= WIDEST < few.high - few.low


def test_a_state_that_was_never_counted_is_not_taken_for_a_faultless_one() -> None:
    hazards = keeping(0, MANY)
    hazards.transitions[TRUE, QUIET, TRUE] = 0
    found = predicted(hazards, 64, 0.0)
    assert (found.accuracy, found.reads_needed) == (None, None)
    assert (round(found.low, 2), found.high) == (0.02, 1.0)  # it may lose all that isn't in the last section


RATES = {"invents": 0.006, "takes": 0.9, "keeps": 0.997, "overruled": 0.6}


def count_documents(rng: random.Random, documents: int, sections: int) -> Hazards:
    """Reads of an agent with these rates, one near miss in ten sections, which it reads like any other section."""
    hazards = Hazards()
    for _ in range(documents):
        state, place = NONE, rng.randrange(sections)
        for k in range(sections):
            sight = SEEN if k == place else NEAR if rng.random() < 0.1 else QUIET
            after = moved(rng, state, sight)
            hazards.transitions[state, sight, after] += 1
            state = after
        hazards.answers[state is TRUE, state is TRUE] += 1
    return hazards


def moved(rng: random.Random, state: Holds, sight: Sight) -> Holds:
    if sight is SEEN:
        takes = {NONE: RATES["takes"], FALSE: RATES["overruled"], TRUE: 1.0}[state]
        return TRUE if rng.random() < takes else state
    if state is TRUE:
        return TRUE if rng.random() < RATES["keeps"] else NONE
    return FALSE if state is NONE and rng.random() < RATES["invents"] else state


def truth(sections: int) -> float:
    """By the recursion over sections, of the rates themselves."""
    total = 0.0
    for place in range(sections):
        invented = 1 - (1 - RATES["invents"]) ** place
        taken = (1 - invented) * RATES["takes"] + invented * RATES["overruled"]
        total += taken * RATES["keeps"] ** (sections - 1 - place)
    return total / sections


@pytest.mark.parametrize(("documents", "sections"), [(16, 64), (64, 64), (64, 256)])
def test_an_interval_holds_the_true_accuracy(documents: int, sections: int) -> None:
    """Counted at 16 sections; 150 draws of an interval that covers 95 % give at least 90 % but for 1 time in 200."""
    rng = random.Random(sections + documents)
    found = [predicted(count_documents(rng, documents, 16), sections, 0.1) for _ in range(150)]
    assert sum(each.low <= truth(sections) <= each.high for each in found) >= 0.9 * 150
