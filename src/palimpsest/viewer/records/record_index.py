"""Index of an episode file: random access, one row per episode, cached between starts of the viewer.

In the record of a run, each frame is a group. In that of an evaluation, each frame is an episode: frames with the same
group id form a group, and the last version of a repeated episode counts (evaluation/episode_files.py). Rows of large
files are cached in the user's cache folder, never next to the file.

Guaranteed: an episode file is only read; while it stays the same file, growth costs only what was added; everything
after the first damaged piece is left out and reported (as in rollout/trajectory_file.py); a call locks the file for at
most `_TURN_S` and keeps what it read; a cache entry is used only for the same path, size and modification time; a
damaged entry is ignored, a cache that cannot be written is no error, and it has at most `MOST_FILES` entries.
Not covered: a bound on the cost of a file, which grows with its episodes.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from palimpsest import files
from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import EPISODES, merged
from palimpsest.files import open_regular
from palimpsest.rollout.trajectory_file import groups_in
from palimpsest.types import Group
from palimpsest.viewer.records.episode_rows import Row, UnknownFormat, checked, row_of
from palimpsest.viewer.records.sources import (
    Damaged,
    FilePiece,
    NotThere,
    content_of,
    is_compressed,
    next_line,
    next_piece,
    without_blank_lines,
)

# ---- Cached rows of large files ------------------------------------------------------------------------------


MOST_FILES = 64
_VERSION = 3
Places = list[tuple[int, int, int]]
"""The pieces of a file that hold one group: (start, end, place among the groups of that piece)."""


def default_folder() -> Path:
    """Of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palimpsest" / "view"


class RowCache:
    """What was read of files that took longer than `worth_s` seconds to read."""

    def __init__(self, folder: Path, *, worth_s: float = 0.25) -> None:
        self.folder = folder
        self.worth_s = worth_s

    def load(self, path: Path, state: os.stat_result) -> tuple[list[Row], list[Places]] | None:
        """Rows and places of groups of a file in that state."""
        try:
            digest, _, body = self._file(path).read_bytes().partition(b"\n")
            if int(digest, 16) != zlib.crc32(body):
                return None
            kept = orjson.loads(body)
        except (OSError, ValueError):
            return None
        if kept["key"] != _key(path, state):
            return None
        return kept["rows"], [[(start, end, inner) for start, end, inner in each] for each in kept["groups"]]

    def save(self, path: Path, state: os.stat_result, rows: list[Row], groups: list[Places]) -> None:
        """Keep what was read of a whole file."""
        try:
            body = orjson.dumps({"key": _key(path, state), "rows": rows, "groups": groups})
        except TypeError:
            return  # JSON would give back something else: a wide integer, a name that is no Unicode
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_file(self._file(path), b"%08x\n" % zlib.crc32(body) + body)
            self._forget()

    def _forget(self) -> None:
        kept = sorted(self.folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in kept[MOST_FILES:]:
            old.unlink(missing_ok=True)

    def _file(self, path: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"


def _key(path: Path, state: os.stat_result) -> list[str | int]:
    return [_VERSION, os.fspath(path.resolve()), state.st_size, state.st_mtime_ns]


# ---- Random access into a file of episodes that may grow -----------------------------------------------------


GROUP_S = 30.0
"""Seconds in which a group has to be found; asked again, the search goes on where it ended."""
_TURN_S = 0.5
_MOST_LINES = 100_000
"""Episodes in a frame."""
_LOOK_EVERY = 16
"""Lines after which the clock is looked at."""


@dataclass(slots=True)
class _Begun:
    """A piece of which not all lines were read."""

    piece: FilePiece
    at: int = 0
    """Where the next line begins, in the piece's content."""
    lines: list[tuple[int, int, Row]] = field(default_factory=list)
    """[start, end) in the content, and the row."""


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
    begun: _Begun | None = None
    placed: dict[str, int] = field(default_factory=dict)
    """Group id to its place, of an evaluation's record."""
    drawn: dict[int, dict[int, Row]] = field(default_factory=dict)
    """[groups] draw to its row, of an evaluation's record."""
    stale: set[int] = field(default_factory=set)
    """Groups whose rollouts aren't numbered yet."""
    damage: str | None = None
    """Why the file is not read any further."""
    size: int = 0
    """Of the file when it was last looked at."""
    changed: int = 0


@dataclass(frozen=True, slots=True)
class IndexedRows:
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
        self._cache = cache
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self._unpacked: tuple[FilePiece, bytes] | None = None

    def rows(self, seconds: float | None = None) -> IndexedRows:
        """Every episode's row, or those that could be read within some seconds. Raises NotThere."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._lock, self._opened() as file:
            read = self._current(file)
            more = self._advance(file, read, until)
            share = 1.0 if not more else read.next / max(1, read.size)
            if not more:
                self._unpacked = None
            return IndexedRows(list(read.rows), len(read.places), self._torn(read), more, share)

    def group(self, place: int) -> Group:
        """The group at a 0-based place. Raises NotThere where there is none, DataError for what is no group."""
        until = time.monotonic() + GROUP_S
        while (found := self._pieces_of(place)) is None:
            if time.monotonic() > until:
                raise DataError(f"{self.path.name}: group {place} wasn't reached in {GROUP_S:.0f} s; ask again")
        try:
            with self._opened() as file:  # without the lock: others may look at other groups meanwhile
                groups = [self._group_at(file, content, *where) for where, content in found]
        except (Damaged, IndexError) as error:
            raise DataError(f"{self.path.name}: group {place} can't be read ({error})") from None
        return checked(self.path, merged(groups)[0] if self._merged else groups[0])

    def _pieces_of(self, place: int) -> list[tuple[tuple[int, int, int], bytes | None]] | None:
        """Where a group stands, with what was unpacked of it already; None if it wasn't reached in a turn."""
        with self._lock, self._opened() as file:
            read = self._current(file)
            enough = None if self._merged else place + 1
            more = self._advance(file, read, time.monotonic() + _TURN_S, enough)
            short = len(read.places) < place + 1 + (not self._compressed) if enough else True
            if more and short:
                return None
            unpacked, self._unpacked = self._unpacked, None
            if not 0 <= place < len(read.places):
                raise NotThere(f"{self.path.name}: no group {place}; it has {len(read.places)}")
            return [
                (where, unpacked[1] if unpacked and unpacked[0] == FilePiece(*where[:2]) else None)
                for where in read.places[place]
            ]

    def _group_at(self, file: BinaryIO, content: bytes | None, start: int, end: int, inner: int) -> Group:
        if content is None:
            content = content_of(file, FilePiece(start, end), compressed=self._compressed)
        return groups_in(self.path, without_blank_lines(content))[inner]

    def _content(self, file: BinaryIO, piece: FilePiece) -> bytes:
        """The lines in a piece; the latest are kept, as a look at a group, and one that goes on, reads them again."""
        if self._unpacked is None or self._unpacked[0] != piece:
            self._unpacked = piece, content_of(file, piece, compressed=self._compressed)
        return self._unpacked[1]

    def _opened(self) -> BinaryIO:
        try:
            return open_regular(self.path)
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
                self._know_again(read)
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
                _number(read)
                return True
            try:
                piece = next_piece(file, read.next, compressed=self._compressed)
                if piece is None:
                    break
                begun = read.begun if read.begun is not None and read.begun.piece == piece else _Begun(piece)
                read.begun = begun
                if not _parsed(begun, self._content(file, piece), until):
                    _number(read)
                    return True
                self._take(read, begun)
                read.begun = None
            except UnknownFormat as error:
                read.damage, read.begun = f"unreadable after {len(read.places)} groups: {error}", None
            except (Damaged, ValueError) as error:
                cut = f"cut short or damaged after {len(read.places)} whole groups ({error})"
                read.damage, read.begun = cut, None
        _number(read)
        ended = read.next >= read.size
        if ended and self._cache and read.next > first and time.monotonic() - began > self._cache.worth_s:
            self._cache.save(self.path, os.fstat(file.fileno()), read.rows, read.places)
        return read.damage is None and not ended

    def _take(self, read: _Read, begun: _Begun) -> None:
        """Add the episodes of a piece, all or none; in a plain file a group may go on from the piece before."""
        piece = begun.piece
        last = None if self._compressed or not read.rows else read.rows[-1]["gid"]
        inner = -1
        for start, end, row in begun.lines:
            where = piece.start + start, piece.start + end
            if row["gid"] != last:
                inner, last = inner + 1, row["gid"]
                self._begin(read, row["gid"], (piece.start, piece.end, inner) if self._compressed else (*where, 0))
            elif not self._compressed:
                read.places[-1][-1] = (read.places[-1][-1][0], where[1], 0)
            self._add(read, row)
        read.next = piece.end

    def _begin(self, read: _Read, group_id: str, where: tuple[int, int, int]) -> None:
        place = read.placed.setdefault(group_id, len(read.places)) if self._merged else len(read.places)
        if place == len(read.places):
            read.places.append([where])
        else:
            read.places[place].append(where)

    def _add(self, read: _Read, row: Row) -> None:
        if not self._merged:
            group = len(read.places) - 1
            before = read.rows[-1] if read.rows else None
            place = before["rollout"] + 1 if before is not None and before["group"] == group else 0
            read.rows.append({**row, "group": group, "rollout": place})
            return
        group = read.placed[row["gid"]]
        known = read.drawn.setdefault(group, {}).get(row["draw"])
        if known is not None:
            known.clear()
            known.update(row, group=group, rollout=0)
        else:
            read.drawn[group][row["draw"]] = new = {**row, "group": group, "rollout": 0}
            read.rows.append(new)
        read.stale.add(group)

    def _know_again(self, read: _Read) -> None:
        """What an evaluation's record needs to be read on, from rows that were kept."""
        if self._merged:
            for row in read.rows:
                read.placed[row["gid"]] = row["group"]
                read.drawn.setdefault(row["group"], {})[row["draw"]] = row

    def _torn(self, read: _Read) -> str | None:
        if read.damage is None:
            return None
        return f"{self.path.name}: {read.damage}; the rest was left out"


def _is_same(read: _Read, state: os.stat_result) -> bool:
    """Whether a file is the one that was read, grown or not."""
    if read.identity != (state.st_dev, state.st_ino) or state.st_size < read.next:
        return False
    return state.st_size != read.size or state.st_mtime_ns == read.changed


def _parsed(begun: _Begun, content: bytes, until: float | None) -> bool:
    """Read a piece's lines on, until a moment; whether all are read. Raises ValueError for what is no episode."""
    looked = 0
    while begun.at < len(content):
        looked += 1
        if until is not None and looked % _LOOK_EVERY == 0 and time.monotonic() > until:
            return False
        start, begun.at = next_line(content, begun.at)
        if start < begun.at:
            begun.lines.append((start, begun.at, row_of(content[start : begun.at].rstrip())))
        if len(begun.lines) > _MOST_LINES:
            raise Damaged(f"a frame holds more than {_MOST_LINES} episodes")
    return True


def _number(read: _Read) -> None:
    """The rollouts of groups that episodes came to, in the order of their draws."""
    for group in read.stale:
        for place, (_, row) in enumerate(sorted(read.drawn[group].items())):
            row["rollout"] = place
    read.stale.clear()
