"""`palimpsest export`: the model of a checkpoint as a folder of its own, for servers and for other people.

Guaranteed: the checkpoint verifies before anything is copied; the folder appears whole or not at all; without a dtype
every file is the checkpoint's, byte for byte, and nothing that its manifest doesn't name is copied.
Not covered: merging an adapter into its model; other formats than Hugging Face's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from palimpsest import files
from palimpsest.config.model import Dtype
from palimpsest.engines.open import cast
from palimpsest.errors import CheckpointError, RunError
from palimpsest.model_files.manifest import MANIFEST, read_manifest
from palimpsest.runs.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    checkpoint_paths,
    checkpoint_step,
    newest_intact,
    step_name,
    verify,
)

DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    step: int
    path: Path
    size: int
    """Bytes."""


def export(
    run: str | Path,
    to: str | Path,
    *,
    step: int | None = None,
    dtype: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Copy the model of a run's checkpoint, its newest or the one of `step`, to the folder `to`.

    `dtype`: float32 or bfloat16; None: as it is. Raises RunError and CheckpointError.
    """
    run, to = Path(run), Path(to)
    if dtype not in (None, *DTYPES):
        raise RunError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}")
    if to.exists() or to.is_symlink():
        raise RunError(f"--to {to}: is there already; give a folder that isn't")
    if run.resolve() in to.resolve().parents:
        raise RunError(f"--to {to}: is inside the run; give a folder elsewhere")
    checkpoint = _chosen(run, step, warn)
    hidden = files.hidden_folder(to)
    try:
        for name in read_manifest(checkpoint.path / MANIFEST)["files"]:
            if (file := checkpoint.path / name).is_symlink():
                raise CheckpointError(f"{file} is a link: put the file itself in its place")
            if Path(name).name == name:
                shutil.copyfile(file, hidden / name)
        if dtype is not None:
            cast(hidden, dtype)
        files.publish_folder(hidden, to)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return Exported(checkpoint.step, to, sum(file.stat().st_size for file in to.iterdir()))


def _chosen(run: Path, step: int | None, warn: Callable[[str], None]) -> Checkpoint:
    folder = run / CHECKPOINTS
    if step is None:
        newest = newest_intact(folder, warn)
        if newest is None:
            raise RunError(f"{run}: has no checkpoint; give the folder of a run that has saved one")
        return newest
    path = folder / step_name(step)
    if not path.is_dir():
        there = ", ".join(str(checkpoint_step(each)) for each in checkpoint_paths(folder)) or "none"
        raise CheckpointError(f"{run}: has no checkpoint of step {step}; it has those of {there}")
    return verify(path)
