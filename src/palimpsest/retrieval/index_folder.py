"""Search index folder: atomic publication, verification, memory-mapped passages, top-k selection.

    DIR/manifest.json          written last: kind, sources, settings, SHA-256 of every other file
    .DIR.palimpsest-partial/   an unfinished build, running or killed: the next build deletes it first
    .DIR.lock                  locked by the building process

Passages are memory-mapped JSON lines with an array of offsets.

Guaranteed on a local POSIX file system: DIR is a complete index or does not exist; concurrent processes build the same
index once; a build never overwrites a folder that is not an index; a symbolic link to DIR stays one. Each passage is
the caller's own copy; several threads may read.
Not covered: changes to the files while an index is open; resuming a killed build; passages that are not JSON objects
(data/formats/corpus.py rejects them).
"""

from __future__ import annotations

import fcntl
import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from palimpsest import files
from palimpsest.errors import DataError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file. Raises DataError."""
    try:
        return files.sha256(path)
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None


def ensure(folder: Path, kind: str, made_of: Mapping[str, Any] | None, write: Callable[[Path], None]) -> Path:
    """Ensure an index in `folder`: the existing one if `made_of` matches, otherwise the output of `write` into an empty
    folder. `made_of` None always rebuilds. Returns the resolved folder. Raises DataError."""
    folder = folder.resolve()
    if _matches(folder, kind, made_of):
        return folder
    with _building(folder) as aside:
        if not _matches(folder, kind, made_of):  # another process may have built it while this one waited
            write(aside)
            _publish(aside, folder, {"kind": kind, "made_of": made_of or {}})
    return folder


def checked(folder: Path, kind: str, made_of: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The manifest of the index in `folder`, every file verified, and `made_of` unless it is None. Raises DataError."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder}: no index there; build one from a corpus first")
    if manifest["kind"] != kind:
        raise DataError(f"{folder}: index of kind {manifest['kind']!r}, but {kind!r} is needed; build it again")
    for name, digest in manifest["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            raise DataError(f"{folder / name}: missing or changed since the build; delete {folder} and build it again")
    if made_of is not None and manifest["made_of"] != made_of:
        raise DataError(f"{folder}: another process built an index of another corpus there; use another folder")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the index in `folder`, or None for a missing or empty folder. Raises DataError for other ones."""
    try:
        manifest = orjson.loads(files.read_regular(folder / MANIFEST))
    except FileNotFoundError:
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder} is not an index (files, but no {MANIFEST}); choose another folder") from None
        return None
    except NotADirectoryError:
        raise DataError(f"{folder} is a file; use the folder of the index") from None
    except orjson.JSONDecodeError as error:
        raise DataError(f"{folder / MANIFEST}: not JSON ({error}); delete the folder and build it again") from None
    if not isinstance(manifest, dict) or not {"kind", "made_of", "files"} <= manifest.keys():
        raise DataError(f"{folder / MANIFEST}: not the manifest of an index; choose another folder")
    digests, made_of = manifest["files"], manifest["made_of"]
    named = isinstance(digests, dict) and digests and all(_is_name(n, d) for n, d in digests.items())
    if not isinstance(manifest["kind"], str) or not isinstance(made_of, dict) or not named:
        raise DataError(f"{folder / MANIFEST}: damaged; delete the folder and build it again")
    return manifest


def _is_name(name: str, digest: Any) -> bool:
    return isinstance(digest, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _matches(folder: Path, kind: str, made_of: Mapping[str, Any] | None) -> bool:
    manifest = read_manifest(folder)  # raises if the folder is not an index
    return manifest is not None and made_of is not None and (manifest["kind"], manifest["made_of"]) == (kind, made_of)


def _publish(building: Path, folder: Path, about: dict[str, Any]) -> None:
    digests = {path.name: sha256(path) for path in sorted(building.iterdir())}
    files.write_plain(building / MANIFEST, orjson.dumps(about | {"files": digests}, option=orjson.OPT_INDENT_2))
    files.publish_folder(building, folder)


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """A private empty folder next to `folder`. Waits for a process that builds the same index."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("a") as lock:  # "a" leaves an existing file unchanged
        fcntl.flock(lock, fcntl.LOCK_EX)
        files.empty_trash(folder)
        aside = files.hidden_folder(folder)
        try:
            with files.naming(folder):
                yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


# ---- The passages of an index on disk ------------------------------------------------------------------------


_PASSAGES, _STARTS = "passages.jsonl", "starts.npy"


class PassageStore:
    """Passages by their number."""

    def __init__(self, folder: Path) -> None:
        self._starts = np.load(folder / _STARTS, mmap_mode="r")
        """[N + 1] start of each passage in bytes; the last is the end of the file."""
        with (folder / _PASSAGES).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, at: int) -> dict[str, Any]:
        start, end = int(self._starts[at]), int(self._starts[at + 1])
        passage: dict[str, Any] = orjson.loads(self._bytes[start:end])
        return passage

    @property
    def sizes_N(self) -> np.ndarray:
        """[N] size of each passage in bytes."""
        return np.diff(self._starts)


def written(passages: Iterable[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield `passages` and write each to `folder`. The caller must exhaust the iterator."""
    starts = [0]
    with (folder / _PASSAGES).open("wb") as file:
        for passage in passages:
            starts.append(starts[-1] + file.write(orjson.dumps(passage) + b"\n"))
            yield passage
    np.save(folder / _STARTS, np.array(starts, dtype=np.int64))


# ---- The top k of many scores --------------------------------------------------------------------------------


_BLOCK = 256  # scores per block maximum


def top(scores_N: np.ndarray, topk: int) -> np.ndarray:
    """Indices of the `topk` largest scores, largest first, equal ones in order.

    The k-th largest block maximum is a lower bound of the k-th largest score, so one comparison excludes all but a few
    scores from sorting.

    >>> top(np.array([0.0, 2.0, 1.0, 2.0, 1.0]), 3).tolist()
    [1, 3, 2]
    """
    blocks = len(scores_N) // _BLOCK
    if blocks > topk:
        maxima = scores_N[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        places = np.flatnonzero(scores_N >= np.partition(maxima, blocks - topk)[blocks - topk])
    else:
        places = np.arange(len(scores_N))
    if len(places) > topk:
        candidates = scores_N[places]
        places = places[candidates >= np.partition(candidates, len(places) - topk)[len(places) - topk]]
    return places[np.argsort(-scores_N[places], kind="stable")][:topk]
