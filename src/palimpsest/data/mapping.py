"""Columns under other names: `data.map`, ours on the left, the file's on the right.

    {question: q, answers: reward.gold, context: docs.0.text}

A name on the right is a column, or a dotted path into objects and lists. A column that is mapped leaves its old name.
A cell of a table that becomes `answers`, or another of `tables.NESTED`, may hold JSON as if the file called it so.

Guaranteed: a column that is there keeps its meaning over a path; a name of ours that no format reads is refused, and a
path that the first row lacks, with the nearest there is; in later rows it is an absent value, as an absent column would
be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.data.formats import COLUMNS
from palimpsest.data.rows import Row, read_rows
from palimpsest.data.tables import NESTED
from palimpsest.errors import DataError, nearest, shown_names

_ABSENT = object()


def mapped_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """`read_rows` with columns renamed. Raises DataError."""
    rows = read_rows(path, {*NESTED, *(theirs for ours, theirs in columns.items() if ours in NESTED)})
    return (renamed(row, columns) for row in rows) if columns else rows


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """`row` with the columns of `columns` under our names.

    >>> renamed(Row({"q": "Who?", "gold": {"text": ["Ann"]}}, "a"), {"question": "q", "answers": "gold.text"}).values
    {'gold': {'text': ['Ann']}, 'question': 'Who?', 'answers': ['Ann']}
    """
    found = {ours: _at(row.values, theirs) for ours, theirs in columns.items()}
    if row.index == 0:
        _check(row, columns, found)
    left = set(columns.values())
    kept = {name: value for name, value in row.values.items() if name not in left}
    return replace(row, values=kept | {ours: value for ours, value in found.items() if value is not _ABSENT})


def _check(row: Row, columns: Mapping[str, str], found: Mapping[str, Any]) -> None:
    """Raise DataError for a name of ours that no layout reads, and for one of the file's that the row lacks."""
    for ours, theirs in columns.items():
        lead = f"{row.where}: data.map {ours}={theirs}:"
        if ours not in COLUMNS:
            raise DataError(
                f"{lead} no format reads a column {ours}{nearest(ours, COLUMNS)} (ours stands on the left, the file's "
                "on the right)"
            )
        if found[ours] is _ABSENT:
            raise DataError(
                f"{lead} the row has no {theirs}{nearest(theirs, row.values)} (there: "
                f"{shown_names(row.values) or 'nothing'}); where another file has it, name that: FILE:{ours}={theirs}"
            )


def _at(values: Any, path: str) -> Any:
    """What stands at a dotted path, `_ABSENT` if nothing does."""
    if isinstance(values, Mapping) and path in values:
        return values[path]
    name, _, rest = path.partition(".")
    if isinstance(values, Mapping):
        inner = values.get(name, _ABSENT)
    elif isinstance(values, list) and name.isdecimal() and int(name) < len(values):
        inner = values[int(name)]
    else:
        inner = _ABSENT
    return _at(inner, rest) if rest and inner is not _ABSENT else inner
