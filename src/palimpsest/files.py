"""Atomic, durable file operations; a digest that detects changed files.

Every file that a run relies on after a crash goes through these functions: a file appears whole or not at all, one
rename publishes a folder. Each function is one step of a protocol, so a test can stop after any.

Guaranteed on a local POSIX file system: after `write_file`, `drafted` or `publish_folder` returns, the content survives
the death of the process and of the machine. A crash leaves only hidden files (names that start with a dot and contain
`palimpsest`). System errors name their file or folder. No other names are touched.
Not covered: network file systems without atomic rename; disks that acknowledge a flush they didn't do.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from palimpsest.errors import DataError, PalimpsestError

_PARTIAL = ".palimpsest-partial"
_TRASH = ".palimpsest-trash-"


class NoRegularFile(PalimpsestError, OSError):
    """A pipe, a socket, a device or a folder instead of a file."""

    def __init__(self, path: Path, what: str = "a pipe or a device") -> None:
        super().__init__(errno.EINVAL, f"{what}; remove it, or restore the file", os.fspath(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_descriptor(path: Path, flags: int, mode: int = 0o644) -> int:
    """`os.open` for a regular file only, without waiting for pipes or devices. Raises OSError."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)  # a pipe without a writer would wait
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            raise NoRegularFile(path) from None
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise NoRegularFile(path, "a link") from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise NoRegularFile(path, "a folder") if stat.S_ISDIR(kind) else NoRegularFile(path)
    return descriptor


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError."""
    return open(open_descriptor(path, os.O_RDONLY), "rb")


def read_regular(path: Path, most: int = -1) -> bytes:
    """Read a regular file, at most `most` bytes. Raises OSError."""
    with open_regular(path) as file:
        return file.read(most)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to system errors without a file name, such as those of a write or a flush."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def hidden_name(path: Path) -> Path:
    """Name of `path` until it is complete.

    >>> hidden_name(Path("data/train.jsonl")).as_posix()
    'data/.train.jsonl.palimpsest-partial'
    """
    return path.with_name(f".{path.name}{_PARTIAL}")


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, replacing the old content in one step."""
    partial = hidden_name(path)
    try:
        write_plain(partial, data)
        sync(partial)
        rename(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def drafted(path: Path) -> Iterator[TextIO]:
    """Open a text file that becomes `path` once complete; creates its folder. Raises DataError before any work, also
    while another process writes `path`."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; use the path of a file")
    draft = hidden_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = draft.open("a", encoding="utf-8", errors="replace", newline="\n")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), draft.stat()):  # published in this moment
            raise BlockingIOError
        file.truncate()
    except BlockingIOError:
        raise DataError(f"{path}: another process writes it; wait for it, or use another path") from None
    except OSError as error:
        raise DataError(f"{path}: not writable ({error.strerror}); use another path") from None
    with naming(path), file:  # locked until the rename
        try:
            yield file
            file.flush()
            sync(draft)
            rename(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    sync(path.parent)


def write_plain(path: Path, data: bytes) -> None:
    """Write `data` in place; a crash may leave a part of it."""
    with naming(path):
        path.write_bytes(data)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Move within one file system, replacing a file of that name."""
    os.replace(source, target)


def publish_folder(hidden: Path, path: Path) -> None:
    """Rename the finished folder `hidden` to `path`, moving away an existing folder first."""
    for file in sorted(hidden.rglob("*")):
        sync(file)
    sync(hidden)
    empty_trash(path)
    if os.path.lexists(path):
        rename(path, _trash(path))
    rename(hidden, path)
    sync(path.parent)
    empty_trash(path)  # last: removing a large folder takes seconds


def publish_new(hidden: Path, path: Path) -> None:
    """Rename the finished folder `hidden` to the unused name `path`, for one caller. Raises FileExistsError."""
    for file in sorted(hidden.rglob("*")):
        sync(file)
    sync(hidden)
    path.mkdir()  # takes the name, or fails
    try:
        rename(hidden, path)  # onto an empty folder alone
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # what came there in this moment
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path)) from None
        raise
    sync(path.parent)


def set_aside(path: Path) -> Path:
    """Rename a file or folder to `NAME.old-1`, `NAME.old-2`..., the first that is free; returns its new place. Raises
    DataError for one that has no name here."""
    if path.name in ("", ".."):
        raise DataError(f"{path}: has no name to rename; use the folder's name")
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.old-{number}")):
        number += 1
    rename(path, aside)
    return aside


def is_set_aside(path: Path) -> bool:
    """True for a name that `set_aside` gives."""
    return re.search(r"\.old-\d+$", path.name) is not None


def discard(path: Path) -> None:
    """Remove a folder: a rename hides it first, so no one sees a part of it."""
    empty_trash(path)
    rename(path, _trash(path))
    empty_trash(path)


def empty_trash(path: Path) -> None:
    """Remove the rest of a folder of that name whose removal a crash interrupted."""
    if os.path.lexists(_trash(path)):
        remove_tree(_trash(path))


def remove_tree(path: Path) -> None:
    """Remove a folder and its content, a file, or only the link to one; a crash may leave a part of a folder."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove hidden files that crashed writes and removals left in `folder`."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(_TRASH) or (entry.name.startswith(".") and entry.name.endswith(_PARTIAL)):
            remove_tree(entry)


def hidden_folder(path: Path) -> Path:
    """Create an empty hidden folder next to `path`, to fill and publish under that name."""
    hidden = hidden_name(path)
    if hidden.exists():
        remove_tree(hidden)
    hidden.mkdir(parents=True)
    return hidden


def new_hidden_folder(path: Path) -> Path:
    """Create an empty hidden folder next to `path`, unique to this caller, to fill and publish; a kill leaves it."""
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}")
    hidden.mkdir(parents=True)
    return hidden


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path, paths: Iterable[Path] | None = None) -> dict[str, str]:
    """SHA-256 of `paths`, or of every file in `folder` and below, by its path relative to `folder`."""
    if paths is None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths}


def _trash(path: Path) -> Path:
    return path.with_name(f"{_TRASH}{path.name}")
