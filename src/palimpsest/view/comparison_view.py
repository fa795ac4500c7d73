"""Two to six runs or evaluations side by side: what differs in their configurations, curves, accuracy, what flipped.

Guaranteed: differences are of the problems that both sides graded (evaluation/pairing.py), against the first side, with
its paired intervals; what was played on one side alone is counted in the notes; sides that differ by their seeds alone
are one band.
Not covered: a correction for many comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from palimpsest.evaluation.cells import Cell, cell_of
from palimpsest.evaluation.identity import default_settings
from palimpsest.evaluation.pairing import Pairing, pair
from palimpsest.evaluation.samples import Sample
from palimpsest.evaluation.summary import accuracy_of
from palimpsest.runs.rows import with_number
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

    @property
    def but_for_seeds(self) -> str:
        """Equal for sides that differ by their seeds alone."""
        kept = {key: value for key, value in self.settings.items() if not _is_seed(key)}
        return repr(sorted(kept.items()))

    @property
    def agents(self) -> list[Sample]:
        """Without what was played beside the agent."""
        return [sample for sample in self.samples if sample.baseline is None]


def comparison_view(sides: Sequence[Side]) -> dict[str, Any]:
    """What the API says of a comparison."""
    pairings = _pairings(sides)
    return {
        "sides": [{"key": side.key, "name": side.name} for side in sides],
        "differs": differing(sides),
        "curves": {name: bands for name in CURVES if (bands := curve(sides, name))},
        "cells": [_cell(sides, cell) for cell in _cells(sides)],
        "pairs": {side.key: _pair_value(pairing) for side, pairing in pairings},
        "flips": _flips(sides),
        "notes": [f"{side.name} against {sides[0].name}: {p.warning}" for side, p in pairings if p.warning],
    }


def differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """[sides] values of every key that isn't the same everywhere; None: not set. A key that some sides don't have is
    left out where the others have its default.

    >>> one, two = Side("a", "a", {"seed": 0, "x": 1}), Side("b", "b", {"seed": 0, "x": 2, "y": 3})
    >>> differing([one, two])
    {'x': [1, 2], 'y': [None, 3]}
    """
    keys = sorted({key for side in sides for key in side.settings if _told(key, sides)})
    values = {key: [side.settings.get(key) for side in sides] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def _told(key: str, sides: Sequence[Side]) -> bool:
    given = [side.settings[key] for side in sides if key in side.settings]
    return len(given) == len(sides) or any(value not in (None, default_settings().get(key)) for value in given)


def with_one_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's settings with its policy under `policy`, where it played one: its keys are then those of others.

    >>> with_one_policy({"policies": {"gated": {"name": "gated"}}, "seed": 0})
    {'seed': 0, 'policy': {'name': 'gated'}}
    """
    policies = settings.get("policies")
    if not isinstance(policies, dict) or len(policies) != 1:
        return dict(settings)
    rest = {key: value for key, value in settings.items() if key != "policies"}
    return {**rest, "policy": next(iter(policies.values()))}


def curve(sides: Sequence[Side], name: str) -> list[dict[str, Any]]:
    """A band for each group of sides that differ by their seeds alone: at each step the mean, lowest and highest."""
    groups: dict[str, list[Side]] = {}
    for side in sides:
        if with_number(side.metrics, name):
            groups.setdefault(side.but_for_seeds, []).append(side)
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
        "mean": [fmean(value for step in each for value in values[step]) for each in bins],
        "low": [fmean(min(values[step]) for step in each) for each in bins],
        "high": [fmean(max(values[step]) for step in each) for each in bins],
    }


def _cells(sides: Sequence[Side]) -> list[Cell]:
    cells = {cell_of(sample) for side in sides for sample in side.agents}
    return sorted(cells, key=lambda cell: (cell.task, cell.size, cell.set))


def _cell(sides: Sequence[Side], cell: Cell) -> dict[str, Any]:
    own = {side.key: [sample for sample in side.agents if cell_of(sample) == cell] for side in sides}
    first = own[sides[0].key]
    figures = {}
    for key, samples in own.items():
        if samples:
            accuracy = accuracy_of(samples)
            figures[key] = {"n": len(samples), "mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high}
    pairs = {key: _pair_value(pair(first, samples)) for key, samples in list(own.items())[1:] if first and samples}
    size = None if cell.size < 0 else cell.size
    return {"set": cell.set, "task": cell.task, "size": size, "label": cell.label, "sides": figures, "pairs": pairs}


def _pairings(sides: Sequence[Side]) -> list[tuple[Side, Pairing]]:
    first, *others = sides
    return [(side, pair(first.agents, side.agents)) for side in others if first.agents and side.agents]


def _pair_value(pairing: Pairing) -> dict[str, Any]:
    difference = pairing.difference
    known = None
    if difference is not None:
        known = {name: getattr(difference, name) for name in ("mean", "low", "high", "p", "test", "better", "worse")}
    return {"problems": pairing.problems, "counted": pairing.counted, "difference": known, "warning": pairing.warning}


def _flips(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """The problems whose value isn't the same on all sides that graded them, those of the widest gap first."""
    values: dict[tuple[str, str, int], dict[str, Sample]] = {}
    for side in sides:
        for sample in side.agents:
            values.setdefault(sample.key, {})[side.key] = sample
    told = []
    for key, by_side in values.items():
        graded = {sample.value for sample in by_side.values() if sample.value is not None}
        if len(graded) > 1 and len({(each.question, each.answers) for each in by_side.values()}) == 1:
            told.append(_flip(key, by_side, sides, max(graded) - min(graded)))
    return sorted(told, key=lambda flip: -flip["gap"])[:FLIPS]


def _flip(
    key: tuple[str, str, int], by_side: Mapping[str, Sample], sides: Sequence[Side], gap: float
) -> dict[str, Any]:
    any_sample = next(iter(by_side.values()))
    return {
        "set": key[0],
        "id": key[1],
        "draw": key[2],
        "question": any_sample.question[:_TEXT],
        "golds": [gold[:_TEXT] for gold in any_sample.answers[:4]],
        "gap": gap,
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


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"
