"""Table of a league: every method's accuracy by family and length, with its costs and its difference to a reference.

accuracy      mean over seeds. Its 95% interval is the wider of two: over problems (Wilson's), and over the means of
              seeds (Student's t). A bootstrap over three seeds and their problems covers the mean in as few as 74%
              of simulated leagues, this one in 91% or more (benchmarks/interval_coverage.py --seeds)
mean          over families, held-out ones excluded
fall          mean at the shortest length less mean at the longest, over the seeds that have both
difference    to the reference, over the problems of the mean's families, at the lengths where the row has a mean, that
              both graded; p is the larger of the two tests', adjusted for the number of rows (Holm 1979)
costs         means over graded episodes; blank without one of each family
agreement     Kendall's tau-b of the methods' order by their mean over all lengths, averaged over pairs of seeds
              (Kendall 1945)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.app.league.league_files import ProtocolFiles, SetSize, held_out_sets
from palimpsest.config.league import UNTRAINED, LeagueConfig, MethodConfig
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.comparison import difference_of
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample, read_log, read_object
from palimpsest.evaluation.statistics import Difference, holm, student_interval, student_p
from palimpsest.evaluation.summary import Score, accuracy_of, mean_of, over_seeds, question_hash
from palimpsest.memory.registry import build_policy
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import COMPUTED
from palimpsest.runs.run_folder import METRICS
from palimpsest.text.display_text import counted_outcomes

FORMAT = 1
NOT_PLAYED = "not evaluated yet"


@dataclass(frozen=True)
class MethodRow:
    """A method, trained or untrained, over all seeds."""

    name: str
    method: MethodConfig
    trained: bool
    config: RunConfig
    """Configuration of the first seed."""
    samples: Mapping[int, Sequence[Sample]]
    """Samples by seed; their value is the league's metric."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reason for a blank by the part of a cell; "": for every cell."""
    training: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Last metrics of training by seed."""
    folders: Sequence[Path] = ()

    @cached_property
    def cells(self) -> dict[SetSize, dict[int, list[Sample]]]:
        """Graded samples by cell and seed."""
        found: dict[SetSize, dict[int, list[Sample]]] = {}
        for seed, samples in self.samples.items():
            for sample in samples:
                if sample.value is not None:
                    found.setdefault((sample.set, sample.size), {}).setdefault(seed, []).append(sample)
        return found

    def accuracy(self, cells: Sequence[SetSize]) -> Score:
        """Mean of the cells' accuracies, over the seeds that have all of them; None without such a seed."""
        means = self.by_seed(cells)
        if not means:
            return Score(None, None, None)
        parts = [accuracy_of([sample for seed in means for sample in self.cells[cell][seed]]) for cell in cells]
        return over_seeds(mean_of(parts), list(means.values()))

    def by_seed(self, cells: Sequence[SetSize]) -> dict[int, float]:
        """Mean of the cells' accuracies, by seed that has all of them."""
        graded = [self.cells.get(cell, {}) for cell in cells]
        seeds = [seed for seed in self.samples if graded and all(seed in each for each in graded)]
        return {seed: fmean(fmean(one.value or 0.0 for one in each[seed]) for each in graded) for seed in seeds}

    @cached_property
    def memory_tokens(self) -> int | None:
        """Budget of the memory: an attribute of the policy, which may be an option."""
        return getattr(build_policy(self.config.policy), "memory_tokens", None)

    def graded(self, cell: SetSize) -> int:
        """Graded episodes of a cell, over all seeds."""
        return sum(map(len, self.cells.get(cell, {}).values()))

    def played(self, cell: SetSize) -> list[Sample]:
        """Episodes of a cell, over all seeds."""
        return [one for samples in self.samples.values() for one in samples if (one.set, one.size) == cell]

    def reason(self, cell: SetSize) -> str | None:
        """Reason for a cell without an accuracy."""
        if self.cells.get(cell):
            return None
        part = Cell(*cell, unit="chunks", player="").part
        return self.ungraded([cell]) or self.reasons.get(part) or self.reasons.get("") or NOT_PLAYED

    def ungraded(self, cells: Sequence[SetSize]) -> str:
        """Number of the cells' episodes without the league's metric, with their outcomes; empty if there are none."""
        played = [one for cell in cells for one in self.played(cell)]
        outcomes = Counter(one.reason or one.outcome for one in played if one.value is None)
        if not outcomes:
            return ""
        frequent = counted_outcomes(dict(outcomes.most_common(3)))
        return f"{outcomes.total()} of {len(played)} episodes have no grade ({frequent})"

    def mean_measure(self, name: str, cells: Sequence[SetSize]) -> float | None:
        """Mean of a measure over the graded episodes of some cells; None unless each cell has some."""
        seeds = [each for cell in cells for each in self.cells.get(cell, {}).values()]
        values = [one.measures[name] for each in seeds for one in each if name in one.measures]
        return fmean(values) if values and all(map(self.graded, cells)) else None

    def mean_training(self, name: str) -> float | None:
        """Mean of a metric after training."""
        values = self.after_training(name)
        return fmean(values) if values else None

    def after_training(self, name: str) -> list[float]:
        """A metric after training, by seed."""
        return [last[name] for last in self.training.values() if name in last]

    @property
    def trained_on(self) -> list[int]:
        """Lengths of the synthetic documents that training ended with, without repetition; empty if untrained."""
        reached = self.after_training("curriculum/chunks") or [self.config.data.synthetic.chunks] * len(self.training)
        return sorted({int(size) for size in reached})


# ---- Rows against the reference ------------------------------------------------------------------------------


def difference(row: MethodRow, reference: MethodRow, cells: Collection[SetSize]) -> Difference | None:
    """`row` less `reference` in some cells, paired by problem; None without a problem that both graded."""
    pairs = {seed: list(_pairs(reference.samples.get(seed, ()), row.samples[seed], cells)) for seed in row.samples}
    drawn = [pair for each in pairs.values() for pair in each]
    if not drawn:
        return None
    pooled = difference_of(drawn)
    means = [fmean((two.value or 0.0) - (one.value or 0.0) for one, two in each) for each in pairs.values() if each]
    if len(means) < 2:
        return pooled
    most = max(1.0, *(abs((two.value or 0.0) - (one.value or 0.0)) for one, two in drawn))  # beyond 1 for some rewards
    low, high = student_interval(means)
    return replace(
        pooled,
        mean=fmean(means),
        low=max(-most, min(low, pooled.low)),
        high=min(most, max(high, pooled.high)),
        p=max(student_p(means), pooled.p),
    )


def _pairs(
    first: Sequence[Sample], second: Sequence[Sample], cells: Collection[SetSize]
) -> Iterator[tuple[Sample, Sample]]:
    graded = {one.key: one for one in first if (one.set, one.size) in cells and one.value is not None}
    for two in second:
        one = graded.get(two.key)
        if one is not None and two.value is not None and question_hash(one) == question_hash(two):
            yield one, two


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings [N]; None if either ranks all equally.

    >>> kendall_tau([1, 2, 3], [1, 2, 3]), kendall_tau([1, 2, 3], [3, 2, 1]), kendall_tau([1, 1], [1, 2])
    (1.0, -1.0, None)
    >>> round(kendall_tau([1, 2, 2, 3], [1, 2, 3, 3]), 3)
    0.8
    """
    signs, others = ([(a > b) - (a < b) for a, b in itertools.combinations(each, 2)] for each in (first, second))
    apart = sum(map(abs, signs)) * sum(map(abs, others))
    return sum(a * b for a, b in zip(signs, others, strict=True)) / apart**0.5 if apart else None


# ---- The table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeagueTable:
    """Rows of a league, in the order of its file, untrained ones below their method."""

    league: LeagueConfig
    rows: Sequence[MethodRow]
    failed: Mapping[str, str] = field(default_factory=dict)
    """Errors of the call that made it."""
    protocols: Sequence[ProtocolFiles] = ()

    @cached_property
    def cells(self) -> list[SetSize]:
        """Families and lengths, those of the mean first."""
        if self.league.synthetic:
            return [(name, size) for name in self.league.sets for size in sorted(self.league.chunks)]
        if self.protocols:
            return [cell for files in self.protocols for cell in files.cells.values()]
        return list(dict.fromkeys(cell for row in self.rows for cell in row.cells))

    @cached_property
    def families(self) -> list[str]:
        """Families of the mean; a protocol's begin with its name."""
        names, held_out = dict.fromkeys(name for name, _ in self.cells), held_out_sets(self.league)
        return [name for name in names if not held_out & {name, name.partition(" ")[0] if self.protocols else name}]

    @property
    def sizes(self) -> Sequence[int | None]:
        """Lengths of the families in the mean, the shortest first; None, for families without a length, is last."""
        found = {size for name, size in self.cells if name in self.families}
        return [*sorted(size for size in found if size is not None), *([None] if None in found else [])]

    @property
    def longest(self) -> list[SetSize]:
        """Cells of the mean at the longest length."""
        known = [size for size in self.sizes if size is not None]
        return self.of_mean(known[-1] if known else None)

    def of_mean(self, size: int | None) -> list[SetSize]:
        """Cells of the mean at a length."""
        return [cell for cell in self.cells if cell[0] in self.families and cell[1] == size]

    def mean(self, row: MethodRow, size: int | None) -> Score:
        """Mean over families at a length."""
        return row.accuracy(self.of_mean(size))

    def fall(self, row: MethodRow) -> float | None:
        """Mean at the shortest length less mean at the longest; None unless both are over the same families."""
        families = [{name for name, _ in self.of_mean(size)} for size in self.sizes]
        if len(families) < 2 or families[0] != families[-1]:
            return None
        first, last = (row.by_seed(self.of_mean(size)) for size in (self.sizes[0], self.sizes[-1]))
        falls = [mean - last[seed] for seed, mean in first.items() if seed in last]
        return fmean(falls) if falls else None

    def compared(self, row: MethodRow) -> set[SetSize]:
        """Cells of the mean at the lengths at which a row has a mean."""
        by_size = map(self.of_mean, self.sizes)
        return {cell for cells in by_size if row.by_seed(cells) for cell in cells}

    @cached_property
    def differences(self) -> dict[str, tuple[Difference, float]]:
        """Difference to the reference, and p after Holm's correction, by row."""
        reference = next((row for row in self.rows if row.name == self.league.against), None)
        if reference is None:
            return {}
        others = [row for row in self.rows if row is not reference]
        found = {row.name: difference(row, reference, self.compared(row)) for row in others}
        known = {name: one for name, one in found.items() if one is not None}
        adjusted = holm([one.p for one in known.values()])
        return {name: (one, p) for (name, one), p in zip(known.items(), adjusted, strict=True)}

    @cached_property
    def agreement(self) -> float | None:
        """Mean Kendall's tau of the trained rows' order over pairs of seeds; None without two seeds of two methods.

        Only rows with a mean at every length have a place in a seed's order.
        """
        cells = [cell for size in self.sizes for cell in self.of_mean(size)]
        means = [row.by_seed(cells) for row in self.rows if row.trained]
        taus = []
        for pair in itertools.combinations(self.league.seeds, 2):
            both = [[round(each[seed], 9) for seed in pair] for each in means if all(seed in each for seed in pair)]
            taus.append(kendall_tau(*zip(*both, strict=True)) if both else None)  # rounded: sums of fractions tie
        known = [tau for tau in taus if tau is not None]
        return fmean(known) if known else None

    @property
    def incomplete(self) -> bool:
        """True if a method failed, or an episode has no grade."""
        return bool(self.failed) or any(row.ungraded(self.cells) for row in self.rows)

    def notes(self) -> Iterator[str]:
        """Why cells are blank, and which rows have fewer seeds or episodes than the others."""
        for row in self.rows:
            for why in dict.fromkeys(filter(None, map(row.reason, self.cells))):
                yield f"{row.name}: {why}"
            played = [seed for seed in self.league.seeds if seed in row.samples]
            if 0 < len(played) < len(self.league.seeds):
                yield f"{row.name}: seeds {', '.join(map(str, played))} only; its means are over other problems"
            if why := row.ungraded([cell for cell in self.cells if row.graded(cell)]):
                yield f"{row.name}: {why}"
        reasons = {why for row in self.rows for why in row.reasons.values()}
        yield from (f"{title}: {why}" for title, why in self.failed.items() if not self.cells or why not in reasons)

    def to_json(self) -> dict[str, Any]:
        """Contents of league.json."""
        return {
            "format": FORMAT,
            "league": self.league.league,
            "config": self.league.model_dump(mode="json"),
            "families": self.families,
            "held_out": [name for name in dict.fromkeys(name for name, _ in self.cells) if name not in self.families],
            "reference": self.league.against,
            "rows": [self._row(row) for row in self.rows],
            "kendall_tau": self.agreement,
        }

    def _row(self, row: MethodRow) -> dict[str, Any]:
        changed = self.differences.get(row.name)
        return {
            "name": row.name,
            "trained": row.trained,
            "policy": row.config.policy.name,
            "model": row.method.model or row.config.model.path,
            "memory_tokens": row.memory_tokens,
            "training_tokens": row.mean_training(COMPUTED),
            "training_chunks": row.trained_on if self.league.synthetic else [],
            "training_steps": row.mean_training("step"),
            "cells": [
                {"family": cell[0], "size": cell[1], **_scored(row.accuracy([cell])), "n": row.graded(cell),
                 "reason": row.reason(cell)}
                for cell in self.cells
            ],
            "mean": [{"size": size, **_scored(self.mean(row, size))} for size in self.sizes],
            "fall": self.fall(row),
            "computed_tokens": [
                {"size": size, "tokens": row.mean_measure("computed_tokens", self.of_mean(size))} for size in self.sizes
            ],
            "hallucinated": self.hallucinated(row),
            "dropped": row.mean_measure("dropped_share", self.longest),
            "difference": changed and {
                "mean": changed[0].mean, "low": changed[0].low, "high": changed[0].high, "p": changed[0].p,
                "p_holm": changed[1], "better": changed[0].better, "worse": changed[0].worse,
            },
            "evaluations": [str(folder) for folder in row.folders],
        }  # fmt: skip

    def hallucinated(self, row: MethodRow) -> float | None:
        """Share of the kept sentences that are not in the prompt, at the longest length, as a mean over episodes."""
        copied = row.mean_measure("copy_fidelity", self.longest)
        return None if copied is None else 1.0 - copied


def _scored(found: Score) -> dict[str, float | None]:
    return {"accuracy": found.mean, "low": found.low, "high": found.high}


# ---- Reading a league's folder -------------------------------------------------------------------------------


def evaluation_folder(out: Path, name: str, seed: int, *, trained: bool) -> Path:
    """Folder of a method's evaluation."""
    return out / "evals" / (f"{name}-{seed}" if trained else f"{name}-{UNTRAINED}-{seed}")


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Folder of a method's training."""
    return out / "runs" / f"{name}-{seed}"


def read_row(
    league: LeagueConfig,
    out: Path,
    name: str,
    config: RunConfig,
    *,
    trained: bool,
    error: str | None,
    protocols: Sequence[ProtocolFiles] = (),
    others: Collection[Path] = (),
) -> MethodRow:
    """A row from its evaluations but `others`; `error`: reason for the missing ones."""
    samples, reasons, folders = dict[int, list[Sample]](), {"": error} if error else {}, list[Path]()
    for seed in league.seeds:
        whole = evaluation_folder(out, name, seed, trained=trained)
        for files in protocols or (None,):
            folder = whole if files is None else whole / files.name
            if (folder / SUMMARY).is_file() and folder not in others:
                folders.append(folder)
                samples.setdefault(seed, []).extend(_as_row(one, league, files) for one in read_log(folder).samples)
                reasons |= {_part(part, files): why for part, why in _blanks(folder)}
    rows = {seed: read_rows(run_folder(out, name, seed) / METRICS) for seed in samples} if trained else {}
    return MethodRow(
        name=name if trained or not league.methods[name].train else f"{name}, {UNTRAINED}",
        method=league.methods[name],
        trained=trained,
        config=config,
        samples=samples,
        reasons=reasons,
        training={seed: each[-1] for seed, each in rows.items() if each},
        folders=[folder.relative_to(out) for folder in folders],
    )


def _as_row(sample: Sample, league: LeagueConfig, files: ProtocolFiles | None) -> Sample:
    """A sample with the league's metric, family and length, and without its player."""
    graded = sample.value is not None and league.metric != "reward"
    value = sample.metrics.get(league.metric) if graded else sample.value
    family, size = sample.set, sample.size
    if files is not None:
        family, size = files.cell(sample.set) or (family, size)
    elif league.synthetic and len(league.sets) == 1:  # has its generator's name
        family = league.sets[0]
    return replace(sample, value=value, player="", set=family, size=size)


def _part(name: str, files: ProtocolFiles | None) -> str:
    """The part of the table that a part of an evaluation is."""
    cell = None if files is None else files.cell(name)
    return name if cell is None else Cell(*cell, unit="chunks", player="").part


def _blanks(folder: Path) -> Iterator[tuple[str, str]]:
    """Parts that a policy does not admit, with the reason."""
    for note in (read_object(folder / SUMMARY) or {}).get("notes", []):
        if note["code"] == "left_blank":
            yield note["values"]["name"].partition(", ")[2], note["values"]["reason"]
