"""Viewer sources: runs, evaluations and episode files under a path, and the pieces of a file.

A piece is a frame of a .zst (rollout/trajectory_file.py) or some megabytes of lines of a plain file. A file in a folder
is a source if its first line is an episode; a file that a user names is always a source.

Guaranteed: files are only read, and nothing is created; a source keeps its key while the library exists; a deleted
folder stays listed, so that a page can report it; several links to one target are one source; links out of a run's or
evaluation's folder, or out of the named folder, are not followed; beyond `MOST`, only the newest sources are listed and
the rest counted; a cut or invalid piece is reported and never read; memory use per frame, line or group of a plain file
is at most `MOST_BYTES`, whatever a header claims.
Not covered: files more than `DEPTH` folders below a given path; other files in the folder of a run or evaluation.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import BinaryIO

import orjson
import zstandard

from palimpsest.errors import DataError, PalimpsestError, RunError
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.evaluation.sample_log import SAMPLES
from palimpsest.files import is_set_aside, open_regular
from palimpsest.rollout.trajectory_file import MOST_BYTES, frame_end, unpacked
from palimpsest.runs.resume_rules import EVENTS
from palimpsest.runs.run_folder import CONFIG, METRICS, TIMINGS

# ---- The pieces of a file of episodes ------------------------------------------------------------------------


_SNIFFED = 64 << 10
_RAW_LINES = 4 << 20
"""Minimum bytes of complete lines in a piece of a plain file."""


class Damaged(Exception):
    """A truncated or invalid piece."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """[start, end) in the file."""

    start: int
    end: int


def next_piece(file: BinaryIO, start: int, *, compressed: bool) -> FilePiece | None:
    """The piece at `start`; None at the end of the file. Raises Damaged."""
    size = os.fstat(file.fileno()).st_size
    if start >= size:
        return None
    return FilePiece(start, _frame_end(file, start, size) if compressed else _lines_end(file, start, size))


def content_of(file: BinaryIO, piece: FilePiece, *, compressed: bool) -> bytes:
    """The lines of a piece. Raises Damaged for a wrong checksum, and above `MOST_BYTES`."""
    if piece.end - piece.start > MOST_BYTES:
        raise _too_large("a piece")
    file.seek(piece.start)
    data = file.read(piece.end - piece.start)
    if not compressed:
        return data
    try:
        return unpacked(Path(), data)
    except zstandard.ZstdError:
        raise Damaged("a frame is invalid or has a wrong checksum") from None
    except DataError:
        raise _too_large("a frame") from None


def is_compressed(path: Path) -> bool:
    """True if a file of episodes consists of frames."""
    return path.suffix == ".zst"


def begins_with_an_episode(path: Path) -> bool:
    """True if a file's first `_SNIFFED` bytes start with an episode; also for damaged files: opening them reports
    it.
    """
    try:
        state = path.stat()
        return _begins(path, state.st_size, state.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=4096)
def _begins(path: Path, size: int, changed: int) -> bool:
    """Cached per state of a file. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(_SNIFFED)
    if is_compressed(path):
        try:
            data = zstandard.ZstdDecompressor().stream_reader(data).read(_SNIFFED)
        except zstandard.ZstdError:
            return True
        if not data:
            return True  # truncated within its first block
    return _KEYS.search(data) is not None


_KEYS = re.compile(rb'"(?:group_id|before_turn)":')
"""The first key is near the start of a line, unless events with the second precede it."""


def _too_large(what: str) -> Damaged:
    return Damaged(f"{what} is too large: more than {MOST_BYTES >> 20} MiB")


def _frame_end(file: BinaryIO, start: int, size: int) -> int:
    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    end = frame_end(read, start, size)
    if end is None:
        raise Damaged("a frame is truncated or invalid")
    return end


def _lines_end(file: BinaryIO, start: int, size: int) -> int:
    """The end of the last complete line of a piece; the file's last line may lack its newline."""
    file.seek(start)
    data = file.read(_RAW_LINES)
    while b"\n" not in data and len(data) < size - start:
        if len(data) > MOST_BYTES:
            raise _too_large("a line")
        added = file.read(len(data) + _RAW_LINES)
        data += added
        if not added:
            break  # truncated since
    if b"\n" in data:
        return start + data.rfind(b"\n") + 1
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Damaged("the last line is truncated") from None
    return start + len(data)


# ---- Sources under a path ------------------------------------------------------------------------------------


DEPTH = 3
MOST = 500
"""Maximum listed sources; links reach the others too."""
_AGAIN_SECONDS = 1.0
_NO_RECORDS = (METRICS, TIMINGS, EVENTS)
_INNER = ("checkpoints", "trajectories", "evaluations")
"""Folders of a run that never contain another run."""


class NotThere(PalimpsestError):
    """A requested item is missing or was removed."""


class LinkedOut(NotThere):
    """A link in the folder of a run or evaluation leads out of it."""


class SourceKind(StrEnum):
    RUN = "run"
    """A folder with config.yaml."""
    EVALUATION = "evaluation"
    """A folder with samples.jsonl."""
    RECORD = "record"
    """A file of episodes."""


@dataclass(frozen=True, slots=True)
class Source:
    """One item to view."""

    key: str
    """Short, unique, safe in a URL."""
    kind: SourceKind
    path: Path
    name: str
    """Display name: the end of its path."""


class Library:
    """The sources under some paths. Thread-safe."""

    def __init__(self, paths: Sequence[Path], *, wait: bool = False) -> None:
        """`wait`: accept folders without sources. Raises RunError for a path that is missing or contains nothing."""
        self._lock = threading.Lock()
        self._sources: dict[Path, Source] = {}
        self._by_key: dict[str, Source] = {}
        self._listed: tuple[Source, ...] = ()
        self._paths = tuple(path.absolute() for path in paths)
        self._looked = 0.0
        for path in self._paths:
            _refuse(path, wait=wait)
        self._look()

    def sources(self) -> tuple[Source, ...]:
        """Current and former sources: the newest `MOST`."""
        return self.listed()[0]

    def listed(self) -> tuple[tuple[Source, ...], int]:
        """The listed sources, and the number of omitted older ones."""
        with self._lock:
            if time.monotonic() - self._looked > _AGAIN_SECONDS:
                self._look()
            return self._listed, len(self._sources) - len(self._listed)

    def awaited(self) -> tuple[str, ...]:
        """The given folders without any source yet."""
        return tuple(str(path) for path in self._paths if path.is_dir() and next(sources_in(path), None) is None)

    def source(self, key: str) -> Source:
        """Raises NotThere."""
        self.listed()
        with self._lock:
            if key in self._by_key:
                return self._by_key[key]
        raise NotThere(f"{key[:60]!r}: unknown key of a run, evaluation or file")

    def _look(self) -> None:
        for base in self._paths:
            for kind, path in sources_in(base):
                real = path.resolve()
                if real not in self._sources:
                    name = _name(path, base)
                    source = Source(self._key(name), kind, path, name)
                    self._sources[real] = self._by_key[source.key] = source
        listed = list(self._sources.values())
        if len(listed) > MOST:
            newest = {
                source.key for source in sorted(listed, key=lambda source: updated(source) or 0.0, reverse=True)[:MOST]
            }
            listed = [source for source in listed if source.key in newest]
        self._listed = tuple(listed)
        self._looked = time.monotonic()

    def _key(self, name: str) -> str:
        """A unique slug.

        Two runs called `first` become `first` and `first-2`.
        """
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[-48:] or "run"
        numbered = (slug if number == 1 else f"{slug}-{number}" for number in count(1))
        return next(key for key in numbered if key not in self._by_key)


def sources_in(path: Path) -> Iterator[tuple[SourceKind, Path]]:
    """Sources in a path, the path first, without renamed folders (`.old-1`) below it; empty if it is missing."""
    if path.is_file():
        if path.name in (CONFIG, SAMPLES):
            yield from sources_in(path.parent)
        elif path.name == EPISODES and (path.parent / SAMPLES).is_file():
            yield SourceKind.EVALUATION, path.parent  # a record has no score of the agent
        elif is_record(path):
            yield SourceKind.RECORD, path
        return
    if path.name in _INNER and (path.parent / CONFIG).is_file():
        path = path.parent
    yield from _walked(path, path, DEPTH)


def is_record(path: Path) -> bool:
    """True if the file's name is that of a record."""
    return path.name.endswith((".jsonl", ".jsonl.zst")) and path.name not in _NO_RECORDS


def _walked(folder: Path, within: Path, depth: int) -> Iterator[tuple[SourceKind, Path]]:
    """Sources in a folder inside `within`; does not follow links out of `within`."""
    is_run, is_evaluation = (folder / CONFIG).is_file(), (folder / SAMPLES).is_file()
    if is_run:
        yield SourceKind.RUN, folder
    elif is_evaluation:
        yield SourceKind.EVALUATION, folder
    else:
        files = (entry for entry in _entries(folder, within) if is_record(entry) and entry.is_file())
        yield from ((SourceKind.RECORD, file) for file in files if begins_with_an_episode(file))
    if depth == 0:
        return
    within = folder if is_run or is_evaluation else within
    for inner in _entries(folder, within):
        if inner.is_dir() and not is_set_aside(inner) and not (is_run and inner.name in _INNER):
            yield from _walked(inner, within, depth - 1)


def _entries(folder: Path, within: Path) -> list[Path]:
    try:
        shown = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
        entries = [entry for entry in shown if not entry.is_symlink() or not leads_out(within, entry)]
        return sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError:
        return []


def leads_out(folder: Path, path: Path) -> bool:
    """True if a path below `folder` is elsewhere after following links."""
    return not path.resolve().is_relative_to(folder.resolve())


def checked_inside(source: Source, path: Path) -> Path:
    """A path below a source's folder. Raises LinkedOut."""
    if leads_out(source.path, path):
        name = path.relative_to(source.path).as_posix()
        raise LinkedOut(f"{name} links out of {source.name}, which palimpsest does not follow; copy the file")
    return path


def updated(source: Source) -> float | None:
    """Last modification of a source, in seconds since 1970; None if it was removed."""
    names = (METRICS, EVENTS, CONFIG, SAMPLES)
    return last_change(
        [source.path / name for name in names] if source.kind is not SourceKind.RECORD else [source.path]
    )


def last_change(paths: Iterable[Path]) -> float | None:
    """Last modification of any of the files, in seconds since 1970; None if all are missing."""
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)


def gone(source: Source) -> NotThere:
    return NotThere(f"{source.path} was moved or deleted; start the viewer with the new path")


def _name(path: Path, base: Path) -> str:
    if path == base or not path.is_relative_to(base):
        return path.name or str(path)
    inner = path.relative_to(base).as_posix()
    return f"{base.name}/{inner}" if (base / CONFIG).is_file() else inner


def _refuse(path: Path, *, wait: bool) -> None:
    if not path.exists():
        raise RunError(
            f"{path}: no such file or folder; pass a run, an evaluation, or a .jsonl.zst of episodes (palimpsest "
            "quickstart makes a run)"
        )
    if next(sources_in(path), None) is None and not (wait and path.is_dir()):
        raise RunError(
            f"{path}: not a record of episodes; pass a .jsonl.zst, or the folder of a run"
            if path.is_file()
            else f"{path}: contains no run (config.yaml), no evaluation (samples.jsonl) and no file of episodes within "
            f"{DEPTH} folders; pass the --out folder of palimpsest train, eval or replay, or "
            "--follow to wait for one"
        )
