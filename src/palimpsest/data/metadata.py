"""The keys of a problem's metadata that mean something here, and what they must hold. Others are kept as they are.

Not covered: what the values say, such as evidence that does not stand in its context (`palimpsest data inspect` tells).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from palimpsest.data.corpus import text_of
from palimpsest.data.rows import Row
from palimpsest.errors import DataError
from palimpsest.text.storable import storable


def checked(row: Row, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`metadata` as JSON can hold it, without nulls under the known keys. Raises DataError."""
    plain = storable(metadata, [])
    kept = {key: value for key, value in plain.items() if value is not None or key not in _KNOWN}
    for key, (suits, wanted) in _KNOWN.items():
        if key in kept and not suits(kept[key]):
            raise DataError(f"{row.where}: metadata {key} must be {wanted}, is {kept[key]!r:.60}; mend or rename it")
    return kept


def _count(value: Any) -> bool:
    return type(value) is int  # not a bool


def _list_of(suits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(suits, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _objective(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.get("answers"):
        return False
    return _text(value.get("name")) and _text(value.get("question")) and _list_of(_text)(value["answers"])


def _passage(value: Any) -> bool:
    try:
        text_of(value)
    except DataError:
        return False
    return True


_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "evidence": (_list_of(_text), "a list of texts"),
    "evidence_positions": (_list_of(_count), "a list of document numbers"),
    "objectives": (_list_of(_objective), "a list of objects with name, question and a list of answers"),
    "passages": (_list_of(_passage), "a list of objects with text and maybe title"),
    "num_docs": (_count, "a whole number"),
    "chunks": (_count, "a whole number"),
}
