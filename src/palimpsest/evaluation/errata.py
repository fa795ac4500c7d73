"""Known errors of a data set, as an overlay: items to leave out, golds to correct. The data itself stays as published.

    [{"item": "q17", "reason": "the gold is of another year", "source": "https://...", "answers": ["1912"]},
     {"item": "q44", "reason": "the document doesn't say it", "source": "our reading", "excluded": true}]

Guaranteed: a figure with an overlay never stands alone: what used one says both, as published and corrected; items
that no sample has are named; the overlay's SHA-256 is kept beside the figures.
Not covered: corrected golds of one of several questions on a reading (leave such an item out); corrected documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.errors import DataError
from palimpsest.evaluation.sample_log import Sample

_KEYS = {"item", "reason", "source", "answers", "excluded"}
_FORM = '{"item": ..., "reason": ..., "source": ..., and "answers": [...] or "excluded": true}'


@dataclass(frozen=True, slots=True)
class Erratum:
    """What is wrong with one item."""

    item: str
    """Id of the problem, in every set that has it."""
    reason: str
    source: str
    answers: tuple[str, ...]
    """The corrected golds; empty: the item is left out."""


@dataclass(frozen=True, slots=True)
class Errata:
    """An overlay."""

    sha256: str
    """Of the file."""
    errata: Mapping[str, Erratum]
    """By item."""

    def corrected(self, samples: Sequence[Sample]) -> Corrected:
        """What becomes of these samples. Raises DataError for new golds of an item with several questions."""
        found = {sample.id for sample in samples} & set(self.errata)
        kept, excluded, stale = list[Sample](), list[Sample](), list[Sample]()
        for sample in samples:
            erratum = self.errata.get(sample.id)
            if erratum is None:
                kept.append(sample)
            elif not erratum.answers:
                excluded.append(sample)
            elif sample.questions:
                raise DataError(
                    f"errata: item {sample.id} asks several questions, whose golds can't be corrected one by one: "
                    'give "excluded": true'
                )
            else:
                stale.append(replace(sample, answers=erratum.answers))
        return Corrected(self, tuple(kept), tuple(excluded), tuple(stale), tuple(sorted(set(self.errata) - found)))


@dataclass(frozen=True, slots=True)
class Corrected:
    """Samples under an overlay, before those with other golds are graded anew."""

    errata: Errata
    kept: tuple[Sample, ...]
    excluded: tuple[Sample, ...]
    stale: tuple[Sample, ...]
    """With the corrected golds, and the grade by the published ones."""
    unknown: tuple[str, ...]
    """Items of the overlay that no sample has."""

    def episodes(self, name: str) -> int:
        """Of the set of this name, those left out included."""
        return sum(sample.name == name for part in (self.kept, self.excluded, self.stale) for sample in part)

    def to_json(self) -> dict[str, Any]:
        """What stands in summary.json beside the figures."""
        return {
            "sha256": self.errata.sha256,
            "items": len(self.errata.errata),
            "excluded": sorted({sample.id for sample in self.excluded}),
            "corrected": sorted({sample.id for sample in self.stale}),
            "unknown": list(self.unknown),
        }

    @property
    def told(self) -> list[str]:
        """In words, a line each."""
        out, new = ({sample.id for sample in part} for part in (self.excluded, self.stale))
        lines = [f"errata {self.errata.sha256[:12]}: {len(out)} items left out, {len(new)} with corrected golds"]
        if self.unknown:
            some = ", ".join(self.unknown[:5]) + (", ..." if len(self.unknown) > 5 else "")
            lines.append(f"errata: {len(self.unknown)} items are none that was played: {some}")
        return lines


def read_errata(path: Path) -> Errata:
    """The overlay in a JSON file. Raises DataError that names the entry and what it lacks."""
    try:
        data = path.read_bytes()
        entries = json.loads(data)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; an errata overlay is a JSON list of {_FORM}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: can't be read as JSON ({type(error).__name__}); expected a list of {_FORM}") from None
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected a list of {_FORM}, got {type(entries).__name__}")
    errata: dict[str, Erratum] = {}
    for number, entry in enumerate(entries, 1):
        erratum = _erratum(entry, f"{path}, entry {number}")
        if erratum.item in errata:
            raise DataError(f"{path}, entry {number}: item {erratum.item} stands there twice; give one entry an item")
        errata[erratum.item] = erratum
    return Errata(hashlib.sha256(data).hexdigest(), errata)


def _erratum(entry: Any, where: str) -> Erratum:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: expected {_FORM}, got {type(entry).__name__}")
    if unknown := sorted(set(entry) - _KEYS):
        raise DataError(f"{where}: unknown key {unknown[0]}; an entry is {_FORM}")
    texts = {key: entry.get(key) for key in ("item", "reason", "source")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {key} is missing or no text; an entry is {_FORM}")
    answers, excluded = entry.get("answers"), entry.get("excluded", False)
    golds = isinstance(answers, list) and answers and all(isinstance(each, str) and each.strip() for each in answers)
    if excluded not in (True, False) or bool(golds) == bool(excluded) or (answers is not None and not golds):
        raise DataError(f'{where}: give either "answers", a list of golds, or "excluded": true')
    return Erratum(str(texts["item"]), str(texts["reason"]), str(texts["source"]), tuple(answers or ()))
