"""Reads counted by hand; accuracies predicted from their rates compared with every path and with simulations."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from palimpsest.data.synthetic.documents import make_problem
from palimpsest.metrics.hazards import EVIDENCE as SEEN
from palimpsest.metrics.hazards import (
    FALSE,
    NEAR_MISS,
    NOTHING,
    QUIET,
    TRUE,
    WIDEST,
    Floats,
    Hazards,
    evidence_facts,
    expected_held,
    near_miss_share,
)
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.types import Outcome, Problem, Trajectory
from support.groups import CODEC, reading_turn

MANY = 10**7
EVIDENCE = "Alice drinks tea."


def episode(*reads: tuple[str, str, str]) -> Trajectory:
    """An episode of (memory, section, memory written)."""
    turns = tuple(
        reading_turn(step, section, memory, written, "What does Alice drink?")
        for step, (memory, section, written) in enumerate(reads)
    )
    return Trajectory("p", "g", 0, turns, Outcome.ANSWERED, "tea")


def counted(*reads: tuple[str, str, str], right: bool = True) -> Hazards:
    hazards = Hazards()
    problem = Problem("p", "What does Alice drink?", ("tea",), None, {"evidence": [EVIDENCE]})
    hazards.add(problem, episode(*reads), right, GroupTexts(CODEC))
    return hazards


@pytest.mark.parametrize(
    ("memory", "section", "written", "expected"),
    [
        (" none", "Bo owns cats.", " Bo owns cats.", (NOTHING, QUIET, NOTHING)),
        (" none", "Alice owns cats.", " Alice drinks ale.", (NOTHING, NEAR_MISS, FALSE)),
        (" none", "Alice orders tea.", " Alice orders tea.", (NOTHING, SEEN, TRUE)),  # the same fact in other words
        (" Alice drinks ale.", "Bo drinks tea.", " Alice drinks ale.", (FALSE, QUIET, FALSE)),
        (" Alice drinks tea.", "Alice wears red.", " Alice wears red.", (TRUE, NEAR_MISS, NOTHING)),
        (" Alice drinks tea. Alice drinks ale.", "", " Alice drinks tea.", (FALSE, QUIET, TRUE)),
        (" Alice drinks tea", "It rained.", " Alice drinks", (NOTHING, QUIET, NOTHING)),  # cut: no fact
    ],
)
def test_a_read_is_counted_by_its_states(
    memory: str, section: str, written: str, expected: tuple[int, int, int]
) -> None:
    before, sight, after = expected
    reads = counted((memory, section, written)).reads
    assert (reads[sight, before, after], reads.sum()) == (1, 1)


def test_an_invention_about_another_person_is_counted_as_unsupported() -> None:
    hazards = counted((" none", "Bo owns cats.", " Beth visited Rome."), (" Beth visited Rome.", "x", " Bo."))
    assert hazards.reads[QUIET, NOTHING, NOTHING] == 2
    assert hazards.unsupported[QUIET, NOTHING] == 1


def test_documents_of_another_world_are_not_counted() -> None:
    problem = Problem("p", "Where?", ("Rome",), None, {"evidence": ["Rome lies in Italy, they say."]})
    hazards = Hazards()
    hazards.add(problem, episode((" none", "x", "y")), True, GroupTexts(CODEC))
    assert (evidence_facts(problem), hazards.reads.sum(), hazards.answers.sum()) == ([], 0, 0)


def random_matrix(rng: random.Random) -> Floats:
    rows = np.array([[rng.random() for _ in range(3)] for _ in range(3)])
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("sections", [1, 2, 5])
def test_expected_held_is_the_sum_over_every_path(sections: int) -> None:
    rng = random.Random(sections)
    step, evidence = random_matrix(rng), random_matrix(rng)
    total = 0.0
    for k in range(sections):
        for path in itertools.product(range(3), repeat=sections):
            states, p = (0, *path), 1.0
            for i in range(sections):
                p *= (evidence if i == k else step)[states[i], states[i + 1]]
            total += p * (states[-1] == 2)
    assert expected_held(step, evidence, sections) == pytest.approx(total / sections, rel=1e-12)


def test_an_uncounted_state_has_no_predicted_accuracy() -> None:
    assert counted((" none", "Bo owns cats.", " Bo owns cats.")).expected_accuracy(4, 0.1) is None
    stored = counted((" none", "Bo owns cats.", " none"), (" none", EVIDENCE, " " + EVIDENCE))
    assert stored.expected_accuracy(1, 0.1) == 1.0
    assert stored.expected_accuracy(2, 0.1) is None  # keeping was not counted


def test_the_share_of_near_misses_is_that_of_the_documents() -> None:
    quiet = [make_problem(0, "eval", i, chunks=32, distractor_facts=0) for i in range(20)]
    full = [make_problem(0, "eval", i, chunks=32, distractor_facts=60) for i in range(20)]
    assert near_miss_share(quiet) < 0.05 < 0.4 < near_miss_share(full)


# ---- intervals of predictions ---------------------------------------------------------------------------------


def keeping(lost: int, reads: int) -> Hazards:
    """Reads of an agent that stores all evidence, invents nothing and answers from its memory."""
    hazards = Hazards()
    hazards.reads[QUIET, NOTHING, NOTHING] = hazards.reads[SEEN, NOTHING, TRUE] = MANY
    hazards.reads[QUIET, TRUE, TRUE], hazards.reads[QUIET, TRUE, NOTHING] = reads - lost, lost
    hazards.answers[1, 1] = hazards.answers[0, 0] = MANY
    return hazards


def retained(rate: float, sections: int) -> float:
    """Mean over k of the rate at which evidence of section k is in the last memory."""
    return sum((1 - rate) ** later for later in range(sections)) / sections


def bound(reads: int) -> float:
    """97.5 % quantile of Beta(1/2, reads), whose root has the density (1 - u^2)^(n-1)."""
    steps = 20_000
    density = [(1 - (u / steps) ** 2) ** (reads - 1) for u in range(steps)]
    below = list(itertools.accumulate(density))
    return (next(u for u in range(steps) if below[u] >= 0.975 * below[-1]) / steps) ** 2


@pytest.mark.parametrize("sections", [4, 64, 1024])
def test_reads_without_a_loss_predict_down_to_the_bound_of_their_rate(sections: int) -> None:
    assert bound(46) == pytest.approx(0.0533, abs=2e-4)
    result = keeping(0, 46).predicted(sections, 0.0)
    assert result["low"] == pytest.approx(retained(bound(46), sections), abs=0.01)
    assert result["high"] == pytest.approx(1.0, abs=1e-3)


def test_a_length_that_the_reads_do_not_support_has_the_number_of_reads_needed() -> None:
    assert keeping(0, 46).expected_accuracy(1024, 0.0) == 1.0
    result = keeping(0, 46).predicted(1024, 0.0)
    assert result["accuracy"] is None
    assert result["low"] < 0.05
    factor = next(n for n in range(46, MANY, 46) if retained(bound(n), 1024) >= 1 - WIDEST) / 46
    assert result["reads needed"] == pytest.approx(factor * keeping(0, 46).reads.sum(), rel=0.12)


def test_enough_reads_predict_the_same_length() -> None:
    few, many = keeping(2, 1000).predicted(1024, 0.0), keeping(20, 10_000).predicted(1024, 0.0)
    assert (few["accuracy"], many["reads needed"]) == (None, None)
    assert many["accuracy"] == pytest.approx(retained(0.002, 1024))
    assert 0 < many["low"] < retained(0.002, 1024) < many["high"] < 1
    assert many["high"] - many["low"] <= WIDEST < few["high"] - few["low"]


def test_an_uncounted_state_is_not_assumed_to_be_faultless() -> None:
    hazards = keeping(0, MANY)
    hazards.reads[QUIET, TRUE, TRUE] = 0
    result = hazards.predicted(64, 0.0)
    assert (result["accuracy"], result["reads needed"]) == (None, None)
    assert (round(result["low"], 2), result["high"]) == (0.02, 1.0)  # it may lose all evidence before the last section


RATES = {"invents": 0.006, "takes": 0.9, "keeps": 0.997, "overruled": 0.6}


def count_documents(rng: random.Random, documents: int, sections: int) -> Hazards:
    """Reads of an agent with these rates, with one near miss in ten sections."""
    hazards = Hazards()
    for _ in range(documents):
        state, position = NOTHING, rng.randrange(sections)
        for k in range(sections):
            sight = SEEN if k == position else NEAR_MISS if rng.random() < 0.1 else QUIET
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
    """By recursion over the sections."""
    total = 0.0
    for position in range(sections):
        invented = 1 - (1 - RATES["invents"]) ** position
        taken = (1 - invented) * RATES["takes"] + invented * RATES["overruled"]
        total += taken * RATES["keeps"] ** (sections - 1 - position)
    return total / sections


def test_counted_rates_predict_the_accuracy_at_another_length() -> None:
    hazards = count_documents(random.Random(5), 600, 16)
    assert hazards.expected_accuracy(48, 0.1) == pytest.approx(truth(48), abs=0.06)
    assert 0.3 < truth(48) < 0.9


@pytest.mark.parametrize(("documents", "sections"), [(16, 64), (64, 64), (64, 256)])
@pytest.mark.slow
def test_an_interval_contains_the_true_accuracy(documents: int, sections: int) -> None:
    """150 draws of a 95 % interval cover at least 90 % except 1 time in 200."""
    rng = random.Random(sections + documents)
    result = [count_documents(rng, documents, 16).predicted(sections, 0.1) for _ in range(150)]
    assert sum(item["low"] <= truth(sections) <= item["high"] for item in result) >= 0.9 * 150
