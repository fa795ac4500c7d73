"""Folder locks: one process per run folder, rules for renaming folders, and safe output paths.

The kernel holds the lock (flock) and releases it when the process dies; the file's text only names the holder. A new
process silently takes over the lock of a dead one. A folder with a run in it or around it, or with a writing process,
may not be renamed. A new data set appears atomically.

Not covered: network file systems shared by several hosts, where flock may not work. There the text decides: a lock
that names another host stays valid until someone deletes the file. A process that starts between the check and the
rename; links to folders, which are not followed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from palimpsest import files
from palimpsest.errors import ConfigError, RunError
from palimpsest.notes import Note
from palimpsest.progress.reporter import Progress
from palimpsest.runs.resume_rules import EVENTS

NAME = ".lock"


class FolderLock:
    """Lock from construction to `release`, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Raise RunError with pid and host if another process has `folder`."""
        self.path = folder / NAME
        self._descriptor = files.open_descriptor(self.path, os.O_RDWR | os.O_CREAT)
        try:
            _claim(self._descriptor, folder)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            self._write(orjson.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started}))
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Release the lock; repeatable. The empty file remains, since removing it could remove the next holder's."""
        if self._descriptor < 0:
            return
        self._write(b"")
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, text: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)


def refuse_in_use(folder: Path) -> None:
    """Raise RunError with pid and host if another process has `folder`; its lock file stays unchanged."""
    if not (folder / NAME).is_file():
        return
    descriptor = files.open_descriptor(folder / NAME, os.O_RDONLY)
    try:
        _claim(descriptor, folder)
    finally:
        os.close(descriptor)


def _claim(descriptor: int, folder: Path) -> None:
    """Lock the file for as long as it is open. Raises RunError if another process has it."""
    holder = _holder(os.pread(descriptor, 4096, 0))
    try:
        with files.naming(folder / NAME):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"{folder} is in use by {_words(holder)}: wait for it, or choose another folder") from None
    if holder and holder["host"] != socket.gethostname():
        raise RunError(f"{folder} is in use by {_words(holder)}: if that process is gone, delete {folder / NAME}")


def _holder(text: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) and {"pid", "host", "started"} <= data.keys() else {}


def _words(holder: dict[str, object]) -> str:
    if not holder:
        return "another process"
    return f"process {holder['pid']} on {holder['host']} since {holder['started']}"


# ---- Folders that may be renamed -----------------------------------------------------------------------------


CONFIG = "config.yaml"


def is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and ((folder / EVENTS).exists() or (folder / NAME).exists())


def refuse_moving(folder: Path, *, independent: bool) -> None:
    """Raise RunError if renaming `folder` would move runs, a part of a run, or files that a process writes.

    `independent`: a run around it does not need its content.
    """
    for around in folder.resolve().parents:
        if is_run(around):
            refuse_in_use(around)
            if not independent:
                raise RunError(f"{folder} is a part of the run {around}, which --force doesn't move: use another --out")
    for below in folders(folder):
        refuse_in_use(below)
        if below != folder and is_run(below) and not is_run(folder):
            raise RunError(f"{folder} contains the run {below}, which --force doesn't move: use another --out")


def visible_names(folder: Path) -> list[str]:
    """Names in `folder` that are not hidden, in order; empty for no folder."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []


def folders(folder: Path) -> Iterator[Path]:
    return (Path(path) for path, _, _ in os.walk(folder))


# ---- Output paths of a data set ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """A data set that was written."""

    folder: Path
    edition: str
    problems: dict[str, int]
    left_out: Mapping[str, Any] = field(default_factory=dict)
    """Skipped questions by reason; or skipped tasks, with the option that each needs."""


@contextmanager
def new_folder(out: Path, *, force: bool, progress: Progress) -> Iterator[Path]:
    """Yield a hidden folder that becomes `out` at the end; renames a non-empty `out`, or raises RunError without
    `force`, and while another process writes `out`."""
    check_free(out, force=force)
    with draft_folder(out.absolute()) as draft:
        yield draft
        if out.is_dir() and any(out.iterdir()):
            progress.message(Note("moved_aside", path=str(out), moved=str(files.set_aside(out))))
        files.publish_folder(draft, out.absolute())


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder next to `out` for its content; at the end it is gone, and new parents that are still empty.
    Raises RunError while another process has it."""
    hidden = files.hidden_name(out)
    made = [parent for parent in hidden.parents if not parent.exists()]
    hidden.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(hidden)
    try:
        draft = hidden / out.name
        if os.path.lexists(draft):  # of a killed process
            files.remove_tree(draft)
        draft.mkdir()
        yield draft
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        lock.release()
        with suppress(OSError):  # not empty
            for parent in made:
                parent.rmdir()


def check_free(out: Path, *, force: bool) -> None:
    """Raise RunError unless a folder may be written at `out`."""
    if os.path.lexists(out) and not out.is_dir():
        raise RunError(f"{out} is {'a file' if out.exists() else 'a link to nothing'}: use a folder")
    if out.is_dir() and any(out.iterdir()):
        if not force:
            raise RunError(f"{out} is not empty: use another --out, or --force to rename it")
        refuse_moving(out, independent=False)


def free_file(out: Path, *, force: bool, progress: Progress, option: str = "--out") -> None:
    """Make room for a file: with `force` rename an existing one, otherwise raise RunError."""
    if out.is_dir():
        raise RunError(f"{out} is a folder: use the path of a file")
    if os.path.lexists(out):
        if not force:
            raise RunError(f"{out} exists: use another {option}, or --force to rename it")
        progress.message(Note("moved_aside", path=str(out), moved=str(files.set_aside(out))))


def refuse_inside(out: Path, read: Iterable[Path], option: str) -> None:
    """Raise ConfigError if `out` is a file in `read`, or inside such a folder; follows links."""
    target = out.resolve()
    for path in read:
        inside = path.is_dir() and target.is_relative_to(path.resolve())
        if inside or target == path.resolve() or (target.is_file() and path.is_file() and target.samefile(path)):
            what = f"is inside the input folder {path}" if inside else f"is the input file {path}"
            raise ConfigError(f"{option} {out} {what}: use another path")
