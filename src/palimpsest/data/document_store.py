"""Long documents on a disk until they are asked for.

Guaranteed: memory holds none of them, and of equal ones the disk holds one; what comes back is what went in, lone
surrogates included; the file has no name and is gone with the process, however that ends.
Not covered: a folder for temporary files that lies in memory itself; TMPDIR names another.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from typing import IO

from palimpsest.errors import DataError

LONG = 4096
"""Characters from which a document is worth a place on the disk."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a document lies, in bytes."""

    start: int
    size: int


class DocumentStore:
    """Texts in an unnamed temporary file. Reading is safe from several threads, writing is not."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._known: dict[bytes, Stored] = {}

    def put(self, text: str) -> Stored:
        """Write `text`, if no equal one is there. Raises DataError where the disk takes no more."""
        data = text.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest not in self._known:
            try:
                self._write(data)
            except OSError as error:
                raise DataError(
                    f"{tempfile.tempdir or 'temporary files'}: {error.strerror}; long documents wait there until they "
                    "are played: set TMPDIR to a folder with room for all of them"
                ) from None
            self._known[digest] = Stored(self._end, len(data))
            self._end += len(data)
        return self._known[digest]

    def text(self, stored: Stored) -> str:
        """The text that was put there."""
        data = os.pread(self._opened(), stored.size, stored.start)
        assert len(data) == stored.size
        return data.decode("utf-8", "surrogatepass")

    def _write(self, data: bytes) -> None:
        """Behind what was written whole: a part of one that failed is overwritten."""
        at = self._end
        while data:
            written = os.pwrite(self._opened(), data, at)
            data, at = data[written:], at + written

    def _opened(self) -> int:
        """The descriptor."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  open for as long as the store lives
        return self._file.fileno()
