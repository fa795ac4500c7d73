"""Random access into a file of episodes, one row per episode, and type checks of the groups in it.

The index file of a record (rollout/trajectory_file.py) provides the rows of its first frames; each later frame is
unpacked once. In the record of a run, each frame is a group. In that of an evaluation, each frame is an episode: frames
with the same group id form a group, and the last version of a repeated episode counts (evaluation/episode_files.py).

Guaranteed: files are only read; while the file stays the same, growth costs only the added part; the index reports the
first damaged piece and skips everything after it (as in rollout/trajectory_file.py); index lines that contradict the
file do not count.
Not covered: a bound on the cost of a file without an index, which grows with its episodes.
"""

from __future__ import annotations

import os
import reprlib
import threading
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast, get_type_hints

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from palimpsest.errors import DataError
from palimpsest.evaluation.episode_files import EPISODES, merged
from palimpsest.events import Plain
from palimpsest.files import open_regular, read_regular
from palimpsest.rollout.trajectory_file import (
    LINE,
    MOST_BYTES,
    episode_row,
    frame_check,
    groups_in,
    index_of,
    parse_line,
)
from palimpsest.types import Group
from palimpsest.viewer.records.sources import (
    Damaged,
    FilePiece,
    NotThere,
    content_of,
    is_compressed,
    leads_out,
    next_piece,
)

_MOST_LINES = 100_000
"""Episodes in a frame."""
_CHECK_BYTES = 4


class IndexRow(TypedDict):
    """An episode in a table."""

    gid: str
    draw: int
    id: str
    question: str
    golds: list[str]
    answer: str | None
    outcome: str
    reward: float | None
    reason: str | None
    parts: dict[str, Any]
    events: dict[str, int]
    turns: int
    prompt_tokens: int
    sampled_tokens: int


class IndexedFrame(TypedDict):
    """A line of an index."""

    start: int
    end: int
    check: str
    rows: list[IndexRow]


_FRAME = TypeAdapter(IndexedFrame)


@dataclass(slots=True)
class _Read:
    identity: tuple[int, int]
    next: int = 0
    """Start of the first unread piece."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    places: list[list[tuple[int, int, int]]] = field(default_factory=list)
    """[groups] the pieces with parts of a group: (start, end, index of the group in that piece)."""
    placed: dict[str, int] = field(default_factory=dict)
    """Group id to its index, in an evaluation's record."""
    drawn: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """Group and draw to the row, in an evaluation's record; otherwise the row number replaces the draw."""
    damage: str | None = None
    size: int = 0
    """Size of the file at the last look."""
    changed: int = 0


@dataclass(frozen=True, slots=True)
class IndexedRows:
    rows: list[dict[str, Any]]
    groups: int
    torn: str | None


class RecordIndex:
    """One file of episodes. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._compressed, self._merged = is_compressed(path), path.name == EPISODES
        self._lock = threading.Lock()
        self._read: _Read | None = None

    def rows(self) -> IndexedRows:
        """Every episode's row. Raises NotThere."""
        with self._lock, self._opened() as file:
            read = self._current(file)
            torn = None if read.damage is None else f"{self.path.name}: {read.damage}; omitted the rest"
            return IndexedRows(list(read.rows), len(read.places), torn)

    def group(self, index: int) -> Group:
        """The group at a 0-based index. Raises NotThere if it is missing, DataError for an invalid group."""
        with self._opened() as file:
            with self._lock:
                places = self._current(file).places
            if not 0 <= index < len(places):
                raise NotThere(f"{self.path.name}: no group {index}; it has {len(places)}")
            try:  # without the lock: other threads may read other groups
                groups = [self._group_at(file, *where) for where in list(places[index])]
            except (Damaged, IndexError) as error:
                raise DataError(f"{self.path.name}: group {index} is unreadable ({error})") from None
        return checked(self.path, merged(groups)[0] if self._merged else groups[0])

    def _group_at(self, file: BinaryIO, start: int, end: int, inner: int) -> Group:
        return groups_in(self.path, content_of(file, FilePiece(start, end), compressed=self._compressed))[inner]

    def _opened(self) -> BinaryIO:
        try:
            return open_regular(self.path)
        except OSError as error:
            raise NotThere(f"{self.path.name}: {error.strerror}; the file was moved or deleted") from None

    def _current(self, file: BinaryIO) -> _Read:
        state, read = os.fstat(file.fileno()), self._read
        if read is None or not _is_same(read, state):
            read = self._read = _Read((state.st_dev, state.st_ino))
            for frame in _indexed(self.path) if self._compressed else ():
                if frame["start"] != read.next or not _ends_with(file, frame["end"], frame["check"]):
                    break
                self._take(read, FilePiece(frame["start"], frame["end"]), ((0, 0, row) for row in frame["rows"]))
        if read.size != state.st_size:
            read.size, read.changed = state.st_size, state.st_mtime_ns
            read.damage = None  # a truncated end may be complete now
            self._advance(file, read)
            _number(read)
        return read

    def _advance(self, file: BinaryIO, read: _Read) -> None:
        try:
            while (piece := next_piece(file, read.next, compressed=self._compressed)) is not None:
                content = content_of(file, piece, compressed=self._compressed)
                self._take(read, piece, list(self._parsed(content)))
        except (Damaged, DataError, ValueError) as error:
            read.damage = f"truncated or damaged after {len(read.places)} complete groups ({error})"

    def _parsed(self, content: bytes) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """[start, end) of each line of a piece, and its row. Raises DataError and ValueError."""
        for number, match in enumerate(LINE.finditer(content)):
            if number == _MOST_LINES:
                raise Damaged(f"a frame contains more than {_MOST_LINES} episodes")
            yield *match.span(), episode_row(parse_line(Path(self.path.name), match[0]))

    def _take(self, read: _Read, piece: FilePiece, lines: Iterable[tuple[int, int, Mapping[str, Any]]]) -> None:
        """Add the episodes of a piece; in a plain file a group may continue from the previous piece."""
        last = None if self._compressed or not read.rows else read.rows[-1]["gid"]
        inner = -1
        for start, end, row in lines:
            where = piece.start + start, piece.start + end
            if row["gid"] != last:
                inner, last = inner + 1, row["gid"]
                self._begin(read, row["gid"], (piece.start, piece.end, inner) if self._compressed else (*where, 0))
            elif not self._compressed:
                read.places[-1][-1] = (read.places[-1][-1][0], where[1], 0)
            self._add(read, row)
        read.next = piece.end

    def _begin(self, read: _Read, group_id: str, where: tuple[int, int, int]) -> None:
        index = read.placed.setdefault(group_id, len(read.places)) if self._merged else len(read.places)
        if index == len(read.places):
            read.places.append([])
        read.places[index].append(where)

    def _add(self, read: _Read, row: Mapping[str, Any]) -> None:
        group, draw = len(read.places) - 1, len(read.rows)
        if self._merged:
            group, draw = read.placed[row["gid"]], row["draw"]
        entry = read.drawn.get((group, draw))
        if entry is None:
            entry = read.drawn[group, draw] = {}
            read.rows.append(entry)
        entry.clear()
        entry.update(row, group=group)


def _number(read: _Read) -> None:
    counts = Counter[int]()
    for (group, _), row in sorted(read.drawn.items()):
        row["rollout"] = counts[group]
        counts[group] += 1


def _is_same(read: _Read, state: os.stat_result) -> bool:
    if read.identity != (state.st_dev, state.st_ino) or state.st_size < read.next:
        return False
    return state.st_size != read.size or state.st_mtime_ns == read.changed


def _indexed(record: Path) -> Iterator[IndexedFrame]:
    path = index_of(record)
    try:
        lines = b"" if leads_out(path.parent, path) else read_regular(path, MOST_BYTES)
        for line in lines.splitlines():
            yield _FRAME.validate_json(line, strict=True)
    except (OSError, ValidationError):
        return


def _ends_with(file: BinaryIO, end: int, check: str) -> bool:
    if not _CHECK_BYTES <= end < 1 << 62:
        return False
    file.seek(end - _CHECK_BYTES)
    return frame_check(file.read(_CHECK_BYTES)) == check


# ---- Type checks of a group ----------------------------------------------------------------------------------


MOST_ID = 1 << 31
"""Upper bound of token ids, exclusive."""
_Id = Annotated[int, Field(ge=0, lt=MOST_ID)]
_Number = Annotated[float, Field(gt=-1e100, lt=1e100)]  # sums and squares stay within floats


def _ids(value: Any) -> Any:
    """[T] token ids, validated in one pass because they make up most of a record. Raises ValueError."""
    try:
        ids = np.frombuffer(array("i", value), np.intc)  # a C int is below `MOST_ID`
    except (TypeError, OverflowError):
        raise ValueError("invalid token ids") from None
    if ids.size and ids.min() < 0:
        raise ValueError("a token id is negative")
    return value


_Ids = Annotated[Any, AfterValidator(_ids)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, from_attributes=True)


class _Metadata(TypedDict, total=False):
    evidence: list[str]


class _Problem(_Checked):
    id: str
    question: str
    memory: str
    answers: tuple[str, ...]
    metadata: _Metadata


class _Completion(_Checked):
    token_ids: _Ids
    logprobs: Annotated[tuple[_Number, ...], FailFast()]
    policy_version: _Id
    last_policy_version: _Id


class _Turn(_Checked):
    prompt_ids: _Ids
    completion: _Completion
    step: _Id
    name: str
    role: str | None
    notes: dict[str, Any]


def _event(what: Any) -> Any:
    for name, adapter in _fields(cast(Hashable, type(what))).items():
        adapter.validate_python(getattr(what, name), strict=True)
    return what


@cache
def _fields(kind: Hashable) -> Mapping[str, TypeAdapter[Any]]:
    """Validators of an event type's fields; sequences of integers are token ids."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "kind" or kind is Plain}
    return {name: TypeAdapter(_Ids if hint == tuple[int, ...] else hint) for name, hint in hints.items()}


class _Event(_Checked):
    before_turn: _Id
    what: Annotated[Any, AfterValidator(_event)]


class _Trajectory(_Checked):
    problem_id: str
    group_id: str
    rollout: int | str  # text: the integer exceeds JSON's range
    answer: str | None
    answers: tuple[str | None, ...]
    turns: Annotated[tuple[_Turn, ...], FailFast()]
    events: Annotated[tuple[_Event, ...], FailFast()]


class _Span(_Checked):
    turn: _Number
    start: _Number
    end: _Number
    value: _Number


class _Grade(_Checked):
    value: _Number | None
    reason: str | None
    breakdown: dict[str, Any]
    per_turn: tuple[_Number, ...] | None
    turn_weights: tuple[_Number, ...] | None
    spans: tuple[_Span, ...]


class _GroupTypes(_Checked):
    problem: _Problem
    trajectories: tuple[_Trajectory, ...]
    grades: tuple[_Grade, ...]
    key: tuple[int | str, ...]


_GROUP = TypeAdapter(_GroupTypes)


def checked(path: Path, group: Group) -> Group:
    """The unchanged group. Raises DataError that names the file and the first value of a wrong type."""
    try:
        _GROUP.validate_python(group)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where, name = ".".join(map(str, first["loc"])), f"{group.trajectories[0].group_id!r:.60}"
        detail = f"{where} is {reprlib.repr(first['input'])} ({first['msg']:.60})".replace("\n", " ")
        raise DataError(f"{path.name}: group {name} is not a record of trajectories: {detail}") from None
    return group
