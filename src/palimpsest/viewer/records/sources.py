"""Viewer sources: runs, evaluations and episode files under a path, and the pieces of a file.

A piece is a frame of a .zst (rollout/trajectory_file.py) or some megabytes of lines of a plain file. A file in a folder
is a source if its first line is an episode; a file that a user names always is one.

Guaranteed: files are only read, and nothing is created; a source keeps its key while the library exists; a folder that
is gone stays known, so that a page can report it; several links to one target are one source; a link out of a run's or
evaluation's folder, or out of the folder that was named, is not followed; of more than `MOST` the newest are listed and
the rest counted; a cut or invalid piece is reported and never read; at most `MOST_BYTES` of a frame, a line or a group
of a plain file are held, whatever a header claims.
Not covered: anything more than `DEPTH` folders below a given path; other files next to those of a run or evaluation.
"""

from __future__ import annotations

import io
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

from palimpsest.errors import PalimpsestError, RunError
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.evaluation.sample_log import SAMPLES
from palimpsest.files import open_regular
from palimpsest.rollout.trajectory_file import frame_end
from palimpsest.runs.resume_rules import EVENTS
from palimpsest.runs.run_folder import CONFIG, METRICS, TIMINGS

# ---- The pieces of a file of episodes ------------------------------------------------------------------------


MOST_BYTES = 256 << 20
"""Of a frame's content."""
_STEP = 4 << 20
"""Bytes that are unpacked at once."""
_SNIFFED = 64 << 10
_RAW_LINES = 4 << 20
"""Bytes of whole lines that a piece of a plain file has at least."""


class Damaged(Exception):
    """A piece is cut short, or isn't what it claims."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """[start, end) in the file."""

    start: int
    end: int


def next_piece(file: BinaryIO, start: int, *, compressed: bool) -> FilePiece | None:
    """The piece that begins at `start`; None at the end of the file. Raises Damaged."""
    size = os.fstat(file.fileno()).st_size
    if start >= size:
        return None
    return FilePiece(start, _frame_end(file, start, size) if compressed else _lines_end(file, start, size))


def content_of(file: BinaryIO, piece: FilePiece, *, compressed: bool) -> bytes:
    """The lines in a piece. Raises Damaged for a wrong checksum, and for more than `MOST_BYTES`."""
    if piece.end - piece.start > MOST_BYTES:
        raise _too_large("a piece")
    file.seek(piece.start)
    data = file.read(piece.end - piece.start)
    if not compressed:
        return data
    try:
        if zstandard.frame_content_size(data) > MOST_BYTES:
            raise _too_large("a frame")
        return _unpacked(data)
    except zstandard.ZstdError:
        raise Damaged("a frame's checksum is wrong, or it isn't one") from None


def is_compressed(path: Path) -> bool:
    """Whether a file of episodes holds frames."""
    return path.suffix == ".zst"


def begins_with_an_episode(path: Path) -> bool:
    """Whether a file's first line is an episode's, as far as its first `_SNIFFED` bytes tell; so is one that can't be
    unpacked, as that is told where it is opened."""
    try:
        state = path.stat()
        return _begins(path, state.st_size, state.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=4096)
def _begins(path: Path, size: int, changed: int) -> bool:
    """Once for each state of a file. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(_SNIFFED)
    if is_compressed(path):
        try:
            data = zstandard.ZstdDecompressor().stream_reader(data).read(_SNIFFED)
        except zstandard.ZstdError:
            return True
        if not data:
            return True  # cut within its first block
    return _KEYS.search(data) is not None


_KEYS = re.compile(rb'"(?:group_id|before_turn)":')
"""A line has the first of them among its first keys, unless events that have the other stand before it."""


def _unpacked(data: bytes) -> bytes:
    """Content of a frame, a step at a time. Raises Damaged as soon as it is too large."""
    content = io.BytesIO()
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        while step := reader.read(_STEP):
            if content.tell() + len(step) > MOST_BYTES:
                raise _too_large("a frame")
            content.write(step)
    return content.getvalue()


def _too_large(what: str) -> Damaged:
    return Damaged(f"{what} is too large: more than {MOST_BYTES >> 20} MiB")


def _frame_end(file: BinaryIO, start: int, size: int) -> int:
    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    end = frame_end(read, start, size)
    if end is None:
        raise Damaged("a frame is cut short, or what follows is none")
    return end


def _lines_end(file: BinaryIO, start: int, size: int) -> int:
    """The end of the last whole line of a piece; the file's last may lack its newline, if it is whole."""
    file.seek(start)
    data = file.read(_RAW_LINES)
    while b"\n" not in data and len(data) < size - start:
        if len(data) > MOST_BYTES:
            raise _too_large("a line")
        added = file.read(len(data) + _RAW_LINES)
        data += added
        if not added:
            break  # the file was cut back since
    if b"\n" in data:
        return start + data.rfind(b"\n") + 1
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Damaged("the last line is cut short") from None
    return start + len(data)


# ---- Sources under a path ------------------------------------------------------------------------------------


DEPTH = 3
MOST = 500
"""Sources that are listed; a link leads to the others too."""
_AGAIN_SECONDS = 1.0
_NO_RECORDS = (METRICS, TIMINGS, EVENTS)
_INNER = ("checkpoints", "trajectories", "evaluations")
"""Folders of a run that hold no other run."""


class NotThere(PalimpsestError):
    """What was asked for isn't there, or no longer."""


class LinkedOut(NotThere):
    """A link in the folder of a run or evaluation leads out of it."""


class SourceKind(StrEnum):
    """What a path holds."""

    RUN = "run"
    """A folder with config.yaml."""
    EVALUATION = "evaluation"
    """A folder with samples.jsonl."""
    RECORD = "record"
    """A file of episodes."""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to look at."""

    key: str
    """Short, unique, safe in a URL."""
    kind: SourceKind
    path: Path
    name: str
    """For people: the end of its path."""


class Library:
    """The sources under some paths. Threads may share it."""

    def __init__(self, paths: Sequence[Path], *, wait: bool = False) -> None:
        """`wait`: a folder may hold nothing yet. Raises RunError for a path that is missing or holds nothing."""
        self._lock = threading.Lock()
        self._sources: dict[Path, Source] = {}
        """By resolved path."""
        self._by_key: dict[str, Source] = {}
        self._listed: tuple[Source, ...] = ()
        self._paths = tuple(path.absolute() for path in paths)
        self._looked = 0.0
        for path in self._paths:
            _refuse(path, wait=wait)
        self._look()

    def sources(self) -> tuple[Source, ...]:
        """Those of now, and those that were there before: the newest `MOST`."""
        return self.listed()[0]

    def listed(self) -> tuple[tuple[Source, ...], int]:
        """The sources that are listed, and how many older ones are left out."""
        with self._lock:
            if time.monotonic() - self._looked > _AGAIN_SECONDS:
                self._look()
            return self._listed, len(self._sources) - len(self._listed)

    def awaited(self) -> tuple[str, ...]:
        """The folders given that hold nothing to look at yet."""
        return tuple(str(path) for path in self._paths if path.is_dir() and next(sources_in(path), None) is None)

    def source(self, key: str) -> Source:
        """Raises NotThere."""
        self.listed()
        with self._lock:
            if key in self._by_key:
                return self._by_key[key]
        raise NotThere(f"{key[:60]!r}: no run, evaluation or file of that key is shown here")

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
        """A slug that no other source has.

        Two runs called `first` become `first` and `first-2`.
        """
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[-48:] or "run"
        numbered = (slug if number == 1 else f"{slug}-{number}" for number in count(1))
        return next(key for key in numbered if key not in self._by_key)


def sources_in(path: Path) -> Iterator[tuple[SourceKind, Path]]:
    """What is to look at in a path, itself first: nothing where it is missing."""
    if path.is_file():
        if path.name in (CONFIG, SAMPLES):
            yield from sources_in(path.parent)
        elif path.name == EPISODES and (path.parent / SAMPLES).is_file():
            yield SourceKind.EVALUATION, path.parent  # the record alone has no score of the agent
        elif is_record(path):
            yield SourceKind.RECORD, path
        return
    if path.name in _INNER and (path.parent / CONFIG).is_file():
        path = path.parent
    yield from _walked(path, path, DEPTH)


def is_record(path: Path) -> bool:
    """Whether a file may hold episodes, by its name."""
    return path.name.endswith((".jsonl", ".jsonl.zst")) and path.name not in _NO_RECORDS


def _walked(folder: Path, within: Path, depth: int) -> Iterator[tuple[SourceKind, Path]]:
    """What is in a folder that is itself inside `within`: no link out of that is followed."""
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
        if inner.is_dir() and not (is_run and inner.name in _INNER):
            yield from _walked(inner, within, depth - 1)


def _entries(folder: Path, within: Path) -> list[Path]:
    """What is in a folder, by name, links last, without what is hidden or leads out of `within`; nothing where it
    can't be read."""
    try:
        shown = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
        entries = [entry for entry in shown if not entry.is_symlink() or not leads_out(within, entry)]
        return sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError:
        return []


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path below `folder` is somewhere else, links followed."""
    return not path.resolve().is_relative_to(folder.resolve())


def checked_inside(source: Source, path: Path) -> Path:
    """A path below a source's folder. Raises LinkedOut."""
    if leads_out(source.path, path):
        name = path.relative_to(source.path).as_posix()
        raise LinkedOut(f"{name} leads out of {source.name}: links out of its folder are not followed; copy the file")
    return path


def updated(source: Source) -> float | None:
    """When a source was last written to, in seconds since 1970; None of what is gone."""
    names = (METRICS, EVENTS, CONFIG, SAMPLES)
    return last_change(
        [source.path / name for name in names] if source.kind is not SourceKind.RECORD else [source.path]
    )


def last_change(paths: Iterable[Path]) -> float | None:
    """When any of some files was last written to, in seconds since 1970; None where none is there."""
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)


def gone(source: Source) -> NotThere:
    """What a page says of one that isn't there any more."""
    return NotThere(f"{source.path} was moved or deleted while it was shown; start the viewer on its new place")


def _name(path: Path, base: Path) -> str:
    """The end of a path: from a folder that was given on, by what it holds there."""
    if path == base or not path.is_relative_to(base):
        return path.name or str(path)
    inner = path.relative_to(base).as_posix()
    return f"{base.name}/{inner}" if (base / CONFIG).is_file() else inner


def _refuse(path: Path, *, wait: bool) -> None:
    if not path.exists():
        raise RunError(f"{path}: no such file or folder; give a run, an evaluation, or a .jsonl.zst of episodes")
    if next(sources_in(path), None) is None and not (wait and path.is_dir()):
        raise RunError(
            f"{path}: no record of episodes; give a .jsonl.zst, or the folder of a run"
            if path.is_file()
            else f"{path}: holds no run (config.yaml), no evaluation (samples.jsonl) and no file of episodes within "
            f"{DEPTH} folders; give the folder that palimpsest train --out, eval --out or replay --out wrote, or "
            "--follow to wait for what begins there"
        )
