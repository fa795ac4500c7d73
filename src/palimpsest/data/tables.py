"""Rows of tables: CSV, TSV and parquet.

A cell of CSV is text, whatever it looks like (`007`, `=1+1`, `NA`); an empty one is absent. Where a layout wants a list
or an object (`NESTED`), a cell may hold it as JSON. The separator is a tab in `.tsv`, else the commonest of comma,
semicolon and tab in the header.

Guaranteed: memory holds one row of CSV, one batch of parquet; a row with another number of cells than the header, two
columns of one name, a NUL byte, and a quote that never closes are refused with their line.
Not covered: CSV without a header; comments; parquet whose single row is larger than memory.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from palimpsest.errors import DataError

NESTED = ("answers", "golden_answers", "questions", "metadata", "document", "sessions")
"""Columns of which a cell may be a JSON list or object."""
_FIELD = 1 << 30  # characters of a cell
_BUFFER = 1 << 20  # bytes of a column read at a time; by default a whole row group is, which may be the whole file
_BATCH = 64  # rows of a parquet batch; rows of the published files hold 100 kB each


def table(path: Path, json_columns: Container[str] = NESTED) -> Iterator[tuple[Any, str]]:
    """(values by column, place) of every row of a CSV or TSV file; a cell of `json_columns` may hold JSON."""
    csv.field_size_limit(_FIELD)  # of the process: the default of 128 kB is less than a document
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=_separator(path), strict=True)
        begun, header = 1, list[str]()
        try:
            for cells in reader:
                place, begun = f"line {begun}", reader.line_num + 1
                if not cells:
                    continue  # a blank line
                if not header:
                    header = _header(path, cells)
                    continue
                yield _values(path, header, cells, place, json_columns), place
        except csv.Error as error:
            raise DataError(
                f"{path} line {begun}: CSV that can't be read ({error}); a cell that holds a quote, separator or "
                'newline stands in quotes, and a quote in it is doubled: "say ""hi"""'
            ) from None


def _separator(path: Path) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline(1 << 20)
    return max(",;\t", key=header.count)


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [name.strip() or f"column_{number}" for number, name in enumerate(cells, 1)]
    if any("\0" in name for name in names):
        raise DataError(f"{path} line 1: holds a NUL byte; it is binary or UTF-16, convert it to UTF-8")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path} line 1: two columns are called {twice[0]!r}; rename one of them")
    return names


def _values(
    path: Path, header: list[str], cells: list[str], place: str, json_columns: Container[str]
) -> dict[str, Any]:
    if len(cells) != len(header):
        raise DataError(
            f"{path} {place}: {len(cells)} cells, the header has {len(header)}; put a cell that holds the separator "
            "into quotes, or fill in what is missing"
        )
    values: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        if "\0" in cell:
            raise DataError(f"{path} {place}: {name} holds a NUL byte; remove it")
        values[name] = None if cell == "" else _nested(cell) if name in json_columns else cell
    return values


def _nested(cell: str) -> Any:
    """The list or object that a cell holds as JSON; else the cell.

    >>> _nested('["a", "b"]'), _nested("[5]"), _nested("[1, 2)")
    (['a', 'b'], '[5]', '[1, 2)')
    """
    if not cell.lstrip().startswith(("[", "{")):
        return cell
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    is_nested = isinstance(value, dict) or any(isinstance(each, str | dict) for each in value)
    return value if is_nested else cell


def parquet(path: Path) -> Iterator[tuple[Any, str]]:
    """(values by column, place) of every row of a parquet file."""
    import pyarrow.parquet as pq  # 0.2 s, and most runs read JSON or nothing
    from pyarrow import ArrowException

    row = 0
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    row += 1
                    yield values, f"row {row}"
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: damaged or cut short after {row} rows, fetch it again (parquet: {reason})") from None
