"""Opening a model folder: dtype, devices, random state, and folders that are rejected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from palimpsest.app.config_resolution import Agent
from palimpsest.config.schema import ModelConfig
from palimpsest.engines.embedded import compute
from palimpsest.engines.embedded.model_loading import load_model, untied, with_dtype
from palimpsest.errors import ModelError
from support.architectures import configured


@pytest.fixture
def folder(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_kind(folder: Path, model_type: str, name: str) -> None:
    """Rejected before its weights are read."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [name]}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "no \\*.safetensors weights"),
        (lambda f: (f / "config.json").unlink(), r"no config\.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x00" * 40), "truncated"),
        (drop_a_weight, "up_proj"),
        (lambda f: configure(f, is_encoder_decoder=True), "has an encoder"),
        (lambda f: other_kind(f, "t5", "T5Model"), "T5Model has an encoder"),
        (lambda f: other_kind(f, "vit", "ViTModel"), "ViTModel is not a causal language model of transformers"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_an_unusable_model_folder_is_named_with_the_reason(folder: Path, spoil: Any, message: str) -> None:
    spoil(folder)
    with pytest.raises(ModelError, match=message) as error:
        load_model(ModelConfig(path=str(folder)))
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_device_is_rejected(tiny_model_folder: Path) -> None:
    with pytest.raises(ModelError, match="not a device"):
        load_model(ModelConfig(path=str(tiny_model_folder), device="toaster"))


def test_loading_does_not_change_the_random_state(tiny_model_folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model(ModelConfig(path=str(tiny_model_folder)))
    assert torch.equal(torch.rand(3), expected)


def test_a_configuration_is_untied_in_a_copy() -> None:
    config = configured("Gemma3")
    assert not untied(config).text_config.tie_word_embeddings
    assert config.tie_word_embeddings
    assert config.text_config.tie_word_embeddings


H100 = 80 * 10**9


@pytest.mark.parametrize(
    ("stored", "gpus", "override", "dtype", "dtype_on_fast_cpu"),
    [
        ("bfloat16", 1, [], "bfloat16", "bfloat16"),
        ("bfloat16", 0, [], "float32", "bfloat16"),
        ("float16", 1, [], "float32", "float32"),
        ("float32", 1, [], "float32", "float32"),
        ("bfloat16", 1, ["model.dtype=float32"], "float32", "float32"),
        ("bfloat16", 1, ["model.device=cpu"], "float32", "bfloat16"),
        ("bfloat16", 0, ["model.dtype=bfloat16"], "bfloat16", "bfloat16"),
    ],
)
def test_a_model_that_is_only_sampled_has_the_dtype_of_its_files_on_fast_devices(
    stored: str, gpus: int, override: list[str], dtype: str, dtype_on_fast_cpu: str, folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    configure(folder, dtype=stored)
    monkeypatch.setattr(compute, "memories", lambda: dict.fromkeys(map(str, range(gpus)), H100))
    config = Agent(model=folder, overrides=override).config({})
    for fast_cpu, expected in ((False, dtype), (True, dtype_on_fast_cpu)):
        monkeypatch.setattr(compute, "multiplies_bfloat16", lambda fast_cpu=fast_cpu: fast_cpu)
        assert with_dtype(config, None).model.dtype == expected
