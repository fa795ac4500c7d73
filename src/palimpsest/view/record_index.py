"""Random access into a file of episodes, and a row for each of them, while it may still grow.

Guaranteed: a file is only read; what was read of it is remembered for as long as it is the same file, so a file that
grew costs what was added; from the first damaged piece on everything is left out, and told (as rollout/record.py does);
a cache that is damaged, or of another file, counts for nothing.

A run's record has a group a frame. An evaluation's has an episode a frame: there the frames of one group id are one
group, and of an episode that was played again the last counts (evaluation/episodes.py).
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from palimpsest.errors import DataError
from palimpsest.evaluation.episodes import EPISODES, merged
from palimpsest.rollout.record import groups_in
from palimpsest.types import Group
from palimpsest.view.episode_rows import Row, row_of
from palimpsest.view.pieces import Damaged, Piece, content_of, is_compressed, next_piece
from palimpsest.view.row_cache import Places, RowCache
from palimpsest.view.sources import NotThere


@dataclass(slots=True)
class _Read:
    """What is known of a file so far."""

    identity: tuple[int, int]
    """Device and inode."""
    next: int = 0
    """Where the first piece begins that wasn't read."""
    rows: list[Row] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    """[groups] the pieces that hold a group: (start, end, place among the groups of that piece)."""
    damage: str | None = None
    size: int = 0
    """Of the file when it was last looked at."""
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file as far as they were read."""

    rows: list[Row]
    groups: int
    torn: str | None
    """What was left out, in words."""
    more: bool
    """Whether there are pieces that weren't read yet."""
    share: float
    """Of the file's bytes that were read."""


class RecordIndex:
    """One file of episodes. Threads may share it."""

    def __init__(self, path: Path, cache: RowCache | None = None) -> None:
        self.path = path
        self._compressed, self._merged = is_compressed(path), path.name == EPISODES
        self._cache = None if self._merged else cache
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self._unpacked: tuple[Piece, bytes] | None = None

    def rows(self, seconds: float | None = None) -> Rows:
        """Every episode's row, or those that could be read within some seconds. Raises NotThere."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._lock, self._opened() as file:
            read = self._current(file)
            more = self._advance(file, read, until)
            share = 1.0 if not more else read.next / max(1, read.size)
            self._unpacked = None
            return Rows(list(read.rows), len(read.places), self._torn(read), more, share)

    def group(self, place: int) -> Group:
        """The group at a 0-based place. Raises NotThere where there is none, DataError for what is no group."""
        with self._lock, self._opened() as file:
            read = self._current(file)
            self._advance(file, read, None, enough=None if self._merged else place + 1)
            if not 0 <= place < len(read.places):
                raise NotThere(f"{self.path.name}: no group {place}; it has {len(read.places)}")
            try:
                groups = [self._group_at(file, *where) for where in read.places[place]]
            except (Damaged, IndexError) as error:
                raise DataError(f"{self.path.name}: group {place} can't be read ({error}); ask again") from None
            finally:
                self._unpacked = None
        return merged(groups)[0] if self._merged else groups[0]

    def _group_at(self, file: BinaryIO, start: int, end: int, inner: int) -> Group:
        return groups_in(self.path, self._content(file, Piece(start, end)))[inner]

    def _content(self, file: BinaryIO, piece: Piece) -> bytes:
        """The lines in a piece; the latest are kept until the call ends, as a look at a group reads them twice."""
        if self._unpacked is None or self._unpacked[0] != piece:
            self._unpacked = piece, content_of(file, piece, compressed=self._compressed)
        return self._unpacked[1]

    def _opened(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise NotThere(f"{self.path.name}: {error.strerror}; it was moved or deleted while it was shown") from None

    def _current(self, file: BinaryIO) -> _Read:
        """What was read, if the file is the one it was read of; else nothing, or what a cache holds."""
        state = os.fstat(file.fileno())
        read = self._read
        if read is None or not _is_same(read, state):
            read = _Read((state.st_dev, state.st_ino))
            kept = self._cache.load(self.path, state) if self._cache else None
            if kept is not None:
                read.rows, read.places = kept
                read.next = state.st_size
            self._read = read
        if read.size != state.st_size:
            read.damage = None  # what was cut may be whole by now
        read.size, read.changed = state.st_size, state.st_mtime_ns
        return read

    def _advance(self, file: BinaryIO, read: _Read, until: float | None, enough: int | None = None) -> bool:
        """Read on, until a moment or until `enough` groups are there; whether any piece is left."""
        began, first = time.monotonic(), read.next
        while read.damage is None and (enough is None or len(read.places) < enough + (not self._compressed)):
            if until is not None and time.monotonic() > until:
                return True
            try:
                piece = next_piece(file, read.next, compressed=self._compressed)
                if piece is None:
                    break
                self._take(read, piece, self._content(file, piece))
            except (Damaged, ValueError) as error:
                read.damage = str(error)
        ended = read.next >= read.size
        if ended and self._cache and read.next > first and time.monotonic() - began > self._cache.worth_s:
            self._cache.save(self.path, os.fstat(file.fileno()), read.rows, read.places)
        return read.damage is None and not ended

    def _take(self, read: _Read, piece: Piece, content: bytes) -> None:
        """Add the episodes of a piece, all or none; in a plain file a group may go on from the piece before."""
        lines = content.split(b"\n")
        made = [row_of(line) if line.strip() else None for line in lines]
        last = None if self._compressed or not read.rows else read.rows[-1]["gid"]
        inner, at = -1, piece.start
        for line, row in zip(lines, made, strict=True):
            end = min(at + len(line) + 1, piece.end)
            if row is not None:
                if row["gid"] != last:
                    inner, last = inner + 1, row["gid"]
                    self._begin(read, row["gid"], (piece.start, piece.end, inner) if self._compressed else (at, end, 0))
                elif not self._compressed:
                    read.places[-1][-1] = (read.places[-1][-1][0], end, 0)
                self._add(read, row)
            at = end
        read.next = piece.end

    def _begin(self, read: _Read, group_id: str, where: tuple[int, int, int]) -> None:
        place = self._place_of(read, group_id)
        if place == len(read.places):
            read.places.append([where])
        else:
            read.places[place].append(where)

    def _place_of(self, read: _Read, group_id: str) -> int:
        """Of the group that an episode belongs to; one behind the last for a new one."""
        if not self._merged:
            return len(read.places)
        return next((row["group"] for row in read.rows if row["gid"] == group_id), len(read.places))

    def _add(self, read: _Read, row: Row) -> None:
        if not self._merged:
            group = len(read.places) - 1
            before = read.rows[-1] if read.rows else None
            place = before["rollout"] + 1 if before is not None and before["group"] == group else 0
            read.rows.append({**row, "group": group, "rollout": place})
            return
        group = self._place_of(read, row["gid"])
        group = min(group, len(read.places) - 1)
        kept = [each for each in read.rows if (each["gid"], each["draw"]) != (row["gid"], row["draw"])]
        read.rows = [*kept, {**row, "group": group, "rollout": 0}]
        draws = sorted((each for each in read.rows if each["group"] == group), key=lambda each: each["draw"])
        for place, each in enumerate(draws):
            each["rollout"] = place

    def _torn(self, read: _Read) -> str | None:
        if read.damage is None:
            return None
        whole = f"cut short or damaged after {len(read.places)} whole groups ({read.damage})"
        return f"{self.path.name}: {whole}; the rest was left out"


def _is_same(read: _Read, state: os.stat_result) -> bool:
    """Whether a file is the one that was read, grown or not."""
    if read.identity != (state.st_dev, state.st_ino) or state.st_size < read.next:
        return False
    return state.st_size != read.size or state.st_mtime_ns == read.changed
