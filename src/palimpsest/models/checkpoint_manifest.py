"""Checkpoint manifest: size and SHA-256 of every file in the folder, with its own checksum.

Guaranteed: verification finds a flipped bit or a missing byte in any file and in the manifest; this process verifies a
folder again only if a size or modification time has changed.
Not covered: an attacker who also rewrites the hashes; files that the manifest does not name.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from palimpsest import files
from palimpsest.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
STATE_FOLDER = "learner"
"""Optimizer state of a checkpoint. A subfolder, because engines load every *.safetensors next to the weights."""

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_OURS = b'"sha256"'  # once per file: no flipped bit removes all of them
_Stamp = tuple[tuple[str, int, int], ...]
_MOST_VERIFIED = 64
_verified: dict[Path, _Stamp] = {}
_READERS = 8
"""Files hashed in parallel."""
_SETTLED_NS = 2_000_000_000  # a file younger than this may change again without a new time


def sealed(body: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest; `checksum` is the SHA-256 of the manifest without it."""
    digest = hashlib.sha256(orjson.dumps(body, option=_OPTIONS)).hexdigest()
    return orjson.dumps({**body, "checksum": digest}, option=_OPTIONS)


def read_manifest(file: Path) -> dict[str, Any]:
    """The body written by `sealed`: `step`, `identity`, `state` and `files`. Raises CheckpointError if damaged."""
    try:
        data = files.read_regular(file)
        body: dict[str, Any] = orjson.loads(data)
        body.pop("checksum", None)
        intact = sealed(body) == data  # canonical bytes: no flipped bit leaves them valid
    except (OSError, orjson.JSONDecodeError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file} can't be read ({type(error).__name__})") from None
    if not intact:
        raise CheckpointError(f"{file} is damaged: its checksum is wrong")
    if body.get("format") != FORMAT:
        raise CheckpointError(f"{file} has format {body.get('format')!r:.40}, this version reads only {FORMAT}")
    if wrong := next((key for key, holds in _SHAPE.items() if not holds(body.get(key))), None):
        raise CheckpointError(f"{file} is not the manifest of a checkpoint: {wrong}={body.get(wrong)!r:.60}")
    return body


def _are_files(entries: Any) -> bool:
    return isinstance(entries, dict) and all(
        isinstance(entry, dict)
        and type(entry.get("size")) is int
        and _SHA256.fullmatch(str(entry.get("sha256"))) is not None
        and _leads_inside(name)
        for name, entry in entries.items()
    )


def _leads_inside(name: str) -> bool:
    """
    >>> [_leads_inside(name) for name in ("a/b", "/a", "a/../../b", ".", "")]
    [True, False, False, False, False]
    """
    components = PurePosixPath(name).parts
    return bool(components) and "/".join(components) == name and ".." not in components


_SHA256 = re.compile("[0-9a-f]{64}")
_SHAPE: Mapping[str, Callable[[Any], bool]] = {
    "step": lambda step: type(step) is int and step >= 0,
    "identity": lambda identity: isinstance(identity, str),
    "state": lambda state: isinstance(state, dict),
    "files": _are_files,
}
"""Check of each manifest key's value."""


def verify_files(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> int:
    """Verify files by a manifest's `files`. Returns their total bytes. Raises CheckpointError with the damaged file."""
    size, stamp = 0, _stamp(folder, entries)
    for inner in {Path(name).parent for name in entries} - {Path()}:  # loading reads every file in a subfolder
        there = {f"{inner.as_posix()}/{file.name}" for file in (folder / inner).glob("*") if file.is_file()}
        if strange := there - entries.keys():
            raise CheckpointError(f"{folder / min(strange)} is not part of this checkpoint: remove it")
    for name, entry in entries.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
        if file.stat().st_size != entry["size"]:
            raise CheckpointError(f"{file} is damaged: {file.stat().st_size:,} bytes instead of {entry['size']:,}")
        size += entry["size"]
    with ThreadPoolExecutor(_READERS) as readers:
        for name, digest in zip(entries, readers.map(files.sha256, [folder / name for name in entries]), strict=True):
            if digest != entries[name]["sha256"]:
                raise CheckpointError(f"{folder / name} is damaged: its SHA-256 differs from the manifest")
    if all(time.time_ns() - changed > _SETTLED_NS for _, _, changed in stamp):
        _verified[folder.resolve()] = stamp
        if len(_verified) > _MOST_VERIFIED:
            del _verified[next(iter(_verified))]
    return size


def has_manifest(folder: Path) -> bool:
    """True if `folder` is a palimpsest checkpoint; other models may also have a manifest.json."""
    try:
        return _OURS in files.read_regular(folder / MANIFEST)
    except OSError:
        return False


def verify_folder(folder: Path) -> None:
    """Verify a model folder if it is a palimpsest checkpoint. Raises CheckpointError.

    A subfolder that was removed completely, such as the optimizer state, is not an error.
    """
    if not has_manifest(folder):
        return
    named = read_manifest(folder / MANIFEST)["files"]
    entries = {name: entry for name, entry in named.items() if (folder / name).parent.is_dir()}
    if _verified.get(folder.resolve()) != _stamp(folder, entries):
        verify_files(folder, entries)


def _stamp(folder: Path, entries: Mapping[str, Any]) -> _Stamp:
    stats = {name: (folder / name).stat() for name in sorted(entries) if (folder / name).is_file()}
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items())
