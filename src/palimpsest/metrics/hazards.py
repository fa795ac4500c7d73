"""Rates of losing, hallucinating or acquiring a fact per read, and predicted accuracy at other lengths.

Every read counts for each fact of a problem's evidence, by the state of the memory before and after (`false`: another
value for its subject and relation, possibly with the true one) and the content of the section (`near miss`: another
fact about its subject). Over a document of n sections whose evidence is in section k,

    p(n, k) = (1, 0, 0) T^(k-1) E T^(n-k)        T = (1 - q) T_nothing + q T_near_miss
    held(n) = mean of p(n, k)_true over k = 1..n

with T_s and E the rates [before, after] and q the share of sections with a near miss. The ends of a 95% interval are
the 2.5% quantile of draws of all rates from Dirichlet(counts + 1/2 on outcomes worse than wanted), and the 97.5%
quantile with 1/2 on the wanted outcome: for one rate about Jeffreys' interval (Brown, Cai and DasGupta 2001), so that
0 losses in 46 reads are 0 to 5.3%. For simulated agents with independent reads it covers 98 to 100%.

Guaranteed: the same counts give the same figures on every machine.
Not covered: documents that are not synthetic; dependence between reads or between facts of one problem, which makes
the interval too narrow; an agent that behaves differently at other lengths.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from palimpsest.data.synthetic.world import Fact, read_fact
from palimpsest.metrics.memory_metrics import unsupported
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.seeding import derive_seed
from palimpsest.text.sentences import sentences
from palimpsest.types import Problem, Trajectory

HOLDS, SIGHTS = ("nothing", "false", "true"), ("nothing", "near miss", "evidence")
NOTHING, FALSE, TRUE = range(3)
QUIET, NEAR_MISS, EVIDENCE = range(3)
WANTED = np.array([[NOTHING, NOTHING, TRUE], [NOTHING, NOTHING, TRUE], [TRUE, TRUE, TRUE]])
"""[section, before] state of a faultless agent's memory after the read."""
_HALF_A_READ = {True: np.eye(3) / 2, False: np.array([[0.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.25, 0.25, 0.0]])}
"""[wanted, after] pseudo-counts for drawing better, or worse, rates."""
WIDEST = 0.5  # widest interval with a prediction
DRAWS = 2000
_MOST = 1 << 12  # largest multiple of the counted reads for `reads needed`

Floats = npt.NDArray[np.float64]


class Hazards:
    """Counts of reads and of answers."""

    def __init__(self) -> None:
        self.reads = np.zeros((3, 3, 3))
        """[section, before, after]"""
        self.unsupported = np.zeros((3, 3))
        """[section, before] reads that wrote at least one unsupported sentence."""
        self.answers = np.zeros((2, 2))
        """[all evidence in the last memory, right answer] episodes."""

    def add(self, problem: Problem, trajectory: Trajectory, right: bool, texts: GroupTexts) -> None:
        """Count an episode. Ignores evidence other than facts of the synthetic world."""
        pieces, episode = evidence_facts(problem), readings(trajectory, texts)
        if not pieces or not episode:
            return
        for reading in episode:
            invented = any(map(read_fact, unsupported(reading) or ()))
            section = [sentence for section in reading.sections for sentence in section.sentences]
            for fact in pieces:
                state = in_sight(section, fact), holds(reading.memory_before.sentences, fact)
                self.reads[(*state, holds(reading.memory_after.sentences, fact))] += 1
                self.unsupported[state] += invented
        last = episode[-1].memory_after.sentences
        self.answers[int(all(holds(last, fact) == TRUE for fact in pieces)), int(right)] += 1

    def expected_accuracy(self, sections: int, near_miss_share: float, pieces: int = 1) -> float | None:
        """Accuracy on documents of `sections` sections at the counted rates; None if one is uncounted.

        The two kinds of sections without evidence fill each other's missing rates. An uncounted hallucination
        persists, and evidence replaces it at the rate of an empty memory. `pieces`: facts that a question needs.
        """
        count = self.reads.sum(axis=-1)
        (quiet, near, evidence), mask = self.reads / np.maximum(count, 1)[..., None], count > 0
        never = ~(mask[QUIET] | mask[NEAR_MISS])
        if not mask[EVIDENCE, NOTHING] or (sections > 1 and (never[NOTHING] or never[TRUE])):
            return None
        quiet, near = np.where(mask[QUIET, :, None], quiet, near), np.where(mask[NEAR_MISS, :, None], near, quiet)
        quiet[never] = near[never] = np.eye(3)[never]
        evidence = np.where(mask[EVIDENCE, :, None], evidence, [evidence[NOTHING], evidence[NOTHING], [0.0, 0.0, 1.0]])
        held = expected_held((1 - near_miss_share) * quiet + near_miss_share * near, evidence, sections) ** pieces
        ended = self.answers.sum(axis=1)  # without episodes: right if the memory contains the evidence
        wrong, right = np.where(ended > 0, self.answers[:, 1] / np.maximum(ended, 1), [0.0, 1.0])
        return float(held * right + (1 - held) * wrong)

    def predicted(self, sections: int, near_miss_share: float, pieces: int = 1) -> dict[str, Any]:
        """`expected_accuracy` as `accuracy`, with the ends of its interval; None if the interval is wider than
        `WIDEST`. `reads needed`: approximate number of reads for that width; None if more of the same reads do not
        suffice."""

        def ends(factor: float) -> tuple[float, float]:
            """Interval for `factor` times as many reads and answers at the same rates."""
            worse, better = (self._drawn(factor, up, sections, near_miss_share, pieces) for up in (False, True))
            return float(np.quantile(worse, 0.025)), float(np.quantile(better, 0.975))

        def narrow(factor: float) -> bool:
            low, high = ends(factor)
            return high - low <= WIDEST

        low, high = ends(1)
        prediction = {"accuracy": None, "low": low, "high": high, "reads needed": None}
        if high - low <= WIDEST:
            return {**prediction, "accuracy": self.expected_accuracy(sections, near_miss_share, pieces)}
        factor = bisect_left(range(32 * _MOST), True, lo=32, key=lambda at: narrow(at / 32)) / 32
        return prediction if factor == _MOST else {**prediction, "reads needed": math.ceil(factor * self.reads.sum())}

    def _drawn(self, factor: float, better: bool, sections: int, near_miss_share: float, pieces: int) -> Floats:
        """[DRAWS] accuracies of drawn rates, `better` or worse than the counted ones."""
        rng = np.random.default_rng(derive_seed("predictions", int(better)))
        counts = self.reads * factor + _HALF_A_READ[better][WANTED]
        gammas = np.array([[rng.standard_gamma(row, (DRAWS, 3)) for row in rows] for rows in counts])
        quiet, near, evidence = np.moveaxis(gammas / gammas.sum(axis=-1, keepdims=True), 2, 1)  # [DRAWS, before, after]

        def right(held: int) -> Floats | float:
            wrongs, rights = self.answers[held] * factor
            if not rights + wrongs:
                return float(held)
            shares = (rights + better / 2, wrongs + (not better) / 2)
            return rng.beta(*shares, DRAWS) if min(shares) > 0 else float(better)

        held = expected_held((1 - near_miss_share) * quiet + near_miss_share * near, evidence, sections) ** pieces
        return np.asarray(held * right(1) + (1 - held) * right(0))


def expected_held(step: Floats, evidence: Floats, sections: int) -> Floats:
    """[...] held(n) of T, `step`, and E, `evidence`, both [..., before, after]: upper right of [[T, E], [0, T]]**n,
    over n."""
    blocks = np.block([[step, evidence], [np.zeros_like(step), step]])
    return np.asarray(np.linalg.matrix_power(blocks, sections)[..., NOTHING, -1] / sections)


def evidence_facts(problem: Problem) -> list[Fact]:
    """Facts that a question needs; empty if the data does not name them, or they are not the synthetic world's."""
    texts = problem.metadata.get("evidence") or ()
    facts = _facts(texts)
    return facts if len(facts) == len(texts) else []


def holds(memory: Iterable[str], evidence: Fact) -> int:
    """Index in `HOLDS` for the sentences of a memory."""
    values = {fact.value for fact in _facts(memory) if fact[:2] == evidence[:2]}
    return NOTHING if not values else TRUE if values == {evidence.value} else FALSE


def in_sight(section: Iterable[str], evidence: Fact) -> int:
    """Index in `SIGHTS` for the sentences of a section."""
    relations = {fact.relation for fact in _facts(section) if fact.subject == evidence.subject}
    return EVIDENCE if evidence.relation in relations else NEAR_MISS if relations else QUIET


def _facts(sentences: Iterable[str]) -> list[Fact]:
    return [fact for sentence in sentences if (fact := read_fact(sentence)) is not None]


def near_miss_share(problems: Iterable[Problem]) -> float:
    """q of the module's formula: share of sections with a near miss, among sections without the evidence."""
    pairs = (
        (line, fact)
        for problem in problems
        for fact in evidence_facts(problem)
        for line in (problem.context or "").splitlines()
    )
    sights = [in_sight(sentences(line), fact) for line, fact in pairs]
    return sights.count(NEAR_MISS) / (sights.count(NEAR_MISS) + sights.count(QUIET) or 1)
