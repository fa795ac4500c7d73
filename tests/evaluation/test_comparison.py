"""Evaluations side by side cost what their samples cost, however many sets these are of."""

from __future__ import annotations

import pytest

from palimpsest.evaluation import comparison
from palimpsest.evaluation.comparison import Side, SideBySide, cell_at_length
from palimpsest.evaluation.sample_log import Cell, Sample
from support.evaluations import sample


def test_every_sample_is_looked_up_once_and_stands_in_the_cell_of_its_set(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = list[Sample]()

    def counted(each: Sample) -> Cell:
        looked_up.append(each)
        return cell_at_length(each)

    monkeypatch.setattr(comparison, "cell_at_length", counted)
    sets = [f"set {number}" for number in range(9)]
    first = [sample(each, 1.0, set=name, size=None, unit=None, length=None) for name in sets for each in "ab"]
    second = [
        sample(each, float(each == "a"), set=name, size=None, unit=None, length=None)
        for name in sets[1:]
        for each in "ab"
    ]
    sides = (Side(name="one", samples=tuple(first), settings={}), Side(name="two", samples=tuple(second), settings={}))
    beside = SideBySide(sides)
    told = {
        cell.set: {name: figures.accuracy.mean for name, figures in own.items()} for cell, own in beside.figures.items()
    }
    assert told == {"set 0": {"one": 1.0}, **{name: {"one": 1.0, "two": 0.5} for name in sets[1:]}}
    differences = {cell.set: {n: p.problems for n, p in own.items()} for cell, own in beside.cell_pairings.items()}
    assert differences == {"set 0": {}, **{name: {"two": 2} for name in sets[1:]}}
    assert len(looked_up) == len(first) + len(second)
