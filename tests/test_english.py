"""Limits of the English in docs, help, messages, docstrings, comments and names, lowered with every improvement."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from plain_english import HOUSE, HOUSE_NAMES, HOUSES, javascript, measure, passages

ROOT = Path(__file__).parent.parent
LIMITS = {
    "docs": {"p90": 21, "passive": 5.0, "fronted": 0.2, "house": 0.3},
    "help": {"p90": 20, "passive": 4.5, "fronted": 0.8, "house": 0.1},
    "messages": {"p90": 16, "passive": 6.8, "fronted": 0.2, "house": 1.9},  # prompts of models are counted too
    "docstrings": {"p90": 21, "passive": 9.5, "fronted": 0.6, "house": 0.5},
    "comments": {"p90": 13, "passive": 8.5, "fronted": 0.1, "house": 0.3},
}
"""Words per sentence, percent of sentences, house words per 1,000 words (scripts/plain_english.py)."""


@cache
def texts(*paths: str) -> dict[str, list[str]]:
    found = passages([ROOT / path for path in paths or ("README.md", "docs", "src")])
    return {kind: [text for _, text in rows] for kind, rows in found.items()}


@cache
def figures_of(kind: str) -> dict[str, float]:
    return measure(texts()[kind])


@pytest.mark.parametrize(("kind", "limit"), [("docstrings", 2.0), ("identifiers", 10.0)])
def test_the_english_of_tests_stays_plain(kind: str, limit: float) -> None:
    assert measure(texts("tests")[kind], HOUSES.get(kind, HOUSE))["house"] <= limit


@pytest.mark.parametrize(("kind", "figure"), [(kind, figure) for kind, row in LIMITS.items() for figure in row])
def test_the_english_stays_plain(kind: str, figure: str) -> None:
    assert figures_of(kind)[figure] <= LIMITS[kind][figure]


def test_what_is_measured() -> None:
    """Computed by hand: two sentences of five words, one passive, one fronted, two house words in ten."""
    figures = measure(["It was told by somebody. What it is we know."])
    assert figures == {"words": 10, "p50": 5, "p90": 5, "passive": 50, "fronted": 50, "house": 300}
    assert HOUSE.findall("told somebody what it is") == ["told", "somebody", "what it is"]


def test_names_in_javascript_stay_plain() -> None:
    assert measure(texts()["names"], HOUSE_NAMES)["house"] <= 0.5


def test_the_names_that_are_measured() -> None:
    """Computed by hand; keywords, properties, keys, strings, comments and regular expressions don't count."""
    line = r'const told = route.asked({ kept: `x ${isHeld(at, `${lit}`)} mine` }, /torn/, "that"); // whole'
    names = [text for kind, _, text in javascript(line) if kind == "names"]
    assert sorted(names) == ["at", "isHeld", "lit", "route", "told"]
    assert measure(names, HOUSE_NAMES)["house"] == 800
    assert HOUSE_NAMES.findall("replace atlas helder heldPlace onPick eachOther") == ["held", "Place"]
