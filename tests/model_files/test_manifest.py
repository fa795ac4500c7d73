"""Verifying the files of a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from palimpsest import files
from palimpsest.errors import CheckpointError
from palimpsest.model_files.manifest import verify_files


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
    with pytest.raises(CheckpointError, match=r"shard-2\.safetensors is not of this checkpoint"):
        verify_files(tmp_path, entries)
