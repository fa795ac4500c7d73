"""A rank and a copy of the sampler, called in this process."""

from __future__ import annotations

import platform
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from palimpsest.config.schema import RunConfig
from palimpsest.errors import CheckpointError, RunError

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

from palimpsest.engines.ray.actors import Rank, SamplerCopy


@pytest.fixture
def config(tiny_model_folder: Path) -> RunConfig:
    return RunConfig.model_validate({"model": {"path": str(tiny_model_folder)}, "engine": {"name": "ray"}})


@pytest.fixture
def copy(config: RunConfig) -> SamplerCopy:
    return SamplerCopy(config, 0)


def test_a_folder_that_a_machine_does_not_see_is_named_with_its_key_and_the_machine(
    config: RunConfig, copy: SamplerCopy, tmp_path: Path
) -> None:
    rank, missing = Rank(config, "policy", 0), tmp_path / "missing"
    unseen = re.escape(f"{platform.node()} does not see {missing}; give a folder that every node sees")
    with pytest.raises(RunError, match=rf"^cluster\.folder: {unseen}$"):
        rank.start("file:///nowhere", missing)
    with pytest.raises(RunError, match=rf"^cluster\.folder: {unseen}$"):
        copy.start(missing)
    with pytest.raises(RunError, match=rf"^sampler\.folder: {unseen}$"):
        rank.publish(missing)
    with pytest.raises(CheckpointError, match=f"{missing}: .* does not see it; put the run on storage that every node"):
        rank.save(missing)
    copy.start(tmp_path)


def test_a_copy_takes_up_weights_that_are_whole_and_refuses_others(
    copy: SamplerCopy, tiny_model_folder: Path, tmp_path: Path
) -> None:
    weights: dict[str, Any] = load_file(tiny_model_folder / "model.safetensors")
    changed = {name: weight + 1 for name, weight in weights.items()}
    untied = changed | {"lm_head.weight": changed["model.embed_tokens.weight"].clone()}
    (tmp_path / "whole").mkdir()
    save_file(dict(list(untied.items())[:3]), tmp_path / "whole" / "model-1.safetensors")
    save_file(dict(list(untied.items())[3:]), tmp_path / "whole" / "model-2.safetensors")
    copy.load_weights(tmp_path / "whole", 4)
    assert copy._batch.version == 4
    assert all(torch.equal(weight, changed[name]) for name, weight in copy._model.named_parameters())
    (tmp_path / "lacking").mkdir()
    save_file({n: w for n, w in changed.items() if "norm" not in n}, tmp_path / "lacking" / "model.safetensors")
    with pytest.raises(RunError, match=r"published weights lack model\.layers\.0\.input_layernorm\.weight"):
        copy.load_weights(tmp_path / "lacking", 5)
    assert copy._batch.version == 4
