"""A rank and a copy of the sampler, called in this process."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from palimpsest.config.schema import RunConfig
from palimpsest.errors import CheckpointError, RunError
from support.cluster import own_address

pytest.importorskip("ray", reason="needs the extra ray")

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


def test_a_copy_loads_complete_weights_and_rejects_incomplete_ones(
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


LISTENS = """
import sys
import psutil
import torch.distributed as dist
from palimpsest.engines.ray.ray_runtime import set_gloo_interface
set_gloo_interface(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
print(*{each.laddr.ip for each in psutil.Process().net_connections("tcp4") if each.status == psutil.CONN_LISTEN})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "set_by_the_user", "listens"),
    [
        (own_address(), {}, own_address()),
        (own_address(), {"GLOO_SOCKET_IFNAME": "lo"}, "127.0.0.1"),
        ("127.0.0.1", {}, "127.0.0.1"),
        ("203.0.113.77", {"GLOO_SOCKET_IFNAME": "lo"}, "127.0.0.1"),
    ],
)
def test_other_ranks_reach_a_rank_at_the_address_that_ray_uses_for_its_machine(
    node: str, set_by_the_user: dict[str, str], listens: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"} | set_by_the_user
    listening = subprocess.run([sys.executable, "-c", LISTENS, node], capture_output=True, text=True, env=environment)
    assert listening.stdout.split() == [listens], listening.stderr
