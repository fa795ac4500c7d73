"""Rows of questions as files and records, and a corpus with them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from palimpsest.data.assemble import Corpus
from palimpsest.data.record import Record

HOTPOT_ROW: dict[str, Any] = {
    "_id": "q0",
    "question": "What colour is the house?",
    "answer": "red",
    "supporting_facts": [["House", 0]],
    "context": [["House", ["The house is red. ", "It is old."]], ["Tree", ["The tree is tall."]]],
}
"""A question over two titled paragraphs in HotpotQA's official layout."""
PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard.compress}


def record(name: str = "q", size: int = 10, gold: tuple[int, ...] = (0, 7)) -> Record:
    paragraphs = tuple(f"{name} title {i}\nText {i} of {name}." for i in range(size))
    return Record(name, "Who?", ("A",), paragraphs=paragraphs, gold=tuple(paragraphs[i] for i in gold))


CORPUS = Corpus.of([record(f"other{i}").paragraphs or () for i in range(40)] + [record().paragraphs or ()])


def save(path: Path, *rows: Any) -> Path:
    """Write rows in the format of `path`'s suffix, a single text or bytes unchanged; .gz and .zst in two members."""
    kind = next((suffix for suffix in reversed(path.suffixes) if suffix not in PACK), "")
    data = _encoded(kind, rows)
    if path.suffix in PACK:
        pack, half = PACK[path.suffix], len(data) // 2
        data = pack(data[:half]) + pack(data[half:])
    path.write_bytes(data)
    return path


def _encoded(kind: str, rows: tuple[Any, ...]) -> bytes:
    if len(rows) == 1 and isinstance(rows[0], str | bytes):
        return rows[0].encode() if isinstance(rows[0], str) else rows[0]
    if kind == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows)), sink)
        return bytes(sink.getvalue().to_pybytes())
    if kind in (".csv", ".tsv"):
        return table([list(rows[0]), *(map(_cell, row.values()) for row in rows)], "," if kind == ".csv" else "\t")
    return json.dumps(rows).encode() if kind == ".json" else "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows: Any, separator: str = ",") -> bytes:
    """Lines of quoted cells."""
    lines = (separator.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
    return "\n".join(lines).encode()


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) if value else ""


def one_line_error(kind: type[Exception], act: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The message of the error that `act` raises: one line."""
    with pytest.raises(kind) as caught:
        act(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
