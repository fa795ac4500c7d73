"""Verifying the files of a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from palimpsest import files
from palimpsest.errors import CheckpointError
from palimpsest.models.checkpoint_manifest import MANIFEST, read_manifest, sealed, verify_files
from palimpsest.runs.checkpoint import newest_intact


def test_files_are_hashed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    entries = {name: {"sha256": digest, "size": 1} for name, digest in files.hashes(tmp_path).items()}
    both, hashed = threading.Barrier(2, timeout=60), files.sha256

    def meeting(path: Path) -> str:
        both.wait()
        return hashed(path)

    monkeypatch.setattr(files, "sha256", meeting)
    assert verify_files(tmp_path, entries) == 2


def test_of_several_damaged_files_the_first_of_the_manifest_is_named(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(b"x")
    wrong = {"03": "0" * 64, "11": "0" * 64}
    entries = {name: {"sha256": digest, "size": 1} for name, digest in (files.hashes(tmp_path) | wrong).items()}
    with pytest.raises(CheckpointError, match="03 is damaged: its SHA-256"):
        verify_files(tmp_path, entries)


def test_a_file_more_where_a_folder_is_read_as_a_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "learner").mkdir()
    (tmp_path / "learner" / "shard-1.safetensors").write_bytes(b"x")
    entries = {name: {"sha256": digest, "size": 1} for name, digest in files.hashes(tmp_path).items()}
    assert verify_files(tmp_path, entries) == 1
    (tmp_path / "learner" / "shard-2.safetensors").write_bytes(b"y")
    with pytest.raises(CheckpointError, match=r"shard-2\.safetensors is not part of this checkpoint"):
        verify_files(tmp_path, entries)


BODY = {"format": 1, "step": 3, "identity": "i", "state": {}, "files": {"a/b": {"sha256": "0" * 64, "size": 1}}}


def test_a_manifest_is_read_as_it_was_sealed(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(sealed(BODY))
    assert read_manifest(tmp_path / MANIFEST) == BODY


@pytest.mark.parametrize(
    "change",
    [
        {"format": None},
        {"format": [1]},
        {"format": 2},
        {"step": "3"},
        {"step": True},
        {"step": -1},
        {"step": 3.0},
        {"identity": 1},
        {"state": []},
        {"state": None},
        {"files": []},
        {"files": None},
        {"files": {"a": "0" * 64}},
        {"files": {"a": {"sha256": "0" * 64}}},
        {"files": {"a": {"size": 1}}},
        {"files": {"a": {"sha256": "0" * 64, "size": "1"}}},
        {"files": {"a": {"sha256": "0" * 63, "size": 1}}},
        {"files": {"a": {"sha256": ["0" * 64], "size": 1}}},
        *({"files": {name: {"sha256": "0" * 64, "size": 1}}} for name in ("", ".", "../a", "a/../../b", "/a", "a//b")),
    ],
)
def test_a_sealed_manifest_of_another_shape_is_an_unusable_checkpoint(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "step-000003"
    folder.mkdir()
    for body in (BODY | change, {key: value for key, value in BODY.items() if key not in change}):
        (folder / MANIFEST).write_bytes(sealed(body))
        (key,) = change
        with pytest.raises(CheckpointError, match=f"(has|manifest of a checkpoint:) {key}") as caught:
            read_manifest(folder / MANIFEST)
        assert "\n" not in str(caught.value)
        warned: list[str] = []
        with pytest.raises(CheckpointError, match="none of 1 checkpoints verifies"):
            newest_intact(tmp_path, warned.append)
        assert key in warned[0]


@pytest.mark.parametrize("content", [b"[]", b"[1]", b"1", b"null", b'"sha256"', b"{}", b"", b"[" * 100_000])
def test_what_is_no_manifest_at_all_is_an_unusable_checkpoint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"can't be read|is damaged"):
        read_manifest(tmp_path / MANIFEST)
