"""Evaluation summary: accuracy with its interval, by length; pass@k and clusters.

Every problem is in a summary. The denominator of `accuracy` contains all graded problems (an empty answer is wrong,
not missing). `ungraded` counts the others (sampler failed, timed out...) with the reason. Samples that share a
document or answer one question form a cluster, and intervals take clusters into account.

Guaranteed: cluster membership is transitive; without documents in the log, only questions form clusters.
Not covered: documents that overlap without being equal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from palimpsest.evaluation.sample_log import Cell, Sample
from palimpsest.evaluation.statistics import Clusters, bootstrap, clustered_wilson, student_interval, wilson
from palimpsest.events import DocumentTruncated
from palimpsest.metrics.memory_metrics import EVIDENCE_FIRST, EVIDENCE_LAST, folded
from palimpsest.notes import Note
from palimpsest.rollout.token_costs import cost_figures

# ---- Clusters of samples -------------------------------------------------------------------------------------


def question_hash(sample: Sample) -> str:
    """Hash of questions and golds; samples of two evaluations may be paired if it is equal."""
    questions = [[question["question"], question["answers"]] for question in sample.questions]
    encoded = json.dumps([sample.question, list(sample.answers), questions]).encode()
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def clusters_of(samples: Sequence[Sample]) -> list[int]:
    """[samples] cluster of each, numbered by first appearance.

    Samples of one question have equal id, text and golds, at any length and draw.
    """
    parents = list(range(len(samples)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    first: dict[tuple[str, str], int] = {}
    for index, sample in enumerate(samples):
        keys = [("question", f"{sample.id}\0{question_hash(sample)}")]
        keys += [("document", sample.document)] if sample.document else []
        for key in keys:
            parents[root(index)] = root(first.setdefault(key, index))
    names: dict[int, int] = {}
    return [names.setdefault(root(index), len(names)) for index in range(len(samples))]


# ---- pass@k and disagreement ---------------------------------------------------------------------------------


RIGHT = 1.0
"""Value of a sample that passes; fractions do not pass."""


def pass_at_k(n: int, right: int, k: int) -> float:
    """Unbiased probability that one of k samples is right, given `right` of n (Chen et al. 2021, arXiv 2107.03374,
    equation 1): 1 - C(n - right, k) / C(n, k).

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 0, 4), pass_at_k(4, 4, 1)
    (0.5, 0.0, 1.0)
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def passes(samples: Iterable[Sample], drawn: int) -> dict[str, float]:
    """Mean pass@k over problems with k or more graded samples, for k = 1, 2, 4... and `drawn`; empty if that is 1."""
    if drawn < 2:
        return {}
    problems = _by_problem(samples)
    sizes = sorted({*(2**power for power in range(drawn.bit_length())), drawn})
    counts = [(len(grades), sum(grade >= RIGHT for grade in grades)) for grades in problems]
    means = {}
    for k in (size for size in sizes if size <= drawn):
        values = [pass_at_k(n, right, k) for n, right in counts if n >= k]
        if values:
            means[str(k)] = fmean(values)
    return means


def disagreement(samples: Iterable[Sample], drawn: int) -> float | None:
    """Share of problems with different values among their graded samples, over problems with at least two."""
    several = [values for values in _by_problem(samples) if len(values) > 1]
    return fmean(len(set(values)) > 1 for values in several) if drawn > 1 and several else None


def _by_problem(samples: Iterable[Sample]) -> Sequence[list[float]]:
    values: dict[tuple[Cell, str], list[float]] = {}
    for sample in samples:
        if sample.value is not None:
            values.setdefault((sample.cell, sample.id), []).append(sample.value)
    return list(values.values())


# ---- Figures -------------------------------------------------------------------------------------------------


BINS = 5
"""Bins of the evidence position within a document."""


@dataclass(frozen=True, slots=True)
class Score:
    """Mean over graded problems with its 95% interval; None without graded problems."""

    mean: float | None
    low: float | None
    high: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval, which contains the mean (both are rounded); the mean if they are unknown."""
        mean = self.mean or 0.0
        return min(mean, mean if self.low is None else self.low), max(mean, mean if self.high is None else self.high)


@dataclass(frozen=True, slots=True)
class LengthSummary:
    length: int | None
    problems: int
    graded: int
    accuracy: Score
    tokens_per_document: float


@dataclass(frozen=True, slots=True)
class PositionSummary:
    """Figures of the problems whose evidence is in one fifth of the document."""

    start: float
    end: float
    """Start and end as shares of the document's length."""
    graded: int
    accuracy: Score


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """Figures of one policy on one part of the problems."""

    cell: Cell
    problems: int
    graded: int
    """Episodes: `samples` per problem."""
    ungraded: int
    accuracy: Score
    """Over graded episodes; episodes of one problem form a cluster."""
    metrics: dict[str, float]
    """Mean of each part of the breakdown over graded problems."""
    measures: dict[str, float]
    """Mean of each measure over the problems that have it."""
    outcomes: dict[str, int]
    ungraded_reasons: dict[str, int]
    lengths: tuple[LengthSummary, ...]
    tokens_per_document: float
    """Mean tokens processed: prompt and sampled tokens of all calls, prefixes counted per call."""
    turns_per_document: float
    documents_cut: int = 0
    """Problems with a document longer than the policy's options or the window allow, so that the policy cut it."""
    samples: int = 1
    pass_at: dict[str, float] = field(default_factory=dict)
    disagreement: float | None = None
    answer_chars: float | None = None
    """Median length of the answers in characters, with thinking; None without answers."""

    clusters: int = 0
    """Clusters of the graded problems by shared document or question; the interval counts clusters."""
    interval: str = "wilson"
    """Kind of the interval of `accuracy`: wilson, or bootstrap for values outside 0 to 1."""

    tokens_per_correct: float | None = None
    """Tokens processed in all episodes per right answer (fractional grades: per unit of their sum); None without a
    right answer or with a grade outside 0 to 1."""
    by_evidence: tuple[PositionSummary, ...] = ()
    """[5] by position of the first piece of evidence; empty if the data has no evidence."""
    by_last_evidence: tuple[PositionSummary, ...] = ()
    """[5] by position of the last piece; empty if every problem has its evidence in one position."""

    abstention: LengthSummary | None = None
    """Figures of the problems whose right answer is an abstention (types.GRADING), if there are any."""
    fits_window: int | None = None
    """Problems of the part whose document fits the model's window; None: unknown."""
    part_problems: int | None = None
    """Problems of the part, if only some of them ran."""

    @property
    def by_length(self) -> tuple[int, int, float]:
        """Sort key from short to long: the longest document, then the size in the name, then the tokens processed."""
        longest = max((summary.length or 0 for summary in self.lengths), default=0)
        return longest, self.cell.size_in_name, self.tokens_per_document

    @property
    def costs(self) -> dict[str, float]:
        """Means of the measured costs, by their column in a table."""
        return cost_figures(self.measures)

    @property
    def measures_reading(self) -> bool:
        """True if every document fits the window, so that the agent needs no memory."""
        return not self.cell.baseline and self.fits_window == self.problems

    def to_json(self) -> dict[str, Any]:
        """Row of summary.json: the cell's fields and these."""
        values = asdict(self)
        return {**values.pop("cell"), **values, **({"measures_reading": True} if self.measures_reading else {})}


def cost_columns(cells: Iterable[EvalSummary]) -> list[str]:
    """Columns of the measured costs that any row has."""
    return list(dict.fromkeys(name for cell in cells for name in cell.costs))


def summarise(
    cell: Cell,
    samples: Iterable[Sample],
    drawn: int = 1,
    *,
    fits_window: int | None = None,
    part_problems: int | None = None,
) -> EvalSummary:
    """Figures of `drawn` samples per problem of a cell, in any order."""
    rows = sorted(samples, key=lambda s: (s.id, s.draw))
    graded, absent = [s for s in rows if s.value is not None], [s for s in rows if s.grading.get("abstention")]
    lengths = sorted({s.length for s in rows}, key=lambda length: (length is None, length or 0))
    return EvalSummary(
        cell=cell,
        problems=_problems(rows),
        graded=len(graded),
        ungraded=len(rows) - len(graded),
        accuracy=accuracy_of(rows),
        clusters=len(set(clusters_of(graded))),
        interval="wilson" if all(0.0 <= (s.value or 0.0) <= 1.0 for s in graded) else "bootstrap",
        metrics=folded((s.metrics for s in graded), fmean),
        measures=folded((s.measures for s in rows), fmean),
        outcomes=dict(sorted(Counter(s.outcome for s in rows).items())),
        ungraded_reasons=dict(sorted(Counter(s.reason or "" for s in rows if s.value is None).items())),
        lengths=tuple(_length_summary(length, [s for s in rows if s.length == length]) for length in lengths),
        tokens_per_document=_mean([s.tokens for s in rows]),
        turns_per_document=_mean([s.turns for s in rows]),
        documents_cut=_problems(s for s in rows if DocumentTruncated.kind in s.events),
        samples=drawn,
        pass_at=passes(rows, drawn),
        disagreement=disagreement(rows, drawn),
        tokens_per_correct=tokens_per_correct(rows),
        by_evidence=by_position(rows, EVIDENCE_FIRST),
        by_last_evidence=by_position(rows, EVIDENCE_LAST) if _several_places(rows) else (),
        answer_chars=median(chars) if (chars := [len(s.answer) for s in rows if s.answer is not None]) else None,
        abstention=_length_summary(None, absent) if absent else None,
        fits_window=fits_window,
        part_problems=part_problems,
    )


def by_player(summaries: Sequence[EvalSummary], players: Iterable[str] = ()) -> tuple[EvalSummary, ...]:
    """Summaries of `players` in their order, then of others; each by family of sets, and in it from short to long."""
    cells = [summary.cell for summary in summaries]
    names = dict.fromkeys([*players, *(cell.player for cell in cells)])
    order = {player: index for index, player in enumerate(names)}
    families = {name: index for index, name in enumerate(dict.fromkeys(cell.family for cell in cells))}

    def place(row: EvalSummary) -> tuple[int, int, tuple[int, int, float]]:
        return order[row.cell.player], families[row.cell.family], row.by_length

    return tuple(sorted(summaries, key=place))


def interval_notes(rows: Mapping[str, EvalSummary]) -> list[Note]:
    """A note on the rows with a bootstrap interval, if other rows have Wilson's."""
    kinds = {name: summary.interval for name, summary in rows.items() if summary.graded}
    if len(set(kinds.values())) < 2:
        return []
    names = ", ".join(name for name, kind in kinds.items() if kind == "bootstrap")
    return [Note("bootstrap_intervals", names=names)]


def cluster_notes(rows: Mapping[str, EvalSummary]) -> list[Note]:
    """Notes on the agents' rows with fewer clusters than problems, rows with the same numbers in one."""
    names = dict[tuple[int, int], list[str]]()
    for name, row in rows.items():
        if 0 < row.clusters < row.problems - row.ungraded and not row.cell.baseline:
            names.setdefault((row.problems, row.clusters), []).append(name)
    return [
        Note("clusters", names=", ".join(listed), problems=problems, clusters=clusters)
        for (problems, clusters), listed in names.items()
    ]


def accuracy_of(samples: Sequence[Sample]) -> Score:
    """Mean value of the graded samples, clustered by shared document or question."""
    graded = [(sample, sample.value) for sample in samples if sample.value is not None]
    return score([value for _, value in graded], clusters_of([sample for sample, _ in graded]))


def score(values: Sequence[float], clusters: Clusters | None = None) -> Score:
    """Mean and 95% interval: Wilson's, with an effective number of values for fractions and clusters.

    `clusters`: [values] cluster of each. Values outside 0 to 1, possible with custom rewards, have a percentile
    bootstrap over clusters. One cluster has the interval 0 to 1, or none for values outside.

    >>> score([1.0, 1.0, 1.0, 0.0])
    Score(mean=0.75, low=0.3006, high=0.9544)
    >>> score([0.5]), score([0.5, 1.5], "aa")
    (Score(mean=0.5, low=0.0, high=1.0), Score(mean=1.0, low=None, high=None))
    >>> score([])
    Score(mean=None, low=None, high=None)
    """
    if not values:
        return Score(None, None, None)
    shared: Clusters = range(len(values)) if clusters is None else clusters
    apart = len(set(shared))
    if not all(0.0 <= value <= 1.0 for value in values):
        if apart < 2:
            return Score(fmean(values), None, None)
        low, high = bootstrap(values, shared)
    elif apart == len(values) and all(value in (0.0, 1.0) for value in values):
        low, high = wilson(sum(values), len(values))
    else:
        low, high = clustered_wilson(values, shared)
    return Score(fmean(values), round(low, 4), round(high, 4))


def mean_of(parts: Sequence[Score]) -> Score:
    """Mean of scores of different problems, with equal weights; ends are None if one of `parts` has none.

    The distances of the interval's ends from the mean are combined as independent errors (MOVER; Zou and Donner 2008,
    Statistics in Medicine 27).

    >>> mean_of([Score(0.5, 0.4, 0.6), Score(1.0, 0.9, 1.0)])
    Score(mean=0.75, low=0.6793, high=0.8)
    """
    means = [part.mean for part in parts if part.mean is not None]
    if not parts or len(means) < len(parts):
        return Score(None, None, None)
    mean, ends = fmean(means), list[float | None]()
    for sign, values in ((-1, [part.low for part in parts]), (1, [part.high for part in parts])):
        known = [end - one for end, one in zip(values, means, strict=True) if end is not None]
        ends.append(round(mean + sign * math.hypot(*known) / len(parts), 4) if len(known) == len(parts) else None)
    return Score(mean, *ends)


def over_seeds(pooled: Score, means: Sequence[float]) -> Score:
    """Mean over seeds, with the wider of two 95% intervals: that of all problems, `pooled`, and Student's t of the
    seeds' `means` [seeds].

    The first is too narrow if seeds differ, the second is empty if they are equal by chance.

    >>> over_seeds(Score(0.9, 0.85, 0.94), [0.85, 0.9, 0.95])
    Score(mean=0.9, low=0.7758, high=1.0)
    """
    mean, low, high = fmean(means), pooled.low, pooled.high
    if len(means) > 1 and low is not None and high is not None:
        bottom, top = student_interval(means)
        shares = low >= 0.0 and high <= 1.0
        low, high = min(low, max(bottom, 0.0) if shares else bottom), max(high, min(top, 1.0) if shares else top)
    return Score(mean, low, high)


def tokens_per_correct(samples: Sequence[Sample]) -> float | None:
    """Tokens per right answer; the tokens of ungraded episodes count too."""
    values = [sample.value for sample in samples if sample.value is not None]
    if not values or not all(0.0 <= value <= 1.0 for value in values) or not sum(values):
        return None
    return sum(sample.tokens for sample in samples) / sum(values)


def by_position(samples: Sequence[Sample], measure: str) -> tuple[PositionSummary, ...]:
    """Accuracy by the fifth of the document with position `measure` (a share of the length); empty without
    positions."""
    bins: list[list[Sample]] = [[] for _ in range(BINS)]
    for sample in samples:
        if (position := sample.measures.get(measure)) is not None:
            bins[min(BINS - 1, int(position * BINS))].append(sample)
    if not any(bins):
        return ()
    return tuple(
        PositionSummary(at / BINS, (at + 1) / BINS, sum(s.value is not None for s in part), accuracy_of(part))
        for at, part in enumerate(bins)
    )


def _several_places(samples: Iterable[Sample]) -> bool:
    return any(s.measures.get(EVIDENCE_FIRST) != s.measures.get(EVIDENCE_LAST) for s in samples)


def _length_summary(length: int | None, rows: Sequence[Sample]) -> LengthSummary:
    graded = sum(s.value is not None for s in rows)
    return LengthSummary(length, _problems(rows), graded, accuracy_of(rows), _mean([s.tokens for s in rows]))


def _problems(rows: Iterable[Sample]) -> int:
    return len({sample.id for sample in rows})


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
