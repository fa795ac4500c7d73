"""Opening files that may be anything: a pipe or a device under a file's name is refused instead of waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """A regular file, to be read. Raises OSError, also for a pipe, a socket, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would wait
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int = -1) -> bytes:
    """Content of a regular file; of one of more than `most` bytes so many. Raises OSError."""
    with open_regular(path) as file:
        return file.read(most)
