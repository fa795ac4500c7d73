"""The folder of an index: built aside, published by one rename, verified when opened.

    DIR/manifest.json   written last: kind, what it was made of, settings, bytes and SHA-256 of every other file
    .DIR.building/      a build under way, or one that was killed: the next build begins by deleting it
    .DIR.lock           held by the process that builds

Guaranteed on a local POSIX file system: DIR is a whole index or is not there; two processes that want the same index
build it once, one after the other; a folder that is no index is never overwritten.
Not covered: changes to the files while an index is open.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from palimpsest.errors import DataError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file. Raises DataError if it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the index in `folder`, None if there is none yet. Raises DataError if it is something else."""
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder} is no index (it has files but no {MANIFEST}); choose another folder") from None
        return None
    except NotADirectoryError:
        raise DataError(f"{folder} is a file; give the folder of the index") from None
    except orjson.JSONDecodeError as error:
        raise DataError(
            f"{folder / MANIFEST}: not JSON ({error}); delete the folder and build the index anew"
        ) from None
    if not isinstance(manifest, dict) or not {"kind", "made_of", "files"} <= manifest.keys():
        raise DataError(f"{folder / MANIFEST}: not the manifest of an index; choose another folder")
    return manifest


def verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Raises DataError naming the first file that is not as it was built."""
    for name, digest in manifest["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            raise DataError(
                f"{folder / name}: missing or changed since it was built; delete {folder} and build it anew"
            )


def publish(building: Path, folder: Path, about: dict[str, Any]) -> None:
    """Describe the finished files of `building` and give the folder its name, in the place of an older index."""
    files = sorted(path for path in building.iterdir() if path.is_file())
    manifest = about | {"files": {path.name: sha256(path) for path in files}}
    (building / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    for path in (*files, building / MANIFEST, building):
        _sync(path)
    if folder.exists():
        old = _beside(folder, "old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(building, folder)
    _sync(folder.parent)
    shutil.rmtree(_beside(folder, "old"), ignore_errors=True)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that no other process has. Waits for a process that builds the same index."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _beside(folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aside = _beside(folder, "building")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
