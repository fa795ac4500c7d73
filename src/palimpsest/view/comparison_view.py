"""Two to six runs or evaluations side by side: what differs in their configurations, curves, accuracy, what flipped.

Guaranteed: rows, differences, notes and settings are those of `palimpsest compare` (evaluation/comparison.py), over the
sides that were evaluated; sides that differ by their seeds alone are one band.
Not covered: published figures, errata and a judge's card, which that command tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from palimpsest.evaluation import comparison
from palimpsest.evaluation.cells import Cell
from palimpsest.evaluation.comparison import Band, SideBySide, differing
from palimpsest.evaluation.pairing import Pairing
from palimpsest.evaluation.samples import Sample
from palimpsest.evaluation.summary import EvalSummary
from palimpsest.runs.rows import with_number
from palimpsest.view.metrics_view import mean_of
from palimpsest.view.tailing import Row

FEWEST, MOST = 2, 6
CURVES = ("reward/mean", "memory/evidence_retention", "memory/copy_fidelity", "policy/entropy", "episode/turns")
POINTS = 400
FLIPS = 500
_TEXT = 300


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that are compared."""

    key: str
    name: str
    settings: Mapping[str, Any]
    """Dotted key to value."""
    metrics: Sequence[Row] = ()
    samples: Sequence[Sample] = ()
    episodes: Mapping[tuple[str, str, int], Mapping[str, Any]] = field(default_factory=dict)
    """(set, id, draw) to the place of an episode that was recorded."""
    unreadable: int = 0
    """Lines of its logs."""
    not_asked: int = 0
    """Episodes in its logs of earlier calls."""

    def named(self, name: str) -> comparison.Side:
        """What `palimpsest compare` takes it for."""
        samples = {sample.key: sample for sample in self.samples}.values()
        return comparison.Side(
            name=name,
            samples=tuple(sample for sample in samples if sample.baseline is None),
            baselines=tuple(sample for sample in samples if sample.baseline is not None),
            unreadable=self.unreadable,
            not_asked=self.not_asked,
            settings=self.settings,
        )


def comparison_view(sides: Sequence[Side], titles: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the API says of a comparison; `titles`: what the sets of a quickstart are called."""
    evaluated = [side for side in sides if side.samples]
    unique = len({side.name for side in sides}) == len(sides)
    keys = {side.name if unique else side.key: side.key for side in evaluated}
    beside = SideBySide(
        tuple(side.named(name) for name, side in zip(keys, evaluated, strict=True)), titles=titles or {}
    )
    paired = bool(sides[0].samples)
    return {
        "sides": [{"key": side.key, "name": side.name} for side in sides],
        "differs": {key: list(values) for key, values in differing([side.settings for side in sides]).items()},
        "curves": {name: bands for name in CURVES if (bands := curve(sides, name))},
        "cells": [_cell(beside, cell, keys, paired=paired) for cell in beside.cells],
        "pairs": {keys[name]: _pair_value(pairing) for name, pairing in beside.pairings.items()} if paired else {},
        "seeds": [_band_value(beside, band) for band in beside.bands],
        "flips": _flips(sides, beside),
        "notes": list(beside.notes if paired else _notes_without_the_first(sides[0], beside)),
    }


def _notes_without_the_first(first: Side, beside: SideBySide) -> Iterator[str]:
    yield from beside.side_notes()
    if beside.sides:
        yield f"{first.name} has no evaluation, so no difference to it can be told"


def curve(sides: Sequence[Side], name: str) -> list[dict[str, Any]]:
    """A band for each group of sides that differ by their seeds alone: at each step the mean, lowest and highest."""
    groups: dict[str, list[Side]] = {}
    for side in sides:
        if with_number(side.metrics, name):
            groups.setdefault(side.named(side.key).but_for_seeds, []).append(side)
    return [_band(group, name) for group in groups.values()]


def _band(group: Sequence[Side], name: str) -> dict[str, Any]:
    values: dict[int, list[float]] = {}
    for side in group:
        for row in with_number(side.metrics, name):
            values.setdefault(row["step"], []).append(float(row[name]))
    steps = sorted(values)
    every = max(1, len(steps) // POINTS)
    bins = [steps[start : start + every] for start in range(0, len(steps), every)]
    return {
        "keys": [side.key for side in group],
        "steps": [each[-1] for each in bins],
        "mean": [mean_of(value for step in each for value in values[step]) for each in bins],
        "low": [mean_of(min(values[step]) for step in each) for each in bins],
        "high": [mean_of(max(values[step]) for step in each) for each in bins],
    }


def _cell(beside: SideBySide, cell: Cell, keys: Mapping[str, str], *, paired: bool) -> dict[str, Any]:
    pairs = beside.cell_pairings.get(cell, {}) if paired else {}
    return {
        "set": cell.set,
        "task": beside.task(cell),
        "size": None if cell.size < 0 else cell.size,
        "label": beside.label(cell),
        "sides": {keys[name]: _figures(figures) for name, figures in beside.figures[cell].items()},
        "pairs": {keys[name]: _pair_value(pairing) for name, pairing in pairs.items()},
    }


def _band_value(beside: SideBySide, band: Band) -> dict[str, Any]:
    figures = {name: getattr(band, name) for name in ("mean", "low", "high", "deviation")}
    return {"label": beside.label(band.cell), "sides": list(band.sides), **figures}


def _figures(figures: EvalSummary) -> dict[str, Any]:
    return {
        **asdict(figures.accuracy),
        "n": figures.graded + figures.ungraded,
        "problems": figures.problems,
        "ungraded": figures.ungraded,
        "turns": figures.turns_per_document,
        "tokens": figures.tokens_per_document,
    }


def _pair_value(pairing: Pairing) -> dict[str, Any]:
    difference = pairing.difference
    known = None
    if difference is not None:
        known = {name: getattr(difference, name) for name in ("mean", "low", "high", "p", "test", "better", "worse")}
    return {"problems": pairing.problems, "counted": pairing.counted, "difference": known, "warning": pairing.warning}


def _flips(sides: Sequence[Side], beside: SideBySide) -> list[dict[str, Any]]:
    """The problems whose value isn't the same on all sides that graded them, those of the widest gap first."""
    values: dict[tuple[str, str, int], dict[str, Sample]] = {}
    for side in sides:
        for sample in (each for each in side.samples if each.baseline is None):
            values.setdefault(sample.key, {})[side.key] = sample
    told = []
    for key, by_side in values.items():
        graded = {sample.value for sample in by_side.values() if sample.value is not None}
        if len(graded) > 1 and len({(each.question, each.answers) for each in by_side.values()}) == 1:
            gap = max(graded) - min(graded)
            told.append(_flip(key, by_side, sides) | {"set": beside.set_label(key[0]), "gap": gap})
    return sorted(told, key=lambda flip: -flip["gap"])[:FLIPS]


def _flip(key: tuple[str, str, int], by_side: Mapping[str, Sample], sides: Sequence[Side]) -> dict[str, Any]:
    any_sample = next(iter(by_side.values()))
    return {
        "id": key[1],
        "draw": key[2],
        "question": any_sample.question[:_TEXT],
        "golds": [gold[:_TEXT] for gold in any_sample.answers[:4]],
        "sides": {
            side.key: {
                "value": sample.value,
                "answer": None if sample.answer is None else sample.answer[:_TEXT],
                "episode": side.episodes.get(key),
            }
            for side in sides
            if (sample := by_side.get(side.key)) is not None
        },
    }
