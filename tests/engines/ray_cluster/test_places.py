"""What a cluster asks for, and where its processes are put; Ray itself is not started."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine
from palimpsest.errors import EngineError

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

import ray
import torch

from palimpsest.engines.ray import actor_group as groups
from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.engine import risk_of
from palimpsest.engines.ray.sharding import computed_in


def group_of(*overrides: str, copies: int = 0) -> ActorGroup:
    return ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", *overrides]), "policy", copies)


# ---- whom you trust -------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without what Ray reads, and given back as it was."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray, "init", lambda **options: None)
    return monkeypatch


def test_a_cluster_of_ours_asks_for_a_token_that_nobody_was_told(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tokens = []
    for _ in range(2):
        environment.setenv("RAY_AUTH_TOKEN", "")
        group_of()._connect(tmp_path, "mark")
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert [len(token) for token in tokens] == [64, 64]
    assert tokens[0] != tokens[1]


def test_a_token_of_the_user_s_is_kept(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("RAY_AUTH_TOKEN", "mine")
    environment.setenv("RAY_AUTH_MODE", "token")
    group_of()._connect(tmp_path, "mark")
    assert os.environ["RAY_AUTH_TOKEN"] == "mine"


@pytest.mark.parametrize("mode", ["disabled", "", "TOKEN"])
def test_a_cluster_of_ours_without_a_token_is_refused(
    environment: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    environment.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(EngineError, match=f"RAY_AUTH_MODE={mode}: .*; unset it"):
        group_of()._connect(tmp_path, "mark")


@pytest.mark.parametrize("mode", ["token", "disabled", None])
def test_joining_a_cluster_says_what_that_means(environment: pytest.MonkeyPatch, mode: str | None) -> None:
    if mode is not None:
        environment.setenv("RAY_AUTH_MODE", mode)
    told = risk_of("10.0.0.1:6379")
    assert told.startswith("cluster.address=10.0.0.1:6379: Ray and the ranks listen on all interfaces")
    assert ("and knows the token runs code there as you" in told) is (mode == "token")
    assert told.endswith("start Ray with RAY_AUTH_MODE=token") is (mode != "token")


@pytest.mark.parametrize("sampler", [[], ["sampler.name=vllm", "sampler.urls=[http://127.0.0.1:1]"]])
async def test_a_run_on_a_cluster_of_the_user_s_says_so_when_it_begins(
    sampler: list[str], tmp_path: Path, tiny_model_folder: Path
) -> None:
    joined = ["engine.name=ray", "cluster.address=10.0.0.1:6379", f"cluster.folder={tmp_path}"]
    config = load_recipe("memagent-quickstart", [*joined, *sampler, f"model.path={tiny_model_folder}"])
    engine = open_engine(config, objective="policy")
    assert risk_of("10.0.0.1:6379") in engine.limits.note
    await engine.close()


@pytest.mark.parametrize(
    ("overrides", "computed"),
    [
        ([], torch.float32),
        (["model.dtype=bfloat16"], torch.bfloat16),
    ],
)
def test_what_learners_compute_in_is_the_model_s_type(overrides: list[str], computed: torch.dtype) -> None:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", *overrides])
    assert computed_in(config.model) is computed


# ---- places ---------------------------------------------------------------------------------------------------------


class Placement:
    """A placement group of Ray's."""

    def __init__(self, bundles: list[dict[str, float]], strategy: str) -> None:
        self.bundles, self.room = bundles, True

    def wait(self, seconds: float) -> bool:
        """Machines have eight GPUs."""
        return all(bundle.get("GPU", 0) <= 8 for bundle in self.bundles) and len(self.bundles) < 9


def places(
    monkeypatch: pytest.MonkeyPatch,
    group: ActorGroup,
    ranks: list[float],
    copies: list[float],
    servers: list[float] | None = None,
) -> list[Any]:
    """What is reserved, then for each rank, sampler and server which of it is its own; None: Ray puts it anywhere."""
    monkeypatch.setattr(groups, "placement_group", lambda bundles, strategy: Placement(bundles, strategy))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 16.0})
    found = [options.get("scheduling_strategy") for options in group._reserve(ranks, copies, servers or [])]
    reserved = found[0].placement_group.bundles if found[0] else None
    return [reserved, *(each and each.placement_group_bundle_index for each in found)]


def test_on_cpus_nothing_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert places(monkeypatch, group_of(), [0.0, 0.0], [0.0]) == [None] * 4


def test_separate_processes_have_a_gpu_each_and_others_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = {"GPU": 1.0}, {"CPU": 1}
    assert places(monkeypatch, group_of(), [1.0, 1.0], [0.0]) == [[gpu, gpu, cpu], 0, 1, 2]


def test_colocated_learners_and_samplers_share_whole_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = group_of("cluster.placement=colocated", "cluster.gpus_per_learner=0.6", "cluster.gpus_per_sampler=0.4")
    whole = {"GPU": 1.0}
    assert places(monkeypatch, shared, [0.6, 0.6], [0.4, 0.4, 0.4]) == [[whole] * 3, 0, 1, 0, 1, 2]


VLLM = ("sampler.name=vllm", "sampler.servers=2")


def test_a_tensor_parallel_group_and_a_server_lie_on_one_machine_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle is never divided over machines."""
    group = group_of(*VLLM, "cluster.learners=4", "cluster.tensor_parallel_size=2", "sampler.tensor_parallel_size=4")
    two, four = {"GPU": 2.0}, {"GPU": 4.0}
    assert places(monkeypatch, group, [1.0] * 4, [], [4.0, 4.0]) == [[two, two, four, four], 0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("ranks", "width", "size", "servers", "bundles", "indices"),
    [
        (1, 1, 4, 4, 4, [0, 1, 2, 3, 0, 1, 2, 3]),
        (1, 2, 4, 2, 2, [0, 0, 1, 1, 0, 1]),
        (2, 1, 4, 4, 2, [0, 0, 1, 1, 0, 0, 1, 1]),
        (4, 2, 8, 4, 2, [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]),
    ],
)
def test_a_server_that_takes_turns_is_on_the_machine_of_its_ranks_and_reserves_no_gpu_of_its_own(
    ranks: int,
    width: int,
    size: int,
    servers: int,
    bundles: int,
    indices: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (f"cluster.tensor_parallel_size={ranks}", f"sampler.tensor_parallel_size={width}")
    group = group_of(
        VLLM[0], f"sampler.servers={servers}", "cluster.placement=colocated", f"cluster.learners={size}", *sizes
    )
    reserved, *places_ = places(monkeypatch, group, [1.0] * size, [], [0.0] * servers)
    assert reserved == [{"GPU": float(size // bundles)}] * bundles
    assert places_ == indices


def test_servers_on_cpus_are_spread_over_the_machines() -> None:
    options = group_of(*VLLM)._reserve([0.0], [], [0.0, 0.0])
    assert [each.get("scheduling_strategy") for each in options] == [None, "SPREAD", "SPREAD"]


@pytest.mark.parametrize(
    ("gpus", "devices"), [((0, 0), ["cpu", "cpu", "cpu"]), ((1, 0), ["auto", "auto", "cpu"]), ((1, 1), ["auto"] * 3)]
)
def test_a_process_without_a_gpu_of_its_own_computes_on_a_cpu_wherever_it_runs(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, int], devices: list[str]
) -> None:
    made: list[str] = []

    class Actor:
        def options(self, **_: Any) -> Actor:
            return self

        def remote(self, config: RunConfig, *_: Any) -> None:
            made.append(config.model.device)

    monkeypatch.setattr(ray, "remote", lambda _: Actor())
    monkeypatch.setattr(ActorGroup, "_reserve", lambda *_: [{}] * 3)
    ranks, samplers = gpus
    settings = (f"cluster.gpus_per_learner={ranks}", f"cluster.gpus_per_sampler={samplers}", "cluster.learners=2")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 16.0})
    group_of(*settings, copies=1)._create()
    assert made == devices


def test_a_cluster_without_room_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 4.0})
    with pytest.raises(
        EngineError, match=r"no room for 10 GPUs within .*; free are \{'CPU': 4\.0\}: lower cluster\.lear"
    ):
        places(monkeypatch, group_of(), [1.0] * 10, [])


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (
            {"CPU": 4.0},
            "the cluster has 0 GPUs, this run needs 2 of them: lower cluster.learners, cluster.samplers or sampler.ser",
        ),
        ({"CPU": 4.0, "GPU": 1.0}, "the cluster has 1 GPUs, this run needs 2 of them: lower cluster.learners"),
        ({"GPU": 2.0}, "the cluster has 0 CPUs, this run needs 1 of them: lower cluster.learners, cluster.samplers"),
    ],
)
def test_what_a_cluster_never_has_room_for_is_said_before_anything_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, float], told: str
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: there)
    monkeypatch.setattr(groups, "placement_group", lambda *_, **__: pytest.fail("waited for room"))
    with pytest.raises(EngineError, match=re.escape(told)):
        group_of()._reserve([1.0, 1.0], [0.0], [])


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        (["cluster.gpus_per_learner=1", "cluster.learners=3"], 3),
        (["cluster.gpus_per_learner=1", "cluster.gpus_per_sampler=1", "cluster.samplers=2"], 3),
        (["cluster.gpus_per_sampler=1", "cluster.samplers=3", "cluster.gpus_per_learner=0"], 3),
        (["cluster.learners=3"], 3),
        (
            [
                "cluster.placement=colocated",
                "cluster.gpus_per_learner=0.6",
                "cluster.gpus_per_sampler=0.4",
                "cluster.samplers=3",
            ],
            3,
        ),
    ],
)
async def test_gpus_that_this_machine_lacks_are_told_before_a_run_folder_is_made(
    overrides: list[str], needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", *overrides])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: needed - 1)
    with pytest.raises(EngineError, match=f"the cluster has {needed - 1} GPUs, this run needs {needed} of them"):
        open_engine(config, objective="policy")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: needed)
    await open_engine(config, objective="policy").close()


@pytest.mark.parametrize(
    ("visible", "device", "left"), [(None, 1, "0,2,3"), ("4,5,6,7", 6, "4,5,7"), ("4,5,6,7", 0, "4,5,6,7")]
)
async def test_ray_has_none_of_the_gpus_of_servers(
    visible: str | None, device: int, left: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("CUDA_VISIBLE_DEVICES", "")
    if visible is None:
        environment.delenv("CUDA_VISIBLE_DEVICES")
    else:
        environment.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen: list[str | None] = []
    environment.setattr(ray, "init", lambda **_: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    environment.setattr(torch.cuda, "device_count", lambda: 4)
    environment.setattr("palimpsest.engines.vllm.server_process.check_python", lambda _: None)
    served = ("sampler.name=vllm", f"sampler.devices=[{device}]")
    group_of(*served)._connect(tmp_path, "mark")
    assert seen == [left]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    ranks = ("cluster.gpus_per_learner=1", f"cluster.learners={len(left.split(',')) + 1}")
    config = load_recipe("memagent-quickstart", ["engine.name=ray", *served, *ranks])
    with pytest.raises(EngineError, match=f"has {len(left.split(','))} GPUs, this run needs"):
        open_engine(config, objective="policy")


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [([], 4), (["sampler.tensor_parallel_size=2"], 6), (["cluster.placement=colocated"], 2)],
)
@pytest.mark.parametrize("cpu_build", [False, True])
def test_servers_count_among_the_gpus_of_a_run_unless_they_take_turns_or_compute_on_cpus(
    overrides: list[str], needed: int, cpu_build: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", *VLLM, "cluster.learners=2", *overrides])
    monkeypatch.setattr(groups, "on_cpu", lambda: cpu_build)
    there = 2 if cpu_build else needed
    monkeypatch.setattr(groups, "gpus_but", lambda _: ["a GPU"] * there)
    groups.check_gpus(config, 2, 0)
    monkeypatch.setattr(groups, "gpus_but", lambda _: ["a GPU"] * (there - 1))
    with pytest.raises(EngineError, match=f"has {there - 1} GPUs, this run needs {there} of them"):
        groups.check_gpus(config, 2, 0)
