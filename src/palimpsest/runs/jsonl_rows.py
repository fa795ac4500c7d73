"""JSON lines of a run (.jsonl): rows with checksums, read back and cut to a checkpoint's steps.

    {"crc32":3461646376,"reward/mean":0.5,"step":1}

Guaranteed: a damaged line costs only the rows it held. A row with a checksum is never read as another row, however it
was damaged, its key `crc32` included. After a cut, rows of different steps remain, in order; of a step with several
rows the first counts. Unreadable lines where steps are missing, rows of no step and second rows of a step are kept in
`NAME.damaged`. Everything unexpected is reported, a missing file included.
Not covered: a line that is missing completely, which only its `step` reveals; a damaged line break, which costs the two
rows it separated; files in which no row has a checksum (events, and those of earlier versions), whose objects are
accepted unchecked; which of two different rows of a step is the right one.
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
    """A line of a file."""

    data: bytes
    """As it stands there; its newline is missing if it was cut."""
    row: dict[str, Any] | None
    """Without its checksum; None if the line is damaged."""


def encode_row(row: Mapping[str, Any], *, checksum: bool = True) -> bytes:
    """The line of a row.

    >>> encode_row({"step": 1, "reward/mean": 0.5})
    b'{"crc32":3461646376,"reward/mean":0.5,"step":1}\\n'
    """
    return orjson.dumps({**row, CHECKSUM: _crc(row)} if checksum else row, option=_JSON)


def append_row(file: Path, row: Mapping[str, Any], *, checksum: bool = True) -> None:
    """Add a line, in one write. Raises OSError naming the file if it doesn't go in whole."""
    line = encode_row(row, checksum=checksum)
    with files.naming(file):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            while line:  # a disk that is nearly full takes a part, and refuses the rest
                line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)


def read_lines(file: str | Path) -> list[RowLine]:
    """The lines of a file, damaged ones included; a missing file has none."""
    try:
        return lines_of(Path(file).read_bytes())
    except FileNotFoundError:
        return []


def lines_of(data: bytes, *, sealed: bool = False) -> list[RowLine]:
    """The lines in a part of a file; `sealed`: whether rows before it have checksums, so that these must have them."""
    lines = [(line, _object(line)) for line in BytesIO(data)]
    sealed = sealed or any(row is not None and CHECKSUM in row for _, row in lines)
    return [RowLine(line, _checked(row, sealed)) for line, row in lines]


def read_rows(file: str | Path) -> list[dict[str, Any]]:
    """The rows of a file, without those that are damaged; a missing file has none."""
    return [line.row for line in read_lines(file) if line.row is not None]


def with_number(rows: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """The rows of a step whose `key` is a finite number: a mean of nothing is written as null.

    >>> with_number([{"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": None}, {"step": 3}], "reward/mean")
    [{'step': 1, 'reward/mean': 0.5}]
    """
    return [row for row in rows if type(row.get("step")) is int and is_number(row.get(key))]


def is_number(value: object) -> bool:
    """Whether it is a finite one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(row: Mapping[str, Any], key: str, default: int) -> int:
    """A count in a row; `default` where there is none."""
    value = row.get(key)
    return int(value) if value is not None and is_number(value) else default


def end_line(file: Path) -> None:
    """End the line that a kill cut short, so that the next row doesn't become a part of it."""
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
    """The row without its checksum, None if that is wrong; `sealed`: whether it must have one."""
    if row is None or not sealed:
        return row
    digest = row.pop(CHECKSUM, None)
    return row if digest == _crc(row) else None


def _crc(row: Mapping[str, Any]) -> int:
    return zlib.crc32(orjson.dumps(row, option=_JSON))


# ---- Cutting a file to the steps before a checkpoint ---------------------------------------------------------


DAMAGED = ".damaged"
"""Behind the name of a file of rows: its lines that a resume did not keep in their place."""


def step_of(row: Mapping[str, Any] | None) -> int | None:
    """The step of a row; None if it has none, or is damaged itself."""
    step = None if row is None else row.get("step")
    return step if type(step) is int else None


def cut(file: Path, last: int, *, first: int = 1) -> str | None:
    """Keep the rows of steps `first` (1; 0 where an evaluation came before) to `last`. What was wrong, None: nothing.

    Rows of later steps are removed without a word: they are done again.
    """
    if not file.exists():
        return f"{file}: isn't there; the rows of steps {spans(range(1, last + 1))} are missing" if last else None
    rows: dict[int, Mapping[str, Any]] = {}
    unreadable, misplaced = [], []
    for line in read_lines(file):
        step = step_of(line.row)
        if step is None and (line.row is None or "step" not in line.row):
            unreadable.append(line.data)
        elif line.row is None or step is None or step < first or step in rows:
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
    """Keep lines aside, and say what was wrong. `steps`: in the order of the file; `aside`: lines that can't be
    read, and rows out of place."""
    unreadable, misplaced = aside
    faults = []
    if missing:
        there = sum(step > 0 for step in steps)
        faults.append(f"holds {there} of {last} steps before the checkpoint, not {spans(missing)}")
        if unreadable:
            faults.append(f"lines that can't be read are kept in {_keep(file, unreadable)}")
    if misplaced:
        faults.append(f"{len(misplaced)} rows repeat a step or have none, and are kept in {_keep(file, misplaced)}")
    if list(steps) != sorted(steps):
        faults.append("rows stood out of order, and were sorted")
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
    """Add lines to those that were kept before, once if a kill has it done twice."""
    aside = file.with_name(file.name + DAMAGED)
    before = aside.read_bytes() if aside.exists() else b""
    data = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
    if data not in before:
        files.write_file(aside, before + data)
    return aside
