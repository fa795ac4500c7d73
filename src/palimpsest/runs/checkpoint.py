"""Checkpoints that survive a crash at any moment and never load silently when damaged.

A checkpoint is a folder `step-000040` with what the learner wrote and `manifest.json`: size and SHA-256 of every file
(from the learner), the step, the state of the loop, and the identity of the configuration. It is written in a hidden
folder, flushed, verified, and published by one rename. A resume takes the newest that verifies.

Verifying reads every file once more, although its writer has hashed it: ranks may have written it on other machines,
and it must be intact where the run continues. It costs the reading and a SHA-256, 8 files at once.

Guaranteed: a save that fails (disk full, crash) leaves older checkpoints unchanged. A flipped bit or a missing byte
anywhere, the manifest included, makes a checkpoint unusable, and the one before it is taken with a warning. An old
checkpoint is removed only after the new one has been read back. The next resume (`tidy`) or save removes what an
interrupted save or prune left.
Not covered: an attacker who rewrites the hashes as well; two processes on one folder (the run folder's lock does that).
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.errors import CheckpointError, NotWritten
from palimpsest.models.checkpoint_manifest import FORMAT, MANIFEST, read_manifest, sealed, verify_files
from palimpsest.notes import Note
from palimpsest.provenance import MADE_WITH, environment

Write = Callable[[Path], Awaitable[Mapping[str, str]]]
"""Writes files into an empty folder; returns the SHA-256 of each by its path relative to it."""

CHECKPOINTS = "checkpoints"
"""In the run folder."""
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that verified."""

    path: Path
    step: int
    """Rollout batches behind it."""
    identity: str
    """Of the configuration it belongs to."""
    state: Mapping[str, Any]
    """The loop's own, besides the learner's files."""
    size: int
    """Bytes of all files."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, identity: str, keep: int = 2, warn: Callable[[str], None] = print) -> None:
        """`identity`: what a checkpoint and a resuming run must have in common; any string."""
        self.folder = folder
        self._identity = identity
        self._keep = keep
        self._warn = warn

    async def save(self, step: int, write: Write, state: Mapping[str, Any], *, name: str | None = None) -> Checkpoint:
        """Publish a checkpoint: `write` puts the learner's files into an empty folder, `state` must be JSON.

        One with a `name` of its own takes the place of the last so called; no run goes on from it, none removes it.

        Raises CheckpointError, leaving everything as it was, if the files can't be written, or are not what `write`
        says it wrote.
        """
        path = self.folder / (name or step_name(step))
        self.folder.mkdir(exist_ok=True)
        files.remove_leftovers(self.folder)
        hidden = files.hidden_folder(path)
        try:
            written = await write(hidden)
            files.write_plain(hidden / MANIFEST, _manifest(hidden, written, step, self._identity, state))
            saved = await asyncio.to_thread(verify, hidden, step=step)  # read back before it can replace anything
            await asyncio.to_thread(files.publish_folder, hidden, path)
        except Exception as error:  # whatever it was, no half checkpoint stays behind
            size = _size(hidden)
            shutil.rmtree(hidden, ignore_errors=True)
            if not isinstance(error, OSError | NotWritten) and type(error).__name__ != "SafetensorError":
                raise
            raise CheckpointError(self._no_room(path, size, error)) from error
        if name is None:
            self.prune(step)
        return replace(saved, path=path)

    def latest(self) -> Checkpoint | None:
        """The newest that verifies, None if there is none at all.

        Warns of each damaged one it passes over. Raises CheckpointError if all are damaged, or if the newest good
        one belongs to another configuration.
        """
        checkpoint = newest_intact(self.folder, self._warn)
        if checkpoint is not None and checkpoint.identity != self._identity:
            raise CheckpointError(f"{checkpoint.path} belongs to another configuration: start a new run folder")
        return checkpoint

    def tidy(self, newest: Checkpoint | None) -> None:
        """Remove what a kill left of a save or a prune, before a run goes on from `newest`."""
        files.remove_leftovers(self.folder)
        if newest is not None:
            self.prune(newest.step)

    def prune(self, step: int) -> None:
        """Of the checkpoints up to `step`, which verified, remove all but the newest `keep`. Newer ones don't verify,
        or this run would have gone on from them: they don't count, and are replaced once it gets there."""
        for path in [path for path in self.paths() if checkpoint_step(path) <= step][: -self._keep]:
            files.discard(path)

    def paths(self) -> list[Path]:
        """Checkpoint folders, oldest first, verified or not."""
        return checkpoint_paths(self.folder)

    def _no_room(self, path: Path, written: int, error: Exception) -> str:
        needed = max((_size(old) for old in self.paths()), default=0)
        wants = f"about {needed:,} bytes are needed, " if needed else ""
        free = shutil.disk_usage(self.folder).free
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"{path} can't be written ({reason}): {written:,} bytes were, {wants}{free:,} are free on the disk"


def step_name(step: int) -> str:
    """The name of what is kept of a step.

    >>> step_name(40)
    'step-000040'
    """
    return f"step-{step:06d}"


def checkpoint_step(path: Path) -> int:
    """The step after which a checkpoint's folder was saved."""
    return int(path.name.removeprefix("step-"))


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first, verified or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=checkpoint_step)


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint in `folder` that verifies, None if there is none at all.

    Warns of each damaged one it passes over. Raises CheckpointError if all are damaged.
    """
    paths = checkpoint_paths(folder)
    for path in reversed(paths):
        try:
            return verify(path)
        except CheckpointError as error:
            warn(Note("checkpoint_damaged", error=str(error)))
    if paths:
        raise CheckpointError(f"{folder}: none of {len(paths)} checkpoints verifies; start again with --force")
    return None


def _manifest(folder: Path, written: Mapping[str, str], step: int, identity: str, state: Mapping[str, Any]) -> bytes:
    """Manifest of the files in `folder`, whose SHA-256 is what their writer says.

    `checksum` is the SHA-256 of the manifest without it. The command line is not in it, so that a resumed run has
    the same bytes.
    """
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if strange := sizes.keys() ^ written.keys():
        name = min(strange)
        what = "was written, but its SHA-256 not given" if name in sizes else "was not written, but its SHA-256 given"
        raise CheckpointError(f"{folder}: the learner's save() is at fault: {name} {what}")
    entries = {name: {"sha256": written[name], "size": sizes[name]} for name in sorted(sizes)}
    body = {"format": FORMAT, "step": step, "identity": identity, "state": dict(state), "files": entries}
    return sealed({**body, MADE_WITH: environment()})


def verify(path: Path, *, step: int | None = None) -> Checkpoint:
    """Read `path` and compare every byte with its manifest. Raises CheckpointError naming the damaged file.

    `step` is what the manifest must say; None: what the folder's name says.
    """
    body = read_manifest(path / MANIFEST)
    if step is None:
        match = _NAME.fullmatch(path.name)
        step = int(match[1]) if match else body["step"]
    if body["step"] != step:
        raise CheckpointError(f"{path / MANIFEST} is of step {body['step']}, not {step}: the folder was renamed")
    size = verify_files(path, body["files"])
    return Checkpoint(path, body["step"], body["identity"], body["state"], size)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
