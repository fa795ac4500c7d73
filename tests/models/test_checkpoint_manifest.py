"""Manifests of checkpoints, and verification of their files."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from palimpsest import files
from palimpsest.errors import CheckpointError
from palimpsest.models.checkpoint_manifest import MANIFEST, read_manifest, sealed, verify_files
from palimpsest.runs.checkpoint import newest_intact
from support.records import one_line_error


def entries_of(folder: Path, **wrong: str) -> dict[str, Any]:
    """Entries of the files of `folder`, each of one byte."""
    return {name: {"sha256": digest, "size": 1} for name, digest in (files.hashes(folder) | wrong).items()}


def test_files_are_hashed_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    entries = entries_of(tmp_path)
    both, hashed = threading.Barrier(2, timeout=60), files.sha256

    def meeting(path: Path) -> str:
        both.wait()
        return hashed(path)

    monkeypatch.setattr(files, "sha256", meeting)
    assert verify_files(tmp_path, entries) == 2


def test_the_first_damaged_file_of_the_manifest_is_reported(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(b"x")
    entries = entries_of(tmp_path, **{"03": "0" * 64, "11": "0" * 64})
    with pytest.raises(CheckpointError, match="03 is damaged: its SHA-256"):
        verify_files(tmp_path, entries)


def test_an_additional_file_in_a_folder_that_is_read_whole_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "learner").mkdir()
    (tmp_path / "learner" / "shard-1.safetensors").write_bytes(b"x")
    entries = entries_of(tmp_path)
    assert verify_files(tmp_path, entries) == 1
    (tmp_path / "learner" / "shard-2.safetensors").write_bytes(b"y")
    with pytest.raises(CheckpointError, match=r"shard-2\.safetensors is not part of this checkpoint"):
        verify_files(tmp_path, entries)


BODY = {"format": 1, "step": 3, "identity": "i", "state": {}, "files": {"a/b": {"sha256": "0" * 64, "size": 1}}}


def test_a_sealed_manifest_is_read_back(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(sealed(BODY))
    assert read_manifest(tmp_path / MANIFEST) == BODY


ENTRY = {"sha256": "0" * 64, "size": 1}
CHANGES: dict[str, list[Any]] = {
    "format": [None, [1], 2],
    "step": ["3", True, -1, 3.0],
    "identity": [1],
    "state": [[], None],
    "files": [
        *([], None),
        *({"a": entry} for entry in ("0" * 64, {"sha256": "0" * 64}, {"size": 1}, ENTRY | {"size": "1"})),
        *({"a": ENTRY | {"sha256": digest}} for digest in ("0" * 63, ["0" * 64])),
        *({name: ENTRY} for name in ("", ".", "../a", "a/../../b", "/a", "a//b")),
    ],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in CHANGES.items() for value in values])
def test_a_sealed_manifest_of_another_shape_is_an_unusable_checkpoint(tmp_path: Path, key: str, value: Any) -> None:
    manifest = tmp_path / "step-000003" / MANIFEST
    manifest.parent.mkdir()
    for body in (BODY | {key: value}, {name: BODY[name] for name in BODY if name != key}):
        manifest.write_bytes(sealed(body))
        message = one_line_error(CheckpointError, read_manifest, manifest)
        assert re.search(f"(has|manifest of a checkpoint:) {key}", message)
        warned: list[str] = []
        with pytest.raises(CheckpointError, match="none of 1 checkpoints verifies"):
            newest_intact(tmp_path, warned.append)
        assert key in warned[0]


@pytest.mark.parametrize("content", [b"[]", b"[1]", b"1", b"null", b'"sha256"', b"{}", b"", b"[" * 100_000])
def test_other_content_is_an_unusable_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"can't be read|is damaged"):
        read_manifest(tmp_path / MANIFEST)
