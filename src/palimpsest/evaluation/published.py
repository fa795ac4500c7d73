"""Figures of others beside ours, where they can be compared, and with the reason where they can't.

Guaranteed: only figures of the same length in the same unit are put side by side (4 objectives never next to 4 chunks);
they match only where the file that was played has the published one's SHA-256 and our evaluation measured the same
metric; the first of these that fails is the reason.
Not covered: sampling, which is told (`protocol`) and left to the reader; what a paper doesn't say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from palimpsest.errors import DataError
from palimpsest.evaluation.sample_log import Sample

_NAMED = re.compile(r"(?:^|, )(\d+) (chunk|objective)s?$")
"""The name of a set that was drawn in one size."""
_TEXTS = ("system", "model", "benchmark", "edition", "metric", "unit", "protocol", "source")


@dataclass(frozen=True, slots=True)
class Published:
    """The figures of one system in one table."""

    system: str
    model: str
    benchmark: str
    edition: str
    """In words."""
    metric: str
    """As our breakdown calls it; one that we don't have never matches."""
    unit: str
    """Of the sizes: documents, objectives, chunks."""
    protocol: str
    source: str
    values: Mapping[int, float]
    """Size to percent."""
    sha256: Mapping[int, str]
    """Size to that of the published file, where it is known."""


Condition = tuple[str, int]
"""What problems have a number of, and the number: ("documents", 50)."""


def condition_of(name: str, size: int | None, samples: Iterable[Sample]) -> Condition | None:
    """Of the set `name` at a size, whose `samples` are given; None where its problems have no length, or several.

    >>> condition_of("recall, 4 chunks", 4, []), condition_of("1 objective", None, [])
    (('chunks', 4), ('objectives', 1))
    >>> condition_of("eval_50", 50, []), condition_of("musique", None, []) is None
    (('documents', 50), True)
    """
    if named := _NAMED.search(name):
        return f"{named[2]}s", int(named[1])
    asked = {len(sample.questions) or int(sample.metrics.get("objectives", 1)) for sample in samples}
    if len(asked) > 1:
        return None
    if asked and (number := asked.pop()) > 1:
        return "objectives", number
    return None if size is None else ("documents", size)


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our figures: a set at a size."""

    side: str
    set: str
    condition: Condition | None
    metrics: Mapping[str, float]
    sha256: str | None
    """Of the file that was played; None: not known, or drawn."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A published figure next to one of ours."""

    published: Published
    size: int
    side: str
    set: str
    ours: float | None
    """In percent, by the published metric; None where we didn't measure it."""
    reason: str | None
    """Why they can't be compared; None: they can."""

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.published.system,
            "model": self.published.model,
            "benchmark": self.published.benchmark,
            "source": self.published.source,
            "protocol": self.published.protocol,
            "metric": self.published.metric,
            "size": self.size,
            "published": self.published.values[self.size],
            "side": self.side,
            "set": self.set,
            "ours": self.ours,
            "matches": self.reason is None,
            "reason": self.reason,
        }


def counterparts(figures: Sequence[Ours], published: Sequence[Published]) -> Iterator[Counterpart]:
    """Every published figure of a condition that we have, next to each of ours of that condition."""
    for theirs in published:
        for size in theirs.values:
            for ours in figures:
                if ours.condition == (theirs.unit, size):
                    own = ours.metrics.get(theirs.metric)
                    value = None if own is None else 100 * own
                    yield Counterpart(theirs, size, ours.side, ours.set, value, _reason(ours, theirs, size))


def _reason(ours: Ours, theirs: Published, size: int) -> str | None:
    known = theirs.sha256.get(size)
    if ours.sha256 is None:
        return f"edition: the file that was played isn't known, theirs is {theirs.edition}"
    if known is None:
        return f"edition: the SHA-256 of {theirs.edition} isn't known; played was {ours.sha256[:12]}"
    if known != ours.sha256:
        return f"edition: played was {ours.sha256[:12]}, theirs is {known[:12]}"
    if theirs.metric not in ours.metrics:
        return f"metric: {theirs.metric} was not measured"
    return None


def read_published(path: Path | None = None) -> list[Published]:
    """The shipped figures, and those of a file of one's own after them. Raises DataError."""
    shipped = resources.files("palimpsest.evaluation") / "published.yaml"
    figures = _parsed(shipped.read_text("utf-8"), "published.yaml")
    if path is None:
        return figures
    try:
        return [*figures, *_parsed(path.read_text("utf-8"), str(path))]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read as UTF-8 text ({type(error).__name__})") from None


def _parsed(text: str, name: str) -> list[Published]:
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError:
        raise DataError(f"{name}: not valid YAML") from None
    if not isinstance(entries, list):
        raise DataError(f"{name}: expected a list of figures, got {type(entries).__name__}")
    return [_figure(entry, f"{name}, entry {number}") for number, entry in enumerate(entries, 1)]


def _figure(entry: Any, where: str) -> Published:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: expected a mapping, got {type(entry).__name__}")
    if unknown := sorted(map(str, set(entry) - {*_TEXTS, "values", "sha256"})):
        raise DataError(f"{where}: unknown key {unknown[0]}; known are {', '.join(_TEXTS)}, values, sha256")
    for key in _TEXTS:
        if not isinstance(entry.get(key), str):
            raise DataError(f"{where}: {key} is missing or no text")
    values: Any = entry.get("values")
    hashes: Any = entry.get("sha256", {})
    sizes = isinstance(values, dict) and values and all(type(size) is int for size in values)
    if not sizes or not all(type(value) in (int, float) and 0 <= value <= 100 for value in values.values()):
        raise DataError(f"{where}: values must be sizes with percents, such as {{50: 82.03}}")
    if not isinstance(hashes, dict) or not all(isinstance(each, str) and len(each) == 64 for each in hashes.values()):
        raise DataError(f"{where}: sha256 must be sizes with 64 hexadecimal digits")
    texts = {key: entry[key] for key in _TEXTS}
    return Published(**texts, values={size: float(value) for size, value in values.items()}, sha256=dict(hashes))
