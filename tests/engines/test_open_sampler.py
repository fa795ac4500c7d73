"""Resolution of sampler.name=auto on simulated GPUs, with and without vLLM."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.config_resolution import RunRequest, resolve_run
from palimpsest.config.load import dump_config, load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded import compute
from palimpsest.engines.open import layout_on, with_sampler
from palimpsest.engines.preflight import Use, with_share
from palimpsest.engines.protocol import Objective
from palimpsest.engines.vllm import server_process
from palimpsest.errors import ConfigError
from palimpsest.planning.model_shape import shape_of
from palimpsest.runs.run_folder import CONFIG

Machine = Callable[..., None]
VLLM = "2.13.0+cu130"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    def has(gpus: int, torch: str | None = VLLM, memory: float = 80e9) -> None:
        """`torch`: version in the servers' Python; None: it has no vLLM."""

        def torch_version() -> str:
            if torch is None:
                raise ConfigError("python has no vLLM: pip install vllm")
            return torch

        monkeypatch.setattr(compute, "memories", lambda: dict.fromkeys(map(str, range(gpus)), int(memory)))
        monkeypatch.setattr(compute, "gpus_but", lambda _: list(map(str, range(gpus))))
        monkeypatch.setattr(server_process, "_torch_of", torch_version)

    return has


@pytest.fixture
def config(tiny_model_folder: Path) -> Callable[..., RunConfig]:
    return lambda *words: load_recipe("memagent-quickstart", [f"model.path={tiny_model_folder}", *words])


def chosen(config: RunConfig, objective: Objective | None = "policy") -> tuple[RunConfig, list[str]]:
    """The resolved configuration and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolved = with_sampler(config, objective)
    return resolved, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("gpus", "objective", "words", "keys"),
    [
        (1, None, [], {}),
        (8, None, [], {}),
        (1, "policy", [], {"cluster.placement": "colocated"}),
        (1, "policy", ["model.lora.rank=4", "cold_start=null"], {"cluster.placement": "colocated"}),
        (8, "policy", [], {"sampler.devices": (7,)}),
        (8, "policy", ["train.max_off_policy_steps=1"], {"sampler.devices": (7,)}),
        (8, "policy", ["model.device=cuda:7"], {"cluster.placement": "colocated"}),
        (8, "policy", ["engine.name=ray", "cluster.learners=7"], {"cluster.placement": "separate"}),
        (8, "policy", ["engine.name=ray", "cluster.learners=8"], {"cluster.placement": "colocated"}),
    ],
)
def test_servers_sample_on_gpus_and_pass_the_checks_before_a_start(
    gpus: int, objective: Any, words: list[str], keys: dict[str, Any], machine: Machine, config: Any
) -> None:
    machine(gpus)
    resolved, warned = chosen(config(*words), objective)
    assert (resolved.sampler.name, warned) == ("vllm", [])
    assert RunConfig.model_validate(resolved.model_dump()) == resolved
    assert {key: getattr(getattr(resolved, key.split(".")[0]), key.split(".")[1]) for key in keys} == keys
    use = Use.of(resolved, objective, compute.memories())
    assert [w for w in use.check(shape_of(resolved.model.path)) if "idle" not in w] == []
    assert with_sampler(resolved, objective) is resolved
    shared = resolved.cluster.placement == "colocated" and resolved.engine.name == "embedded"
    assert ("gpu_memory_utilization" in with_share(resolved).sampler.changed()) == shared


@pytest.mark.parametrize(
    ("gpus", "objective", "words"),
    [
        (0, "policy", []),
        (0, None, []),
        (1, "nll", []),
        (8, "policy", ["model.device=cpu"]),
        (8, "policy", ["model.path=embedded"]),
        (8, None, ["model.path=embedded-tools"]),
        (8, None, ["engine.name=ray", "cluster.samplers=2"]),
        (8, None, ["engine={name: endpoint, url: 'http://127.0.0.1:1'}"]),
        (8, "policy", ["engine.name=my_module:MyEngine"]),
        (8, "policy", ["sampler.name=embedded"]),
    ],
)
def test_without_a_use_for_servers_the_engine_samples_and_nothing_is_warned(
    gpus: int, objective: Any, words: list[str], machine: Machine, config: Any
) -> None:
    machine(gpus, torch=None)
    resolved, warned = chosen(config(*words), objective)
    assert (resolved.sampler.name, warned) == ("embedded", [])
    assert resolved.cluster == config(*words).cluster


@pytest.mark.parametrize(
    ("gpus", "torch", "memory", "words", "reason"),
    [
        (1, None, 80e9, [], "pip install vllm"),
        (1, "2.13.0+cpu", 80e9, [], "computes on a CPU"),
        (8, VLLM, 80e9, ["roles={critic: {model: org/other}}"], "roles.critic.model"),
        (1, VLLM, 80e9, ["train.max_off_policy_steps=1"], "train.max_off_policy_steps=1"),
        (8, VLLM, 80e9, ["engine.name=ray", "cluster.samplers=2"], "cluster.samplers=2"),
        (1, VLLM, 9e9, [], "memory for 0 tokens"),
        (8, VLLM, 80e9, ["engine.name=ray", "cluster.address=10.0.0.5:6379", "cluster.folder=/s"], "cluster.address"),
    ],
)
def test_a_reason_against_servers_on_gpus_is_one_line_with_the_key_that_silences_it(
    gpus: int, torch: str | None, memory: float, words: list[str], reason: str, machine: Machine, config: Any
) -> None:
    machine(gpus, torch, memory)
    resolved, warned = chosen(config(*words))
    assert resolved.sampler.name == "embedded"
    (line,) = warned
    assert reason in line
    assert "sampler.name=embedded" in line
    assert "\n" not in line


def test_a_window_that_exceeds_the_servers_memory_is_cut(
    machine: Machine, tiny_model_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model_folder, tmp_path / "model")
    settings = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 2**31 - 1}
    (model / "config.json").write_text(json.dumps(settings))
    machine(1)
    sampler = chosen(load_recipe("memagent-quickstart", [f"model.path={model}"]), None)[0].sampler
    assert sampler.max_model_len is not None
    assert 16_384 <= sampler.max_model_len < 2**31 - 1


def test_an_evaluation_has_one_server_per_gpu_or_without_vllm_one_copy(machine: Machine) -> None:
    machine(8)
    assert layout_on(2, None) == ["sampler.name=vllm", "sampler.servers=2", "sampler.devices=[0,1]"]
    copies = layout_on(2, None, ["sampler.name=embedded"])
    assert copies[0] == "engine.name=ray"
    machine(8, torch=None)
    assert layout_on(2, None) == copies


def test_a_run_records_its_choice_and_resumes_with_it_anywhere(machine: Machine, config: Any, tmp_path: Path) -> None:
    machine(1)
    started = resolve_run(RunRequest(config(), out=tmp_path))
    assert started.config.sampler.name == "vllm"
    (tmp_path / CONFIG).write_text(dump_config(started.config))
    machine(0)
    for request in (RunRequest(resume=tmp_path), RunRequest(config(), out=tmp_path, resume=True)):
        assert resolve_run(request).config == started.config
    assert resolve_run(RunRequest(config(), out=tmp_path)).config.sampler.name == "embedded"
    (tmp_path / CONFIG).write_text(dump_config(resolve_run(RunRequest(config(), out=tmp_path)).config))
    machine(1)
    assert resolve_run(RunRequest(config(), out=tmp_path, resume=True)).config.sampler.name == "embedded"


@pytest.mark.parametrize("command", ["sft", "quickstart"])
def test_commands_without_servers_record_the_embedded_sampler(command: str, machine: Machine, config: Any) -> None:
    machine(1)
    assert resolve_run(RunRequest(config(), command=command)).config.sampler.name == "embedded"
