"""Data format protocol, custom formats, and known metadata keys of a problem.

A format reads a file into problems. The shipped formats recognise rows by their columns
(data/formats/format_registry.py). A custom format is a function `(path)` or a class with `read(path)`. It yields

    Record     with `context`, or with `paragraphs` and `gold` among them for contexts of N documents
    Problem    with its fixed context
    a mapping  in our own layout: question, answers (or questions), and optionally id, context, metadata, memory

A class may define `recognises(path)` to choose its files; the shipped formats read the others. palimpsest checks known
metadata keys and passes other keys unchanged.

Guaranteed: an invalid problem (a blank question, no gold, a gold paragraph missing from the paragraphs) and any
exception of custom code raise DataError with file and number; a record without an id gets the file's name and number.
Not covered: `data.corpus` (read by the shipped formats); a format whose records differ between reads; wrong metadata,
such as evidence that is not in its context (`palimpsest data inspect` reports it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from palimpsest import plugins
from palimpsest.data.files.rows import Row, plain_values
from palimpsest.data.formats.corpus import text_of
from palimpsest.data.formats.question_formats import by_roles
from palimpsest.data.record import Record, problem_row
from palimpsest.errors import DataError, PalimpsestError
from palimpsest.text.json_text import storable
from palimpsest.types import Problem

# ---- Known metadata keys of a problem ------------------------------------------------------------------------


def checked(row: Row, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`metadata` as JSON, without nulls under the known keys. Raises DataError."""
    plain = storable(metadata, [])
    cleaned = {key: value for key, value in plain.items() if value is not None or key not in _KNOWN}
    for key, (suits, wanted) in _KNOWN.items():
        if key in cleaned and not suits(cleaned[key]):
            raise DataError(f"{row.where}: metadata {key} must be {wanted}, is {cleaned[key]!r:.60}; fix or rename it")
    return cleaned


def _count(value: Any) -> bool:
    return type(value) is int  # not a bool


def _listed(suits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(suits, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _objective(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.get("answers"):
        return False
    return _text(value.get("name")) and _text(value.get("question")) and _listed(_text, value["answers"])


def _passage(value: Any) -> bool:
    try:
        text_of(value)
    except DataError:
        return False
    return True


_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "evidence": (partial(_listed, _text), "a list of texts"),
    "objectives": (partial(_listed, _objective), "a list of objects with name, question and a list of answers"),
    "passages": (partial(_listed, _passage), "a list of objects with text and maybe title"),
    "num_docs": (_count, "a whole number"),
    "chunks": (_count, "a whole number"),
}


# ---- Data format protocol and custom formats -----------------------------------------------------------------


class DataFormat(Protocol):
    """Reads files of one kind."""

    @property
    def name(self) -> str: ...

    def recognises(self, path: Path) -> bool:
        """True if this format reads the file. Raises DataError if the file can't be opened."""

    def read(self, path: Path) -> Iterator[Record]:
        """The file's checked problems in order. Raises DataError at an invalid problem, not earlier."""


def custom_format(name: str, options: Mapping[str, Any]) -> CustomFormat:
    """The custom format `name`. Raises ConfigError."""
    call = plugins.build("format", name, options)
    return CustomFormat(name, call, getattr(plugins.owner(call), "recognises", None))


@dataclass(frozen=True, slots=True)
class CustomFormat:
    name: str
    reader: Callable[[Path], Iterable[Any]]
    recogniser: Callable[[Path], bool] | None = None

    def recognises(self, path: Path) -> bool:
        """Result of the custom `recognises`; True without one."""
        if self.recogniser is None:
            return True
        try:
            return bool(self.recogniser(path))
        except Exception as error:
            raise self._raised(path, error, "recognises") from error

    def read(self, path: Path) -> Iterator[Record]:
        """Checked records from the custom code."""
        if not path.exists():
            raise DataError(f"{path}: no such file; use a path relative to {Path.cwd()} or an absolute one")
        number = 0
        for number, item in enumerate(self._items(path), 1):
            row = Row({}, f"{path}, problem {number} of {self.name}", number - 1)
            yield _checked(item, row, f"{path.stem}-{number - 1}")
        if number == 0:
            raise DataError(f"{path}: {self.name} found no problems")

    def _items(self, path: Path) -> Iterator[Any]:
        number = 0
        try:
            for number, item in enumerate(self.reader(path), 1):  # noqa: B007  the error reports it
                yield item
        except PalimpsestError:
            raise
        except Exception as error:
            raise self._raised(path, error, f"after {number} problems") from error

    def _raised(self, path: Path, error: Exception, when: str) -> DataError:
        line = " ".join(str(error).split())
        return DataError(f"{path}: {self.name} ({when}) raised {type(error).__name__}: {line}")


def _checked(item: Any, row: Row, fallback: str) -> Record:
    gold, values = tuple[str, ...](), item
    if isinstance(item, Problem):
        values = problem_row(item)
    elif isinstance(item, Record):
        if item.context is not None and item.paragraphs is not None:
            raise DataError(f"{row.where}: has both context and paragraphs; remove one")
        gold = tuple(item.gold)
        values = problem_row(item.problem(item.context, item.metadata)) | {"id": item.id}
        if item.paragraphs is not None:  # their evidence is the gold
            rest = {key: value for key, value in item.metadata.items() if key != "evidence"}
            values |= {"context": list(item.paragraphs), "metadata": rest}
    if not isinstance(values, Mapping):
        raise DataError(f"{row.where}: expected a Record, a Problem or a mapping, got {item!r:.60}")
    record = by_roles(replace(row, values=plain_values(values)), fallback)
    for text in gold:
        if text not in (record.paragraphs or ()):
            raise DataError(f"{row.where}: gold {text!r:.60} is not among its paragraphs")
    return replace(record, gold=gold or record.gold, metadata=checked(row, record.metadata))
