"""Whether a folder may be moved aside: not with a run in it or around it, nor while a process writes there.

Not covered: a process that begins in the moment between the question and the move; links to folders, which are not
followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from palimpsest.errors import RunError
from palimpsest.runs.lock import NAME as LOCK
from palimpsest.runs.lock import refuse_in_use
from palimpsest.runs.origin import EVENTS

CONFIG = "config.yaml"


def is_run(folder: Path) -> bool:
    """Whether a run began in `folder`."""
    return (folder / CONFIG).is_file() and ((folder / EVENTS).exists() or (folder / LOCK).exists())


def refuse_moving(folder: Path, *, whole: bool) -> None:
    """Raise RunError if moving `folder` takes runs along, a part of a run, or what a process is writing.

    `whole`: it holds something of its own, which a run around it does without.
    """
    for around in folder.resolve().parents:
        if is_run(around):
            refuse_in_use(around)
            if not whole:
                raise RunError(
                    f"{folder} is a part of the run {around}, which --force doesn't move: give another --out"
                )
    for below in folders(folder):
        refuse_in_use(below)
        if below != folder and is_run(below) and not is_run(folder):
            raise RunError(f"{folder} holds the run {below}, which --force doesn't move: give another --out")


def folders(folder: Path) -> Iterator[Path]:
    """`folder` and the folders below it."""
    return (Path(path) for path, _, _ in os.walk(folder))
