"""Folders of models: links, mistyped names, the hub and its cache, checkpoints and shards of other trainers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded.model_loading import load_model
from palimpsest.errors import CheckpointError, ModelError
from palimpsest.files import hashes
from palimpsest.models import model_folder
from palimpsest.models.checkpoint_manifest import MANIFEST, sealed
from palimpsest.models.model_files import check_weights
from palimpsest.models.model_folder import check_name, opened
from palimpsest.text.codec import Codec
from support.records import one_line_error


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model_folder, tmp_path / "model")


def test_links_inside_the_folder_and_into_the_hubs_blobs_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "kept.safetensors")
    (folder / "model.safetensors").symlink_to("kept.safetensors")
    assert check_weights("m", opened(str(folder)))
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    shutil.copytree(folder, snapshot, symlinks=True)
    blob = tmp_path / "models--a--b" / "blobs" / "4567"
    blob.parent.mkdir()
    (snapshot / "kept.safetensors").rename(blob)
    (snapshot / "kept.safetensors").symlink_to("../../blobs/4567")
    assert check_weights("m", opened(str(snapshot)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("runs/frist", "runs/frist: no such folder; did you mean first?"),
        ("./mdoel", "./mdoel: no such folder; did you mean model?"),
        ("a/b/c", "a/b/c: no such folder"),
        ("modle", "modle: no such folder here; did you mean model?"),
        ("embeded", "did you mean embedded?"),
        ("model/config.json", "is a file; use its folder"),
    ],
)
def test_a_mistyped_folder_gets_the_nearest_name(
    name: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "runs" / "first").mkdir(parents=True)
    monkeypatch.setattr("palimpsest.models.model_folder.hub_folder", lambda name: pytest.fail("the hub was asked"))
    assert reason in one_line_error(ModelError, opened, name)


def test_without_a_network_one_request_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def model_info(self: Any, name: str, **options: Any) -> None:
        requests.append(name)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(ModelError, match=r"the hub can't be reached \(Name or service not known\): use a folder"):
        opened("nobody/nothing")
    assert requests == ["nobody/nothing"]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        opened("nobody/nothing")
    assert requests == ["nobody/nothing"]


def test_a_cached_model_needs_no_request(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "cache" / "models--some--model"
    shutil.copytree(folder, home / "snapshots" / "0123")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    assert opened("some/model") == home / "snapshots" / "0123" == model_folder.cached("some/model")
    assert Codec.load("some/model").vocab_size == 375
    check_name("some/model")


def test_a_damaged_checkpoint_is_rejected_by_every_loader(folder: Path) -> None:
    files = {name: {"sha256": sha, "size": (folder / name).stat().st_size} for name, sha in hashes(folder).items()}
    (folder / MANIFEST).write_bytes(sealed({"format": 1, "step": 3, "identity": "", "state": {}, "files": files}))
    load_model(ModelConfig(path=str(folder)))
    for file in ("model.safetensors", "chat_template.jinja", MANIFEST):
        full = (folder / file).read_bytes()
        (folder / file).write_bytes(full[:-20] + bytes([full[-20] ^ 1]) + full[-19:])
        for load in (Codec.load, lambda path: load_model(ModelConfig(path=path))):
            with pytest.raises(CheckpointError, match=f"{file} is damaged|{file} can't be read"):
                load(str(folder))
        (folder / file).write_bytes(full)
    Codec.load(folder)


def test_a_manifest_of_another_program_is_ignored(folder: Path) -> None:
    (folder / MANIFEST).write_text(json.dumps({"name": "an app"}))
    assert opened(str(folder)) == folder


@pytest.mark.parametrize(
    ("name", "files", "command"),
    [
        ("global_step_20", ["actor/model_world_size_8_rank_0.pt", "actor/hf/config.json"], "verl.model_merger"),
        ("actor", ["model_world_size_2_rank_1.pt", "config.json", "tokenizer.json"], "verl.model_merger"),
        ("iter_0000099", ["__0_0.distcp", "common.pt"], "convert_torch_dist_to_hf.py"),
        ("saved", ["latest_checkpointed_iteration.txt", "iter_0000099/common.pt"], "convert_torch_dist_to_hf.py"),
    ],
)
def test_shards_are_rejected_with_the_command_that_converts_them(
    name: str, files: list[str], command: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = tmp_path / name
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    for words in (["export", str(folder), "--out", str(tmp_path / "out")], ["eval", str(folder), "--chunks", "1"]):
        assert command in refused(*words)


def test_a_merged_model_next_to_its_shards_is_opened(folder: Path) -> None:
    (folder / "model_world_size_8_rank_0.pt").write_bytes(b"")
    assert opened(str(folder)) == folder
