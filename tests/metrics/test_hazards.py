"""States of reads by hand, and the accuracy that follows from rates against every path written out."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from palimpsest.data.synthetic.documents import make_problem
from palimpsest.data.synthetic.world import RELATIONS, Fact, read_fact
from palimpsest.metrics.hazards import EVIDENCE as SEEN
from palimpsest.metrics.hazards import (
    FALSE,
    NEAR_MISS,
    NOTHING,
    QUIET,
    TRUE,
    Floats,
    Hazards,
    evidence_facts,
    expected_held,
    near_miss_share,
)
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.types import Completion, Outcome, Problem, Prompt, StopReason, Trajectory, Turn
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()
EVIDENCE = "Alice drinks tea."


def episode(*reads: tuple[str, str, str]) -> Trajectory:
    """Of (memory, section, memory written)."""
    turns = []
    for step, (memory, section, written) in enumerate(reads):
        pieces = {"question": "What does Alice drink?", "memory": memory, "section": section}
        prompt = Prompt.joined(
            part
            for name, text in pieces.items()
            for part in (CODEC.encode(f" {name}: "), Prompt.named(name, CODEC.encode(text)))
        )
        ids = (*CODEC.encode(written), 0)
        completion = Completion(ids, (-0.1,) * len(ids), StopReason.STOP)
        turns.append(Turn(tuple(prompt), completion, step, "read", {"chunk": step}, prompt.spans))
    return Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED, "tea")


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
        (" none", "Alice orders tea.", " Alice orders tea.", (NOTHING, SEEN, TRUE)),  # said otherwise, the same fact
        (" Alice drinks ale.", "Bo drinks tea.", " Alice drinks ale.", (FALSE, QUIET, FALSE)),
        (" Alice drinks tea.", "Alice wears red.", " Alice wears red.", (TRUE, NEAR_MISS, NOTHING)),
        (" Alice drinks tea. Alice drinks ale.", "", " Alice drinks tea.", (FALSE, QUIET, TRUE)),  # both: undecided
        (
            " Alice drinks tea",
            "It rained for a while.",
            " Alice drinks",
            (NOTHING, QUIET, NOTHING),
        ),  # cut: no fact
    ],
)
def test_a_read_is_counted_by_what_it_had_and_what_it_left(
    memory: str, section: str, written: str, expected: tuple[int, int, int]
) -> None:
    before, sight, after = expected
    reads = counted((memory, section, written)).reads
    assert (reads[sight, before, after], reads.sum()) == (1, 1)


def test_an_invention_about_somebody_else_is_counted_beside_the_evidence_fate() -> None:
    hazards = counted((" none", "Bo owns cats.", " Beth visited Rome."), (" Beth visited Rome.", "x", " Bo."))
    assert hazards.reads[QUIET, NOTHING, NOTHING] == 2
    assert hazards.unsupported[QUIET, NOTHING] == 1


def test_every_statement_of_the_world_is_read_as_the_fact_it_says() -> None:
    for relation in RELATIONS:
        value = relation.values[3]
        for said in relation.statements:
            assert read_fact(said.format(s="Zoe", v=value)) == Fact("Zoe", relation.name, value)


def test_documents_that_are_not_of_the_world_count_for_nothing() -> None:
    problem = Problem("p", "Where?", ("Rome",), None, {"evidence": ["Rome lies in Italy, they say."]})
    hazards = Hazards()
    hazards.add(problem, episode((" none", "x", "y")), True, GroupTexts(CODEC))
    assert (evidence_facts(problem), hazards.reads.sum(), hazards.answers.sum()) == ([], 0, 0)


def random_matrix(rng: random.Random) -> Floats:
    rows = np.array([[rng.random() for _ in range(3)] for _ in range(3)])
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("sections", [1, 2, 5])
def test_what_is_held_at_the_end_is_the_sum_over_every_path(sections: int) -> None:
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


def test_rates_of_an_agent_of_chance_are_found_and_its_accuracy_at_another_length() -> None:
    """An agent that takes 90% in, loses 2% a section and invents 1%, played at 16 sections, foretold for 48."""
    rng = random.Random(5)

    def played(sections: int, hazards: Hazards | None) -> bool:
        place, memory, reads = rng.randrange(sections), "", []
        for k in range(sections):
            section = EVIDENCE if k == place else "Alice owns cats." if rng.random() < 0.1 else "Bo owns cats."
            after = memory
            if k == place:
                after = EVIDENCE if rng.random() < 0.9 and memory != "Alice drinks ale." else memory
            elif memory == EVIDENCE:
                after = "" if rng.random() < 0.02 else memory
            elif not memory:
                after = "Alice drinks ale." if rng.random() < 0.01 else ""
            reads.append((memory, section, after or "-"))
            memory = after
        right = memory == EVIDENCE
        if hazards is not None:
            problem = Problem("p", "What?", ("tea",), None, {"evidence": [EVIDENCE]})
            hazards.add(problem, episode(*reads), right, GroupTexts(CODEC))
        return right

    hazards = Hazards()
    for _ in range(600):
        played(16, hazards)
    lost, reads = hazards.reads[QUIET, TRUE, NOTHING], hazards.reads[QUIET, TRUE].sum()
    assert 0.01 < lost / reads < 0.03
    truth = sum(played(48, None) for _ in range(4000)) / 4000
    assert hazards.expected_accuracy(48, 0.1) == pytest.approx(truth, abs=0.06)
    assert 0.3 < truth < 0.7


def test_an_agent_that_was_never_shown_a_state_has_no_foretold_accuracy() -> None:
    assert counted((" none", "Bo owns cats.", " Bo owns cats.")).expected_accuracy(4, 0.1) is None


def test_nothing_is_foretold_of_keeping_that_was_never_seen() -> None:
    taken = counted((" none", "Bo owns cats.", " none"), (" none", EVIDENCE, " " + EVIDENCE))
    assert taken.expected_accuracy(1, 0.1) == 1.0
    assert taken.expected_accuracy(2, 0.1) is None


def test_the_share_of_near_misses_is_that_of_the_documents() -> None:
    quiet = [make_problem(0, "eval", i, chunks=32, distractor_facts=0) for i in range(20)]
    full = [make_problem(0, "eval", i, chunks=32, distractor_facts=60) for i in range(20)]
    assert near_miss_share(quiet) < 0.05 < 0.4 < near_miss_share(full)
