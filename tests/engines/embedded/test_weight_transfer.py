"""Weights for another process: a folder that opens as the same model, with no tensor shared."""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palimpsest.config.engine import AdapterConfig, ModelConfig
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import adapted, trainable
from palimpsest.engines.embedded.weight_transfer import write_untied
from palimpsest.engines.ray.sharding import _describe
from palimpsest.errors import EngineError
from support.architectures import built
from support.disks import no_file_over
from support.models import build_llama

needs_peft = pytest.mark.skipif(not find_spec("peft"), reason="pip install 'palimpsest-rl[lora]'")
IDS = torch.arange(20)[None]


def names_in(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


def opened_from(folder: Path, model: Any) -> Any:
    """The model in `folder`, whose files contain the weights of `model` and no others."""
    names = [name for file in folder.glob("*.safetensors") for name in names_in(file)]
    assert sorted(names) == sorted({*model.state_dict()})
    opened: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert opened.lm_head.weight is not opened.model.embed_tokens.weight
    return opened


def logits_of(model: Any) -> torch.Tensor:
    """Logits of a copy in torch's memory: unaligned weights in a file may change the last bits of sums."""
    logits: torch.Tensor = copy.deepcopy(model)(IDS).logits
    return logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_of_weights_opens_as_the_same_untied_model(tmp_path: Path, tied: bool) -> None:
    model = build_llama(96, tie_word_embeddings=tied)
    write_untied(model, tmp_path / "out")
    assert torch.equal(logits_of(opened_from(tmp_path / "out", model)), model(IDS).logits)
    assert model.config.tie_word_embeddings is tied


def test_a_folder_in_several_files_lists_the_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_llama(96)
    save = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda folder, **more: save(folder, max_shard_size="20KB", **more))
    write_untied(model, tmp_path / "out")
    listed = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert {*listed} == {*model.state_dict()}
    assert all(name in names_in(tmp_path / "out" / file) for name, file in listed.items())


def test_the_text_model_of_a_multimodal_model_is_untied_too(tmp_path: Path) -> None:
    model = built("Gemma3").float()
    write_untied(model, tmp_path / "embedded")
    (tmp_path / "ranks").mkdir()
    _describe(model, tmp_path / "ranks", ModelConfig(), adapters=False, merged=True)
    for folder in (tmp_path / "embedded", tmp_path / "ranks"):
        written = json.loads((folder / "config.json").read_text())
        assert written["tie_word_embeddings"] is written["text_config"]["tie_word_embeddings"] is False
        assert "tie_word_embeddings" not in written["vision_config"]
    opened: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "embedded")
    assert torch.equal(logits_of(opened), model(IDS).logits)


def test_a_full_disk_is_an_error_with_its_free_bytes_and_the_key(tmp_path: Path, tiny_model_folder: Path) -> None:
    learner = ForestLearner(trainable(ModelConfig(path=str(tiny_model_folder))), optim=OptimConfig())
    learner.write_weights(tmp_path / "full")
    files = (tmp_path / "full").glob("*.safetensors")
    size = sum(tensor.nbytes for file in files for tensor in load_file(file).values())
    message = (
        rf"folder: writing the weights failed \(.*File too large.*\) after [\d,]+ of {size:,} bytes, with [\d,]+ free "
        r"on the disk; .*set sampler\.folder"
    )
    with no_file_over(100_000), pytest.raises(EngineError, match=message):
        learner.write_weights(tmp_path / "folder")


@needs_peft
@pytest.mark.parametrize("tied", [True, False])
def test_adapters_are_merged_into_the_weights(tmp_path: Path, tied: bool) -> None:
    plain = build_llama(96, tie_word_embeddings=tied, attention_bias=True)
    model = with_adapters(build_llama(96, tie_word_embeddings=tied, attention_bias=True))
    write_untied(model, tmp_path / "out")
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    opened = opened_from(tmp_path / "out", plain)
    torch.testing.assert_close(opened(IDS).logits, model(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(opened(IDS).logits, plain(IDS).logits, atol=0.1)
    assert any(".lora_B." in name for name, _ in model.named_parameters())


@needs_peft
def test_in_bfloat16_merging_moves_log_probabilities_about_as_far_as_bfloat16_does(tmp_path: Path) -> None:
    """Models that round independently are sqrt(2) times as far apart as one is from float32; without adapters 45."""
    plain = build_llama(96)
    model = with_adapters(build_llama(96).bfloat16())
    write_untied(model, tmp_path / "out")
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    rounding = distance(build_llama(96).bfloat16(), plain)
    assert 0 < distance(merged, model) < 3 * rounding


def distance(one: Any, other: Any) -> float:
    """Mean over 200 places of the next tokens' log-probabilities, in nats."""
    ids = torch.arange(200)[None] % 96
    with torch.no_grad():
        nats = [model(ids).logits[0].float().log_softmax(-1) for model in (one, other)]
    return float((nats[0] - nats[1]).abs().mean())


def with_adapters(model: Any) -> Any:
    """`model` with adapters that change it."""
    model = adapted(model, AdapterConfig(rank=4, alpha=8), "x")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    return model
