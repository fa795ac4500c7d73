"""Weights on their way to another process: a folder that opens as the same model, with no tensor shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from palimpsest.engines.embedded.handover import write_untied
from support.models import build_llama


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_of_weights_opens_as_the_same_model_with_a_projection_of_its_own(tmp_path: Path, tied: bool) -> None:
    model = build_llama(96, tie_word_embeddings=tied)
    write_untied(model, tmp_path / "out")
    names = [name for file in (tmp_path / "out").glob("*.safetensors") for name in names_in(file)]
    assert sorted(names) == sorted({*model.state_dict()})
    opened: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert opened.lm_head.weight is not opened.model.embed_tokens.weight
    ids = torch.arange(20)[None]
    assert torch.equal(opened(ids).logits, model(ids).logits)
    assert model.config.tie_word_embeddings is tied


def test_a_folder_in_several_files_lists_the_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_llama(96)
    save = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda folder: save(folder, max_shard_size="20KB"))
    write_untied(model, tmp_path / "out")
    listed = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert {*listed} == {*model.state_dict()}
    assert all(name in names_in(tmp_path / "out" / file) for name, file in listed.items())


def names_in(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())
