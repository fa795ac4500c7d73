"""Manifest of a generated data set.

    manifest.json   {"made_by": "palimpsest data build", "version": "0.1.0", "edition": "3f5a...", "seed": 1,
                     "settings": {...}, "sources": [...], "files": {"eval_50.jsonl": {"sha256": "...", ...}}, ...}

The edition is the SHA-256 of the lines `<sha256>  <name>` of all data files sorted by name, as `sha256sum` prints them:
two sets of one edition have the same bytes.

Guaranteed: a manifest does not depend on the machine, its paths or the clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest._version import __version__
from palimpsest.errors import DataError

MANIFEST = "manifest.json"


def write_manifest(
    folder: Path, *, made_by: str, seed: int, described: Mapping[str, Mapping[str, Any]], **rest: Any
) -> str:
    """Write the manifest of the files in `folder`, with `described` entries by file name. Returns the edition."""
    hashes = files.hashes(folder)
    edition = edition_of(hashes)
    content = {
        "made_by": made_by,
        "version": __version__,
        "edition": edition,
        "seed": seed,
        **rest,
        "files": {name: {"sha256": digest, **described.get(name, {})} for name, digest in hashes.items()},
    }
    files.write_file(folder / MANIFEST, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return edition


def sets_of(folder: Path) -> list[Path]:
    """Problem files in the order of the folder's manifest. Raises DataError."""
    path = folder / MANIFEST
    try:
        described = json.loads(path.read_text("utf-8"))["files"]
        names = [name for name, entry in described.items() if "problems" in entry]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path}: not the manifest of a data set: name the files of {folder} instead") from None
    if any(Path(name).name != name for name in names):
        raise DataError(f"{path}: names a file outside its folder: name the files of {folder} instead")
    if not names:
        raise DataError(f"{path}: names no file of problems")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder / missing[0]}: missing, although {path} names it: name the files instead")
    return [folder / name for name in names]


def edition_of(hashes: Mapping[str, str]) -> str:
    """
    >>> edition_of({"b": "22", "a": "11"}) == edition_of({"a": "11", "b": "22"})
    True
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
