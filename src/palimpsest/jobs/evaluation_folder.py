"""The folder an evaluation writes into: whose it is, and what `force` makes of what is there.

Guaranteed: a folder that holds a run, or anything else than an evaluation, is refused and left as it is; with `force`
it is renamed to `NAME.old-1`, `.old-2`..., never deleted, unless a process writes in it or in a run around it, the
model lies in it, or it holds runs or is a part of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from palimpsest import files
from palimpsest.errors import RunError
from palimpsest.evaluation.asked import ASKED
from palimpsest.evaluation.episodes import EPISODES
from palimpsest.evaluation.samples import IDENTITY, SAMPLES, refuse_in_use
from palimpsest.evaluation.transcripts import TRANSCRIPTS
from palimpsest.jobs.judge_card import CARD
from palimpsest.runs.moving import folders, refuse_moving
from palimpsest.runs.run_folder import CONFIG


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
        _refuse_moving(out, names)
    elif CONFIG in names:
        raise RunError(f"{out} holds a run: give the evaluation another --out, or --force to move the run aside")
    elif IDENTITY not in names and set(names) - {SAMPLES, ASKED, TRANSCRIPTS, EPISODES, CARD}:
        raise RunError(
            f"{out} holds {', '.join(names[:3])} but no {IDENTITY}: not an evaluation; give another --out, "
            "or --force to move it aside"
        )


def move_aside(out: Path | None, tell: Callable[[str], None]) -> None:
    """Make room for an evaluation that begins anew, and tell where the old folder is. Raises RunError."""
    if out is not None and (names := _visible(out)):
        _refuse_moving(out, names)
        tell(f"{out}: what it held is now {files.set_aside(out)}")


def _refuse_moving(out: Path, names: list[str]) -> None:
    """Refuse to move what a process writes to, and runs that are in or around `out`; a run may be moved itself."""
    refuse_moving(out, whole=IDENTITY in names or not names)
    for folder in folders(out):
        refuse_in_use(folder)


def _visible(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
