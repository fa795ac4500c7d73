"""Ids of long texts that were encoded lately: whoever asks whether a document fits, each policy that reads it and each
episode of it then encode it once.

Guaranteed: no more tokens are remembered than `most`; several threads may ask at once.
Not covered: texts that come round again after more than `most` other tokens, which are encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock


class Remembered:
    """Texts and their ids, by when they were asked for."""

    def __init__(self, most: int) -> None:
        """`most`: tokens, of 8 bytes each, for every number is held once."""
        self._most, self._tokens = most, 0
        self._ids: dict[str, list[int]] = {}
        self._numbers: dict[int, int] = {}
        self._lock = Lock()

    def get(self, text: str) -> list[int] | None:
        """[T] a list of the caller's own; None for a text that isn't remembered."""
        with self._lock:
            ids = self._ids.pop(text, None)
            if ids is None:
                return None
            self._ids[text] = ids  # the last to be forgotten
        return ids.copy()

    def add(self, text: str, ids: Sequence[int]) -> list[int]:
        """[T] `ids`, whose numbers are shared with all that is remembered; the oldest texts make room."""
        share = self._numbers.setdefault
        kept = [share(i, i) for i in ids]
        with self._lock:
            self._tokens += len(kept) - len(self._ids.pop(text, ()))
            self._ids[text] = kept
            while self._tokens > self._most:
                self._tokens -= len(self._ids.pop(next(iter(self._ids))))
        return kept.copy()
