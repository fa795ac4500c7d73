"""Columns under other names: `data.map`, ours on the left, the file's on the right.

    {question: q, answers: reward.gold, context: docs.0.text}

A name on the right is a column, or a dotted path into objects and lists. A column that is mapped leaves its old name.
A cell of a table that becomes `answers`, or another of `tables.NESTED`, may hold JSON as if the file called it so.

Guaranteed: a column that is there keeps its meaning over a path; a path that the first row lacks is refused, with the
nearest column there is; in later rows it is an absent value, as an absent column would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.data.rows import Row, read_rows
from palimpsest.data.tables import NESTED
from palimpsest.errors import DataError, nearest

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
        for ours, theirs in columns.items():
            if found[ours] is _ABSENT:
                raise DataError(
                    f"{row.where}: data.map {ours}={theirs}: the row has no {theirs}{nearest(theirs, row.values)} "
                    f"(there: {', '.join(map(str, row.values)) or 'nothing'})"
                )
    kept = {name: value for name, value in row.values.items() if name not in columns.values()}
    return replace(row, values=kept | {ours: value for ours, value in found.items() if value is not _ABSENT})


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
