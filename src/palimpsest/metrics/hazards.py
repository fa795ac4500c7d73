"""How often one read loses, invents or takes in a fact, and the accuracy at other lengths that follows.

Reads are counted for each piece of a problem's evidence, a fact (subject, relation, value), by two things:

    holds    what the memory before, of several heads all of them, says of subject and relation
             nothing     no such fact
             false       another value, alone or beside the true one: an invention
             true        the evidence
    in sight what the section says of the subject
             nothing     nothing
             near miss   another fact of the same subject
             evidence    the evidence

and by what the memory after holds. An accuracy that falls with length falls by these rates: over a document of n
sections whose evidence stands in section k,

    p(n, k) = (1, 0, 0) T^(k-1) E T^(n-k)        T = (1 - q) T_nothing + q T_near_miss
    held(n) = mean of p(n, k)_true over k = 1..n

with T_s and E the transition matrices [holds before, holds after] and q the share of sections with a near miss in
them. `expected_accuracy` adds how often the answer is right when the evidence is held, and when it isn't;
this file has its interval.

Guaranteed: counts add up over episodes, in any order; rates come with the number of reads behind them.
Not covered: documents other than synthetic ones, where nothing says what a sentence's subject is; what one read owes to
earlier ones but through these three states; pieces of one problem that depend on each other (they are multiplied).

Accuracy at other lengths than the one played, with its 95% interval, and the lengths that too few reads support.

The accuracy is that of metrics/hazards.py's formula from the counted rates. Its interval is of `DRAWS` draws of the
rates:

    low     the 2.5% quantile, each state's rates drawn from Dirichlet(counts + 1/2 on what is worse than wanted)
    high    the 97.5% quantile, each from Dirichlet(counts + 1/2 on what is wanted)

Of a single rate these are about the ends of Jeffreys' interval (Brown, Cai and DasGupta 2001), so that 0 losses in 46
reads are rates of 0 to 5.3 %. Several rates are drawn together, which is less wide than all of them at their worst; of
simulated agents with independent reads the interval covers 98 to 100 %.

Guaranteed: the same counts give the same figures on every machine.
Not covered: reads of one document that depend on each other, which make the interval too narrow; an agent that behaves
otherwise in documents of other lengths; a state of the answer that was never counted, where the memory decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from palimpsest.data.synthetic.world import Fact, read_fact
from palimpsest.metrics.memory_metrics import unsupported
from palimpsest.metrics.reading_trace import Text, Texts, readings
from palimpsest.seeding import derive_seed
from palimpsest.types import Problem, Trajectory


class Holds(StrEnum):
    """What a memory says of the subject and relation that the evidence is about."""

    NOTHING = "nothing"
    FALSE = "false"
    TRUE = "true"

    def wanted(self, sight: Sight) -> Holds:
        """What a faultless agent holds after a read that began so.

        >>> Holds.FALSE.wanted(Sight.NOTHING), Holds.FALSE.wanted(Sight.EVIDENCE)
        (<Holds.NOTHING: 'nothing'>, <Holds.TRUE: 'true'>)
        """
        return Holds.TRUE if sight is Sight.EVIDENCE or self is Holds.TRUE else Holds.NOTHING


class Sight(StrEnum):
    """What a section says of the evidence's subject."""

    NOTHING = "nothing"
    NEAR_MISS = "near miss"
    EVIDENCE = "evidence"


Transition = tuple[Holds, Sight, Holds]
"""(holds before, in sight, holds after)."""


@dataclass(slots=True)
class Hazards:
    """Counts of reads and of answers."""

    transitions: Counter[Transition] = field(default_factory=Counter)
    unsupported: Counter[tuple[Holds, Sight]] = field(default_factory=Counter)
    """Reads that wrote at least one sentence, on whomever, that nothing in sight says."""
    answers: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """Episodes by (all of the evidence held at the end, answered rightly)."""

    def add(self, problem: Problem, trajectory: Trajectory, right: bool, texts: Texts) -> None:
        """Count an episode. One whose evidence are no facts of the synthetic world counts for nothing."""
        pieces = evidence_facts(problem)
        episode = readings(trajectory, texts)
        if not pieces or not episode:
            return
        for reading in episode:
            invented = any(map(read_fact, unsupported(reading) or ()))
            for fact in pieces:
                before, sight = holds(reading.memory_before, fact), in_sight(reading.section, fact)
                self.transitions[before, sight, holds(reading.memory_after, fact)] += 1
                self.unsupported[before, sight] += invented
        last = episode[-1].memory_after
        self.answers[all(holds(last, fact) is Holds.TRUE for fact in pieces), right] += 1

    def reads(self, before: Holds, sight: Sight) -> int:
        """How many reads began so."""
        return sum(self.transitions[before, sight, after] for after in Holds)

    def rate(self, before: Holds, sight: Sight, after: Holds) -> float | None:
        """Share of the reads that began so and left the memory so; None where none began so."""
        reads = self.reads(before, sight)
        return self.transitions[before, sight, after] / reads if reads else None

    def expected_accuracy(self, sections: int, near_miss_share: float, pieces: int = 1) -> float | None:
        """Of documents of so many sections; None where a rate it needs was never seen.

        `near_miss_share` is q of the module's formula, `pieces` the number of facts a question needs.
        """
        evidence = self._after_evidence()
        step = self._between(near_miss_share, needs_keeping=sections > 1)
        if evidence is None or step is None or sections < 1:
            return None
        held = float(expected_held(step, evidence, sections)) ** pieces
        by_held = {known: self._right(known) for known in (True, False)}
        return held * by_held[True] + (1 - held) * by_held[False]

    def _between(self, near_miss_share: float, *, needs_keeping: bool) -> list[list[float]] | None:
        """T of the module's formula [before, after]; None where what it needs was never seen.

        What one of the two sights lacks is taken from the other; an invention that was never read with stays.
        """
        quiet, near = (self._rows(sight) for sight in (Sight.NOTHING, Sight.NEAR_MISS))
        rows = []
        for before in Holds:
            a, b = quiet.get(before) or near.get(before), near.get(before) or quiet.get(before)
            if a is None or b is None:
                if needs_keeping and before is not Holds.FALSE:
                    return None
                a = b = [float(before is after) for after in Holds]
            rows.append([(1 - near_miss_share) * x + near_miss_share * y for x, y in zip(a, b, strict=True)])
        return rows

    def _after_evidence(self) -> list[list[float]] | None:
        """E of the module's formula; None if no evidence came by an agent that held nothing.

        An invention that no evidence ever met is taken to give way as nothing does.
        """
        rows = self._rows(Sight.EVIDENCE)
        nothing = rows.get(Holds.NOTHING)
        if nothing is None:
            return None
        return [nothing, rows.get(Holds.FALSE) or nothing, rows.get(Holds.TRUE) or [0.0, 0.0, 1.0]]

    def _rows(self, sight: Sight) -> dict[Holds, list[float]]:
        """[after] rates of the states that were seen."""
        return {
            before: [self.transitions[before, sight, after] / reads for after in Holds]
            for before in Holds
            if (reads := self.reads(before, sight))
        }

    def _right(self, held: bool) -> float:
        """Share of right answers among episodes that ended so; without any, as if the memory decided."""
        count = self.answers[held, True] + self.answers[held, False]
        return self.answers[held, True] / count if count else float(held)


def expected_held(step: npt.ArrayLike, evidence: npt.ArrayLike, sections: int) -> npt.NDArray[np.float64]:
    """[...] held(n) of the module's formula, of n `sections`; `step` is T, `evidence` is E, both [..., before, after].

    The sum over k is the upper right block of the n-th power of [[T, E], [0, T]].

    Evidence taken in nine times of ten, lost in one of ten further sections:

    >>> step = [[1, 0, 0], [0, 1, 0], [0.1, 0, 0.9]]
    >>> evidence = [[0.1, 0, 0.9], [0.1, 0, 0.9], [0, 0, 1]]
    >>> [round(float(expected_held(step, evidence, sections)), 3) for sections in (1, 2)]
    [0.9, 0.855]
    """
    between, taken = np.asarray(step, dtype=np.float64), np.asarray(evidence, dtype=np.float64)
    none = np.zeros_like(between)
    blocks = np.concatenate(
        [np.concatenate([between, taken], axis=-1), np.concatenate([none, between], axis=-1)], axis=-2
    )
    found: npt.NDArray[np.float64] = np.linalg.matrix_power(blocks, sections)[..., 0, -1] / sections
    return found


def evidence_facts(problem: Problem) -> tuple[Fact, ...]:
    """The facts a question needs; none where the data doesn't name them, or they aren't the synthetic world's."""
    facts = [read_fact(text) for text in problem.metadata.get("evidence") or ()]
    return tuple(fact for fact in facts if fact is not None) if None not in facts else ()


def holds(memory: Text, evidence: Fact) -> Holds:
    """What a memory says of the evidence's subject and relation."""
    values = {fact.value for fact in facts(memory) if fact[:2] == evidence[:2]}
    if not values:
        return Holds.NOTHING
    return Holds.TRUE if values == {evidence.value} else Holds.FALSE


def in_sight(section: Text | None, evidence: Fact) -> Sight:
    """What a section says of the evidence's subject."""
    relations = {fact.relation for fact in facts(section) if fact.subject == evidence.subject} if section else set()
    if evidence.relation in relations:
        return Sight.EVIDENCE
    return Sight.NEAR_MISS if relations else Sight.NOTHING


def facts(text: Text) -> list[Fact]:
    """Those that a text's sentences say."""
    return [fact for sentence in text.sentences if (fact := read_fact(sentence)) is not None]


def near_miss_share(problems: Iterable[Problem]) -> float:
    """q of the module's formula: share of sections, but those with the evidence, that have a near miss in them."""
    seen: Counter[Sight] = Counter()
    for problem in problems:
        for line in (problem.context or "").splitlines():
            section = Text((), lambda line=line: line)  # type: ignore[misc]
            seen.update(in_sight(section, fact) for fact in evidence_facts(problem))
    return seen[Sight.NEAR_MISS] / (seen[Sight.NEAR_MISS] + seen[Sight.NOTHING] or 1)


# ---- Accuracy at other lengths than the one played -----------------------------------------------------------


WIDEST = 0.5  # of an interval of a length that is predicted
DRAWS = 2000
_MOST = 1 << 12  # times the counted reads: what would need more has no number

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The accuracy that counted reads come to in documents of `sections` sections."""

    sections: int
    accuracy: float | None
    """None where the interval is wider than `WIDEST`, or where a rate it needs was never counted."""
    low: float
    high: float
    """Ends of the 95% interval."""
    reads_needed: int | None = None
    """About how many reads would narrow the interval to `WIDEST`, at the counted rates. None where the accuracy is
    predicted, or where more of the same reads would not do."""


def predicted(hazards: Hazards, sections: int, near_miss_share: float, pieces: int = 1) -> Prediction:
    """The accuracy in documents of so many sections; arguments are those of `Hazards.expected_accuracy`."""
    low, high = _ends(hazards, 1, sections, near_miss_share, pieces)
    accuracy = hazards.expected_accuracy(sections, near_miss_share, pieces)
    if high - low <= WIDEST:
        return Prediction(sections, accuracy, low, high)
    return Prediction(sections, None, low, high, _needed(hazards, sections, near_miss_share, pieces))


def _needed(hazards: Hazards, sections: int, near_miss_share: float, pieces: int) -> int | None:
    """Reads at which the interval is as narrow as `WIDEST`, to two digits."""

    def narrow(factor: float) -> bool:
        low, high = _ends(hazards, factor, sections, near_miss_share, pieces)
        return high - low <= WIDEST

    enough = 2.0
    while not narrow(enough):
        enough *= 2
        if enough > _MOST:
            return None
    few = enough / 2
    for _ in range(5):
        middle = (few + enough) / 2
        few, enough = (few, middle) if narrow(middle) else (middle, enough)
    reads = enough * hazards.transitions.total()
    unit: int = 10 ** max(0, math.floor(math.log10(reads)) - 1)
    return math.ceil(reads / unit) * unit


def _ends(hazards: Hazards, factor: float, *lengths: float) -> tuple[float, float]:
    """(low, high) of the accuracy if `factor` times as many reads and answers had been counted at the same rates."""
    low = np.quantile(_drawn(hazards, factor, False, *lengths), 0.025)
    high = np.quantile(_drawn(hazards, factor, True, *lengths), 0.975)
    return float(low), float(high)


def _drawn(
    hazards: Hazards, factor: float, better: bool, sections: float, near_miss_share: float, pieces: float
) -> Floats:
    """[DRAWS] accuracies of drawn rates, `better` or worse than the counted ones."""
    rng = np.random.default_rng(derive_seed("predictions", int(better)))

    def rates(sight: Sight) -> Floats:  # [DRAWS, before, after]
        rows = []
        for before in Holds:
            counts = np.array([hazards.transitions[before, sight, after] for after in Holds]) * factor
            gammas = rng.standard_gamma(counts + _half_a_read(before, sight, better), (DRAWS, len(Holds)))
            rows.append(gammas / gammas.sum(axis=1, keepdims=True))
        return np.stack(rows, axis=1)

    def right(held: bool) -> Floats | float:
        rights, wrongs = (hazards.answers[held, graded] * factor for graded in (True, False))
        if not rights + wrongs:
            return float(held)
        shares = (rights + better / 2, wrongs + (not better) / 2)
        return rng.beta(*shares, DRAWS) if min(shares) > 0 else float(better)

    quiet, near, evidence = (rates(sight) for sight in (Sight.NOTHING, Sight.NEAR_MISS, Sight.EVIDENCE))
    step = (1 - near_miss_share) * quiet + near_miss_share * near
    held = expected_held(step, evidence, int(sections)) ** pieces
    return np.asarray(held * right(True) + (1 - held) * right(False))


def _half_a_read(before: Holds, sight: Sight, better: bool) -> Floats:
    """[after] what a draw adds to the counts: half a read, as wanted if `better`, else shared by what is worse."""
    wanted = before.wanted(sight)
    worse = (Holds.FALSE,) if wanted is Holds.NOTHING else (Holds.NOTHING, Holds.FALSE)
    places = (wanted,) if better else worse
    return np.array([(after in places) / len(places) / 2 for after in Holds])
