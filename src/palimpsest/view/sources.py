"""What is looked at: runs, evaluations and files of episodes, found from the paths that a user gives.

Guaranteed: files are opened to be read, and nothing is created; a source keeps its key for as long as a library is
there, whatever comes and goes beside it; a folder that is gone stays known, so that a page can say so.
Not covered: runs more than `DEPTH` folders below a path that was given, and more than `MOST` sources.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from palimpsest.errors import PalimpsestError, RunError
from palimpsest.evaluation.samples import SAMPLES
from palimpsest.runs.origin import EVENTS
from palimpsest.runs.run_folder import CONFIG, METRICS, TIMINGS

DEPTH = 3
MOST = 500
_AGAIN_SECONDS = 1.0
_NO_RECORDS = (METRICS, TIMINGS, EVENTS)
_INNER = ("checkpoints", "trajectories", "evaluations")
"""Folders of a run that hold no other run."""


class NotThere(PalimpsestError):
    """What was asked for isn't there, or no longer."""


class Kind(StrEnum):
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
    kind: Kind
    path: Path
    name: str
    """For people: the end of its path."""


class Library:
    """The sources under some paths. Threads may share it."""

    def __init__(self, paths: Sequence[Path], *, wait: bool = False) -> None:
        """`wait`: a folder may hold nothing yet. Raises RunError for a path that is missing or holds nothing."""
        self._lock = threading.Lock()
        self._known: dict[Path, Source] = {}
        self._paths = tuple(path.absolute() for path in paths)
        self._looked = 0.0
        for path in self._paths:
            _refuse(path, wait=wait)
        self._look()

    def sources(self) -> tuple[Source, ...]:
        """Those of now, and those that were there before."""
        with self._lock:
            if time.monotonic() - self._looked > _AGAIN_SECONDS:
                self._look()
            return tuple(self._known.values())

    def awaited(self) -> tuple[str, ...]:
        """The folders given that hold nothing to look at yet."""
        return tuple(str(path) for path in self._paths if path.is_dir() and next(found_in(path), None) is None)

    def source(self, key: str) -> Source:
        """Raises NotThere."""
        for source in self.sources():
            if source.key == key:
                return source
        raise NotThere(f"{key[:60]!r}: no run, evaluation or file of that key is shown here")

    def _look(self) -> None:
        for given in self._paths:
            for kind, path in found_in(given):
                if path not in self._known and len(self._known) < MOST:
                    name = _name(path, given)
                    self._known[path] = Source(self._key(name), kind, path, name)
        self._looked = time.monotonic()

    def _key(self, name: str) -> str:
        """A slug that no other source has.

        Two runs called `first` become `first` and `first-2`.
        """
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[-48:] or "run"
        taken = {source.key for source in self._known.values()}
        return next(
            key for number in range(1, MOST + 2) if (key := slug if number == 1 else f"{slug}-{number}") not in taken
        )


def found_in(path: Path) -> Iterator[tuple[Kind, Path]]:
    """What is to look at in a path, itself first: nothing where it is missing."""
    if path.is_file():
        if path.name in (CONFIG, SAMPLES):
            yield from found_in(path.parent)
        elif is_record(path):
            yield Kind.RECORD, path
        return
    if path.name in _INNER and (path.parent / CONFIG).is_file():
        path = path.parent
    yield from _walked(path, DEPTH)


def is_record(path: Path) -> bool:
    """Whether a file may hold episodes, by its name."""
    return path.name.endswith((".jsonl", ".jsonl.zst")) and path.name not in _NO_RECORDS


def _walked(folder: Path, depth: int) -> Iterator[tuple[Kind, Path]]:
    is_run = (folder / CONFIG).is_file()
    if is_run:
        yield Kind.RUN, folder
    elif (folder / SAMPLES).is_file():
        yield Kind.EVALUATION, folder
    if depth == 0:
        return
    for inner in _folders(folder):
        if not (is_run and inner.name in _INNER):
            yield from _walked(inner, depth - 1)


def _folders(folder: Path) -> list[Path]:
    """The folders in it that aren't hidden, by name; none where it can't be read."""
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError:
        return []


def _name(path: Path, given: Path) -> str:
    """The end of a path: from a folder that was given on, by what it holds there."""
    if path == given or not path.is_relative_to(given):
        return path.name or str(path)
    inner = path.relative_to(given).as_posix()
    return f"{given.name}/{inner}" if (given / CONFIG).is_file() else inner


def _refuse(path: Path, *, wait: bool) -> None:
    if not path.exists():
        raise RunError(f"{path}: no such file or folder; give a run, an evaluation, or a .jsonl.zst of episodes")
    if next(found_in(path), None) is None and not (wait and path.is_dir()):
        raise RunError(
            f"{path}: no record of episodes; give a .jsonl.zst, or the folder of a run"
            if path.is_file()
            else f"{path}: holds no run (config.yaml) and no evaluation (samples.jsonl) within {DEPTH} folders; give "
            "the folder that palimpsest train --out or eval --out wrote, or --follow to wait for what begins there"
        )
