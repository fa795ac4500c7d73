"""Comparisons cost what their samples cost, however many sets these are of."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.evaluation import comparison
from palimpsest.evaluation.comparison import Side, SideBySide, cell_at_length
from palimpsest.evaluation.sample_log import Cell, Sample
from support.evaluations import sample


def test_every_sample_is_looked_up_once_and_is_in_the_cell_of_its_set(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = list[Sample]()

    def counted(one: Sample) -> Cell:
        looked_up.append(one)
        return cell_at_length(one)

    monkeypatch.setattr(comparison, "cell_at_length", counted)
    sets = [f"set {number}" for number in range(9)]
    bare: dict[str, Any] = {"size": None, "unit": None, "length": None}
    first = [sample(id, 1.0, set=name, **bare) for name in sets for id in "ab"]
    second = [sample(id, float(id == "a"), set=name, **bare) for name in sets[1:] for id in "ab"]
    both = SideBySide(
        tuple(Side(name=name, samples=tuple(rows), settings={}) for name, rows in (("one", first), ("two", second)))
    )
    means = {cell.set: {name: row.accuracy.mean for name, row in rows.items()} for cell, rows in both.figures.items()}
    assert means == {"set 0": {"one": 1.0}, **{name: {"one": 1.0, "two": 0.5} for name in sets[1:]}}
    pairs = {cell.set: {name: p.problems for name, p in rows.items()} for cell, rows in both.cell_pairings.items()}
    assert pairs == {"set 0": {}, **{name: {"two": 2} for name in sets[1:]}}
    assert len(looked_up) == len(first) + len(second)
