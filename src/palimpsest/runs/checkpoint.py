"""Checkpoints that survive a crash at any moment and never load silently when damaged.

A checkpoint is a folder `step-000040` with the learner's files and `manifest.json`: size and SHA-256 of every file
(from the learner), the step, the state of the loop, and the identity of the configuration. It is written in a hidden
folder, flushed, verified, and published by one rename. A resume uses the newest that verifies.

Verification reads every file again, although its writer has hashed it: ranks may have written it on other machines,
and it must be intact on the machine of the resume. The cost is reading and a SHA-256, 8 files at a time.

Guaranteed: a failed save (disk full, crash) leaves older checkpoints unchanged. A flipped bit or a missing byte
anywhere, including the manifest, makes a checkpoint unusable, and the previous one is used with a warning. An old
checkpoint is removed only after the new one has been read back. The next resume (`tidy`) or save removes the remains
of an interrupted save or prune.
Not covered: an attacker who rewrites the hashes as well; two processes on one folder (the run folder's lock does
that).
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.errors import CheckpointError, NotWritten, first_line
from palimpsest.models.checkpoint_manifest import FORMAT, MANIFEST, read_manifest, sealed, verify_files
from palimpsest.notes import Note
from palimpsest.provenance import MADE_WITH, environment

Write = Callable[[Path], Awaitable[Mapping[str, str]]]
"""Writes files into an empty folder; returns the SHA-256 of each by its relative path."""

CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    step: int
    """Rollout batches before it."""
    identity: str
    state: Mapping[str, Any]
    """State of the loop, besides the learner's files."""
    size: int
    """Bytes of all files."""


class Checkpoints:
    def __init__(self, folder: Path, *, identity: str, keep: int = 2, warn: Callable[[str], None] = print) -> None:
        """`identity`: any string that a checkpoint and a resuming run must share."""
        self.folder = folder
        self._identity = identity
        self._keep = keep
        self._warn = warn

    async def save(self, step: int, write: Write, state: Mapping[str, Any], *, name: str | None = None) -> Checkpoint:
        """Publish a checkpoint: `write` puts the learner's files into an empty folder, `state` must be JSON.

        A checkpoint with a `name` replaces the previous one of that name; no run resumes from it, and it is never
        pruned.

        Raises CheckpointError and leaves everything unchanged if writing fails, or the files differ from the result of
        `write`.
        """
        path = self.folder / (name or step_name(step))
        self.folder.mkdir(exist_ok=True)
        files.remove_leftovers(self.folder)
        hidden = files.hidden_folder(path)
        try:
            written = await write(hidden)
            files.write_plain(hidden / MANIFEST, _manifest(hidden, written, step, self._identity, state))
            saved = await asyncio.to_thread(verify, hidden, step=step)  # read back before it replaces anything
            await asyncio.to_thread(files.publish_folder, hidden, path)
        except Exception as error:  # after any error, no half checkpoint remains
            size, free = _size(hidden), shutil.disk_usage(self.folder).free
            shutil.rmtree(hidden, ignore_errors=True)
            if not isinstance(error, OSError | NotWritten) and type(error).__name__ != "SafetensorError":
                raise
            raise CheckpointError(self._no_room(path, size, free, error)) from error
        if name is None:
            self.prune(step)
        return replace(saved, path=path)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None without any.

        Warns of each damaged one it skips. Raises CheckpointError if all are damaged, or if the newest good one
        belongs to another configuration.
        """
        checkpoint = newest_intact(self.folder, self._warn)
        if checkpoint is not None and checkpoint.identity != self._identity:
            raise CheckpointError(f"{checkpoint.path} belongs to another configuration: start a new run folder")
        return checkpoint

    def tidy(self, newest: Checkpoint | None) -> None:
        """Remove the remains of a killed save or prune, before a run resumes from `newest`."""
        files.remove_leftovers(self.folder)
        if newest is not None:
            self.prune(newest.step)

    def prune(self, step: int) -> None:
        """Remove all but the newest `keep` checkpoints up to `step`, which verified. Newer ones are damaged, since
        this run did not resume from them: they do not count, and the run replaces them later."""
        for path in [path for path in self.paths() if checkpoint_step(path) <= step][: -self._keep]:
            files.discard(path)

    def paths(self) -> list[Path]:
        """Checkpoint folders, oldest first, verified or not."""
        return checkpoint_paths(self.folder)

    def _no_room(self, path: Path, written: int, free: int, error: Exception) -> str:
        needed = max((_size(old) for old in self.paths()), default=0)
        wants = f"about {needed:,} bytes are needed, " if needed else ""
        reason = first_line(error)
        room = "raise `ulimit -f`" if os.strerror(errno.EFBIG) in reason else f"{free:,} are free on the disk"
        return f"{path} can't be written ({reason}): {written:,} bytes were, {wants}{room}"


def step_name(step: int) -> str:
    """Name of a step's files.

    >>> step_name(40)
    'step-000040'
    """
    return f"step-{step:06d}"


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first, verified or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=checkpoint_step)


def newest_intact(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint in `folder` that verifies; None without any.

    Warns of each damaged one it skips. Raises CheckpointError if all are damaged.
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
    """Manifest of the files in `folder`, with the SHA-256 from their writer.

    `checksum` is the SHA-256 of the manifest without it. The manifest excludes the command line, so that a resumed run
    has the same bytes.
    """
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if strange := sizes.keys() ^ written.keys():
        name = min(strange)
        what = "lacks its SHA-256" if name in sizes else "has a SHA-256 but is missing"
        raise CheckpointError(f"{folder}: error in the learner's save(): {name} {what}")
    entries = {name: {"sha256": written[name], "size": sizes[name]} for name in sorted(sizes)}
    body = {"format": FORMAT, "step": step, "identity": identity, "state": dict(state), "files": entries}
    return sealed({**body, MADE_WITH: environment()})


def verify(path: Path, *, step: int | None = None) -> Checkpoint:
    """Compare every byte of `path` with its manifest. Raises CheckpointError with the damaged file.

    `step`: expected step in the manifest; None: the folder's.
    """
    body = read_manifest(path / MANIFEST)
    if step is None:
        match = _NAME.fullmatch(path.name)
        step = int(match[1]) if match else body["step"]
    if body["step"] != step:
        raise CheckpointError(f"{path / MANIFEST} has step {body['step']}, not {step}: someone renamed the folder")
    size = verify_files(path, body["files"])
    return Checkpoint(path, body["step"], body["identity"], body["state"], size)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
