"""JSON lines of a run (.jsonl): rows with checksums, read back and cut to a checkpoint's steps.

    {"crc32":3461646376,"reward/mean":0.5,"step":1}

Guaranteed: a damaged line costs only its rows. Damage, including to its key `crc32`, never turns a row with a checksum
into another row. After a cut, the file contains one row per step, in order; the first row of a step counts. Unreadable
lines in files with missing steps, rows without a step and repeated rows are saved in `NAME.damaged`. Every
irregularity is reported, including a missing file.
Not covered: a missing line, which only its `step` reveals; a damaged line break, which costs two rows; files without
checksums (events, and those of earlier versions), whose objects are accepted unchecked; which of two different rows of
a step is right.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson

from palimpsest import files

CHECKSUM = "crc32"
_JSON = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True, slots=True)
class RowLine:
    data: bytes
    """Bytes of the line; a cut line lacks its newline."""
    row: dict[str, Any] | None
    """Without its checksum; None if the line is damaged."""


def encode_row(row: Mapping[str, Any], *, checksum: bool = True) -> bytes:
    """Line of a row.

    >>> encode_row({"step": 1, "reward/mean": 0.5})
    b'{"crc32":3461646376,"reward/mean":0.5,"step":1}\\n'
    """
    return orjson.dumps({**row, CHECKSUM: _crc(row)} if checksum else row, option=_JSON)


def append_row(file: Path, row: Mapping[str, Any], *, checksum: bool = True) -> None:
    """Append a line in one write. Raises OSError with the file's name if the line does not fit."""
    line = encode_row(row, checksum=checksum)
    with files.naming(file):
        descriptor = files.open_descriptor(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while line:  # a nearly full disk accepts only a part
                line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)


def read_lines(file: str | Path) -> list[RowLine]:
    """Lines of a file, including damaged ones; empty for a missing file."""
    try:
        return lines_of(files.read_regular(Path(file)))
    except FileNotFoundError:
        return []


def lines_of(data: bytes) -> list[RowLine]:
    """Lines in a part of a file; if one row has a checksum, all must have one."""
    lines = [(line, _object(line)) for line in BytesIO(data)]
    sealed = any(row is not None and CHECKSUM in row for _, row in lines)
    return [RowLine(line, _checked(row, sealed)) for line, row in lines]


def read_rows(file: str | Path) -> list[dict[str, Any]]:
    """Undamaged rows of a file; empty for a missing file."""
    return [line.row for line in read_lines(file) if line.row is not None]


def with_number(rows: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """Rows of steps with a finite number in `key`; a mean of nothing is null.

    >>> with_number([{"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": None}, {"step": 3}], "reward/mean")
    [{'step': 1, 'reward/mean': 0.5}]
    """
    return [row for row in rows if type(row.get("step")) is int and is_number(row.get(key))]


def is_number(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(row: Mapping[str, Any], key: str, default: int) -> int:
    """A count in a row; `default` if it is missing."""
    value = row.get(key)
    return int(value) if value is not None and is_number(value) else default


def end_line(file: Path) -> None:
    """End a line that a kill cut, so that the next row starts a new line."""
    lines = read_lines(file)
    if lines and not lines[-1].data.endswith(b"\n"):
        with files.naming(file), file.open("ab") as stream:
            stream.write(b"\n")


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def _checked(row: dict[str, Any] | None, sealed: bool) -> dict[str, Any] | None:
    if row is None or not sealed:
        return row
    digest = row.pop(CHECKSUM, None)
    return row if digest == _crc(row) else None


def _crc(row: Mapping[str, Any]) -> int:
    return zlib.crc32(orjson.dumps(row, option=_JSON))


# ---- Cutting a file to the steps before a checkpoint ---------------------------------------------------------


DAMAGED = ".damaged"
"""Suffix of the file for lines that a resume removed."""


def step_of(row: Mapping[str, Any] | None) -> int | None:
    """Step of a row; None for a damaged row or one without a step."""
    step = None if row is None else row.get("step")
    return step if type(step) is int else None


def cut(file: Path, last: int) -> str | None:
    """Retain the rows of steps 1 (0, of an initial evaluation) to `last`; return irregularities or None.

    Rows of later steps are removed silently, since these steps run again.
    """
    if not file.exists():
        return f"{file} is missing, with the rows of steps {spans(range(1, last + 1))}" if last else None
    rows: dict[int, Mapping[str, Any]] = {}
    unreadable, misplaced = [], []
    for line in read_lines(file):
        step = step_of(line.row)
        if step is None and (line.row is None or "step" not in line.row):
            unreadable.append(line.data)
        elif line.row is None or step is None or step < 0 or step in rows:
            misplaced.append(line.data)
        elif step <= last:
            rows[step] = line.row
    missing = [step for step in range(1, last + 1) if step not in rows]
    warning = _set_aside_lines(file, steps=list(rows), last=last, missing=missing, aside=(unreadable, misplaced))
    files.write_file(file, b"".join(encode_row(rows[step]) for step in sorted(rows)))
    return warning


def _set_aside_lines(
    file: Path,
    *,
    steps: Sequence[int],
    last: int,
    missing: Sequence[int],
    aside: tuple[Sequence[bytes], Sequence[bytes]],
) -> str | None:
    """Save bad lines (`aside`: unreadable, misplaced) and return the irregularities. `steps`: in file order."""
    unreadable, misplaced = aside
    faults = []
    if missing:
        there = sum(step > 0 for step in steps)
        faults.append(f"has {there} of {last} steps before the checkpoint, not {spans(missing)}")
        if unreadable:
            faults.append(f"unreadable lines: see {_keep(file, unreadable)}")
    if misplaced:
        faults.append(f"{len(misplaced)} rows repeat a step or have none: see {_keep(file, misplaced)}")
    if list(steps) != sorted(steps):
        faults.append("sorted rows that were out of order")
    return f"{file}: {'; '.join(faults)}" if faults else None


def spans(steps: Sequence[int]) -> str:
    """
    >>> spans([1, 3, 4, 5, 8])
    '1, 3-5, 8'
    """
    ends: list[list[int]] = []
    for step in steps:
        if ends and step == ends[-1][1] + 1:
            ends[-1][1] = step
        else:
            ends.append([step, step])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ends)


def _keep(file: Path, lines: Sequence[bytes]) -> Path:
    """Add lines to the damaged ones; a repetition after a kill adds them only once."""
    aside = file.with_name(file.name + DAMAGED)
    before = files.read_regular(aside) if aside.exists() else b""
    data = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
    if data not in before:
        files.write_file(aside, before + data)
    return aside
