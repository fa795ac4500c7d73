"""Answers kept as bytes: whoever reads one can't change it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class BytesCache:
    """The answers used last, bounded by number and by size. For one event loop.

    >>> cache = BytesCache(entries=2, size=100)
    >>> cache.put("a", b"1"), cache.put("b", b"2"), cache.get("a"), cache.put("c", b"3")
    (None, None, b'1', None)
    >>> cache.get("b") is None, cache.status()["entries"]
    (True, 2)
    """

    def __init__(self, entries: int, size: int) -> None:
        self._limits = (entries, size)
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self.size = self.hits = self.misses = 0

    def get(self, key: Hashable) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return found

    def put(self, key: Hashable, answer: bytes) -> None:
        self.size += len(answer) - len(self._kept.pop(key, b""))
        self._kept[key] = answer
        while len(self._kept) > self._limits[0] or self.size > self._limits[1]:
            self.size -= len(self._kept.popitem(last=False)[1])

    def clear(self) -> int:
        """Forget everything; how many entries there were."""
        count = len(self._kept)
        self._kept.clear()
        self.size = 0
        return count

    def status(self) -> dict[str, int]:
        entries, size = self._limits
        return {
            "entries": len(self._kept),
            "bytes": self.size,
            "max_entries": entries,
            "max_bytes": size,
            "hits": self.hits,
            "misses": self.misses,
        }
