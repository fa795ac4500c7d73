"""One process per run folder.

The kernel holds the lock (flock) and gives it back when the process dies, however it dies; the file's text only says
who holds it. A lock left by a dead process is taken over without a word.

Not covered: folders on network file systems shared by several hosts, where flock may not reach. There the text
decides: a lock that names another host is respected until someone deletes the file.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

import orjson

from palimpsest import files
from palimpsest.errors import RunError

NAME = ".lock"


class FolderLock:
    """Held from construction to `release`, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Raises RunError naming pid and host if another process has `folder`."""
        self.path = folder / NAME
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _claim(self._descriptor, folder)
            self._write(orjson.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": _now()}))
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Give the lock back, once or more.

        The empty file stays: removing it could pull it from under the next holder.
        """
        if self._descriptor < 0:
            return
        self._write(b"")
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, text: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)


def refuse_in_use(folder: Path) -> None:
    """Raise RunError naming pid and host if another process has `folder`; its lock file stays as it is."""
    if not (folder / NAME).is_file():
        return
    with files.naming(folder / NAME):
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
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


def _holder(text: bytes) -> dict[str, object]:
    """What the lock file says; empty if it says nothing readable."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) and {"pid", "host", "started"} <= data.keys() else {}


def _words(holder: dict[str, object]) -> str:
    if not holder:
        return "another process"
    return f"process {holder['pid']} on {holder['host']} since {holder['started']}"


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
