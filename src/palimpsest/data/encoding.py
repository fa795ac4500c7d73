"""What is said of a file that isn't UTF-8 text."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import NoReturn

from palimpsest.errors import DataError

_READ = 1 << 20  # bytes
WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte-order marks of encodings that aren't read."""


def not_utf8(path: Path) -> NoReturn:
    """Raise DataError with the line and byte where the file stops being UTF-8, and what converts it."""
    line, start, decoder = 1, 0, codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while True:
            data = file.read(_READ)
            waiting = len(decoder.getstate()[0])  # bytes of a character cut in two
            try:
                line += decoder.decode(data, final=not data).count("\n")
            except UnicodeDecodeError as error:
                at = start - waiting + error.start
                line += error.object[: error.start].count(b"\n")
                raise convert(path, f"not UTF-8 at byte {at} (line {line})", "WINDOWS-1252") from None
            if not data:
                raise convert(path, "not UTF-8", "WINDOWS-1252")
            start += len(data)


def convert(path: Path, what: str, encoding: str) -> DataError:
    """`what` is wrong with a file, and the command that mends it if it is in `encoding`."""
    return DataError(f"{path}: {what}; convert it, e.g. from {encoding}: iconv -f {encoding} -t UTF-8 {path} > new")
