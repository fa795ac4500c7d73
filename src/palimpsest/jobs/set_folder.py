"""Where a data set is written to: a folder, or a file, that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from palimpsest import files
from palimpsest.errors import ConfigError, RunError
from palimpsest.progress.progress import Progress
from palimpsest.runs.moving import refuse_moving


@dataclass(frozen=True, slots=True)
class Made:
    """A data set that was written."""

    folder: Path
    edition: str
    problems: dict[str, int]
    """By file."""


@contextmanager
def new_folder(out: Path, *, force: bool, progress: Progress) -> Iterator[Path]:
    """A hidden folder that becomes `out` at the end; what `out` held is moved aside then. Raises RunError at once where
    it holds something and `force` isn't given."""
    check_free(out, force=force)
    hidden = files.hidden_folder(out.absolute())
    try:
        yield hidden
        if out.is_dir() and any(out.iterdir()):
            progress.message(f"{out}: what it held is now {files.set_aside(out)}")
        files.publish_folder(hidden, out.absolute())
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def check_free(out: Path, *, force: bool) -> None:
    """Raises RunError unless a folder may be written at `out`."""
    if os.path.lexists(out) and not out.is_dir():
        raise RunError(f"{out} is {'a file' if out.exists() else 'a link to nothing'}: a folder is needed")
    if out.is_dir() and any(out.iterdir()):
        if not force:
            raise RunError(f"{out} is not empty: give another --out, or --force to move it aside")
        refuse_moving(out, whole=False)


def free_file(out: Path, *, force: bool, progress: Progress, option: str = "--out") -> None:
    """Make room for a file: what is there is moved aside with `force`, and refused without. Raises RunError."""
    if out.is_dir():
        raise RunError(f"{out} is a folder: give the path of a file")
    if os.path.lexists(out):
        if not force:
            raise RunError(f"{out} is there: give another {option}, or --force to move it aside")
        progress.message(f"{out}: what it held is now {files.set_aside(out)}")


def refuse_inside(out: Path, read: Iterable[Path], option: str) -> None:
    """Raise ConfigError if `out` is a file that is `read`, or lies in such a folder, links followed."""
    target = out.resolve()
    for path in read:
        inside = path.is_dir() and target.is_relative_to(path.resolve())
        if inside or target == path.resolve() or (target.is_file() and path.is_file() and target.samefile(path)):
            what = f"lies inside {path}, whose files are only read" if inside else f"is {path}, which is read"
            raise ConfigError(f"{option} {out}: {what}; give a path elsewhere")
