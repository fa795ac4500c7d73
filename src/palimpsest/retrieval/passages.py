"""The passages of an index on disk, mapped and not read: one JSON object a line, and where each line begins.

Guaranteed: each passage read is the caller's own copy; safe to read from several threads.
Not covered: passages that are no JSON objects (data/corpus.py sees to that).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

_PASSAGES, _STARTS = "passages.jsonl", "starts.npy"


class Passages:
    """Passages by their number."""

    def __init__(self, folder: Path) -> None:
        self._starts = np.load(folder / _STARTS, mmap_mode="r")
        """[N + 1] byte at which each passage begins; the last is the end of the file."""
        with (folder / _PASSAGES).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, at: int) -> dict[str, Any]:
        start, end = int(self._starts[at]), int(self._starts[at + 1])
        found: dict[str, Any] = orjson.loads(self._bytes[start:end])
        return found

    @property
    def sizes_N(self) -> np.ndarray:
        """[N] bytes of each passage."""
        return np.diff(self._starts)


def written(passages: Iterable[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """The passages as they come, each written to `folder` on the way; to be read to the end."""
    starts = [0]
    with (folder / _PASSAGES).open("wb") as file:
        for passage in passages:
            starts.append(starts[-1] + file.write(orjson.dumps(passage) + b"\n"))
            yield passage
    np.save(folder / _STARTS, np.array(starts, dtype=np.int64))
