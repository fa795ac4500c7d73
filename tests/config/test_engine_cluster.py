"""`cluster`: combinations that cannot work are rejected by key before anything starts."""

from __future__ import annotations

import re

import pytest

from palimpsest.config.engine import ENGINES, RayEngineConfig
from palimpsest.config.load import load_recipe
from palimpsest.errors import ConfigError

RAY = "engine.name=ray"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["cluster.learners=2"], "cluster.learners=2 needs engine.name=ray"),
        (  # the first in the order of the section
            ["cluster.cpu_offload=true", "cluster.samplers=2", "cluster.learners=2", "cluster.folder=/a"],
            "cluster.learners=2 needs engine.name=ray",
        ),
        ([RAY, "cluster.learners=3", "cluster.tensor_parallel_size=2"], "does not divide cluster.learners=3"),
        ([RAY, "cluster.address=10.0.0.1:6379"], "set cluster.folder"),
        ([RAY, "cluster.gpus_per_learner=2"], "a process computes on one GPU"),
        ([RAY, "cluster.gpus_per_learner=0.5"], "placement=colocated"),
        ([RAY, "cluster.placement=colocated"], "must be above 0 and at most 1"),
        (
            [RAY, "cluster={placement: colocated, gpus_per_sampler: 0.5, tensor_parallel_size: 2, learners: 2}"],
            "cluster.tensor_parallel_size=2 with cluster.placement=colocated: set sampler.name=vllm",
        ),
        ([RAY, "model.device=cuda", "cluster.gpus_per_learner=0"], "cluster.gpus_per_learner=1"),
        ([RAY, "model.device=cuda:1"], "set model.device=auto"),
        ([RAY, "cluster.gpus_per_learner=1", "model.device=cpu"], "for it says cpu"),
        ([RAY, "cluster.gpus_per_sampler=1", "model.device=cpu"], "gpus_per_sampler=1: set model"),
        ([RAY, "cluster.learners=1000000"], "cluster.learners=1000000: must be a whole number, at least"),
        ([RAY, "cluster.timeout_s=1e300"], "at least 1 and at most 604800"),
        ([RAY, "cluster.address=local", "cluster.folder=/a"], "cluster.address='local': use HOST:PORT"),
        ([RAY, "cluster.address='ray://a:1'", "cluster.folder=/a"], "use HOST:PORT of the head"),
        ([RAY, "cluster.address='a:٣'", "cluster.folder=/a"], "cluster.address='a:٣': use HOST:PORT"),
        ([RAY, "cluster.timeout_s=0.5"], "cluster.timeout_s=0.5: must be a number, at l"),
        (["reward.judge={url: 'http://a/v1', model: m, timeout_s: 1e-9}"], "reward.judge.timeout_s=1e-09: must be a"),
        ([RAY, "engine.url=x"], "engine.url is a key of engine.name=endpoint, not of engine.name=ray: "),
        (["engine.url=x"], "engine.url is a key of engine.name=endpoint, not of engine.name=embedded: omit it"),
        (["engine={name: endpoint, url: 'http://a/v1', num_threads: 2}"], "is a key of engine.name=embedded and ray"),
        ([RAY, 'cluster.folder="a\\0b"'], "contains a NUL character"),
        ([RAY, "model.lora={}", "cold_start={}"], "set cold_start=null"),
        (
            [RAY, "model.lora={}", "cold_start=null", "cluster={learners: 4, tensor_parallel_size: 2}"],
            "divide adapters",
        ),
        (["engine.name=rai"], "did you mean ray"),
    ],
)
def test_combinations_that_cannot_work_are_rejected(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load_recipe("memagent-quickstart", overrides)


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "head.cluster:6379", "[fd00::1]:6379", "auto"])
def test_the_head_of_a_cluster_is_named_by_host_and_port(address: str) -> None:
    overrides = [RAY, f"cluster.address='{address}'", "cluster.folder=/a"]
    assert load_recipe("memagent-quickstart", overrides).cluster.address == address


@pytest.mark.parametrize("name", ENGINES)
def test_every_shipped_engine_has_a_section(name: str) -> None:
    needed = ["engine.url=http://127.0.0.1:8000/v1"] if name == "endpoint" else []
    assert load_recipe("memagent-quickstart", [f"engine.name={name}", *needed]).engine.name == name


def test_the_recipes_engine_settings_apply_on_ray() -> None:
    embedded, ray = (load_recipe("memagent-quickstart", names).engine for names in ([], [RAY]))
    assert isinstance(ray, RayEngineConfig)
    assert {**ray.model_dump(), "name": "embedded"} == embedded.model_dump()
