"""The folder an evaluation writes into: whose it is, and what `force` makes of what is there.

Guaranteed: a folder that holds a run, or anything else than an evaluation, is refused and left as it is; with `force`
it is renamed to `NAME.old-1`, `.old-2`..., never deleted, unless a process writes to it or the model lies in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from palimpsest import files
from palimpsest.errors import RunError
from palimpsest.evaluation.samples import IDENTITY, SAMPLES, refuse_in_use
from palimpsest.evaluation.transcripts import TRANSCRIPTS
from palimpsest.runs.lock import NAME as LOCK
from palimpsest.runs.lock import FolderLock
from palimpsest.runs.run_folder import CONFIG

SUMMARY = "summary.json"


def check_folder(out: Path | None, *, model: str, force: bool) -> None:
    """Refuse what an evaluation must not write into, before anything is loaded; None: it writes nothing. Raises
    RunError."""
    if out is None:
        return
    if os.path.lexists(out) and not out.is_dir():
        raise RunError(f"{out} is {'a file' if out.exists() else 'a link to nothing'}; an evaluation needs a folder")
    names = _visible(out)
    if force:
        if names and out.resolve() in (Path(model).resolve(), *Path(model).resolve().parents):
            raise RunError(f"{out} holds the model {model}, which --force would move aside with it: give another --out")
        _refuse_in_use(out)
    elif CONFIG in names:
        raise RunError(f"{out} holds a run: give the evaluation another --out, or --force to move the run aside")
    elif IDENTITY not in names and set(names) - {SAMPLES, TRANSCRIPTS}:
        raise RunError(
            f"{out} holds {', '.join(names[:3])} but no {IDENTITY}: not an evaluation; give another --out, "
            "or --force to move it aside"
        )


def move_aside(out: Path | None, tell: Callable[[str], None]) -> None:
    """Make room for an evaluation that begins anew, and tell where the old folder is. Raises RunError."""
    if out is not None and _visible(out):
        _refuse_in_use(out)
        tell(f"{out}: what it held is now {files.set_aside(out)}")


def _refuse_in_use(out: Path) -> None:
    refuse_in_use(out)
    if (out / LOCK).exists():
        FolderLock(out).release()


def _visible(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
