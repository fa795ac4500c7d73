"""Start and placement of the processes of a cluster; only slow tests start Ray itself."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.engines import process_guard
from palimpsest.engines.open import open_engine
from palimpsest.errors import EngineError

pytest.importorskip("ray", reason="needs the extra ray")

import ray
from ray._private import services

from palimpsest.engines.ray import actor_group as groups
from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.ray_runtime import TRIES


def group_of(*overrides: str, copies: int = 0) -> ActorGroup:
    return ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", *overrides]), "policy", copies)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without the variables that Ray reads; restored afterwards."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray, "init", lambda **options: None)
    return monkeypatch


Connect = Callable[..., list[str | None]]


@pytest.fixture
def connect(environment: pytest.MonkeyPatch, tmp_path: Path) -> Connect:
    """Start or join Ray, whose `ray.init` raises these errors; the variable `TRIES` at each call."""

    def connect(*errors: Exception, overrides: tuple[str, ...] = ()) -> list[str | None]:
        pending, tries = list(errors), list[str | None]()

        def init(**options: Any) -> None:
            tries.append(os.environ.get(TRIES))
            if pending:
                raise pending.pop(0)

        environment.setattr(ray, "init", init)
        config = load_recipe("memagent-quickstart", ["engine.name=ray", *overrides])
        ActorGroup(config, None, 0)._connect(tmp_path, "test-starts")
        return tries

    return connect


@pytest.mark.filterwarnings("ignore:Ray didn't start")
def test_a_late_ray_is_killed_and_started_again(connect: Connect) -> None:
    left = psutil.Popen(["sleep", "600"], env={process_guard.MARK: "test-starts", "PATH": "/usr/bin:/bin"})
    assert len(connect(Exception("The current node timed out"), RuntimeError("Failed to start GCS."))) == 3
    assert left.wait(60) < 0


@pytest.mark.filterwarnings("ignore:Ray didn't start")
@pytest.mark.parametrize(
    "errors", [[Exception("timed out\nin lines")] * 3, [OSError("no space")], [RuntimeError("a cluster is there")]]
)
def test_a_failed_start_of_ray_is_an_error_of_one_line(connect: Connect, errors: list[Exception]) -> None:
    with pytest.raises(EngineError, match="Ray's start failed: ") as caught:
        connect(*errors)
    assert "\n" not in str(caught.value)


def test_ray_waits_for_its_head_until_the_clusters_limit(connect: Connect) -> None:
    assert connect(overrides=("cluster.timeout_s=80",)) in (["80"], ["79"])  # seconds left for the head


def joining(port: int, folder: Path) -> tuple[str, ...]:
    return f"cluster.address=127.0.0.1:{port}", f"cluster.folder={folder}", "cluster.timeout_s=80"


def test_a_cluster_that_cannot_be_joined_is_named_within_the_limit(connect: Connect, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(EngineError, match=rf"cluster\.address=127\.0\.0\.1:{port}: joining failed: .*no such head"):
            connect(ConnectionError("no such head"), overrides=joining(port, tmp_path))
        assert connect(overrides=joining(port, tmp_path)) == ["2"]  # of some 36 s
        assert TRIES not in os.environ


def test_an_address_without_a_listener_is_an_error_before_ray_looks_for_it(connect: Connect, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # no other process gets the port or listens
        port = silent.getsockname()[1]
        with pytest.raises(EngineError, match=rf"address=127\.0\.0\.1:{port}: joining failed: ConnectionRef"):
            connect(AssertionError("Ray was asked"), overrides=joining(port, tmp_path))


def test_a_relative_folder_is_absolute_for_other_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process_guard, "start", lambda *_: None)
    for name in ("_connect", "_create", "collect"):
        monkeypatch.setattr(ActorGroup, name, lambda *_: None)
    group = ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", "cluster.folder=here"]), None, 0)
    group.start()
    assert group.folder.parent == tmp_path / "here"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Ray didn't start")
def test_a_late_real_ray_is_started_again_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    look: Any = services.get_node
    late = [True]

    def get_node(*arguments: Any) -> Any:
        if late:
            late.clear()
            raise Exception("The current node timed out during startup.")  # as Ray does after 30 s
        return look(*arguments)

    monkeypatch.setattr(services, "get_node", get_node)
    before = set(psutil.Process().children())  # of other tests, e.g. the resource tracker of multiprocessing
    group = ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray"]), None, 1)
    try:
        group.start()
        assert not late
        (copy,) = group.call(group.samplers, "pid", limit=group.limit())
        assert psutil.Process(copy).nice() == psutil.Process().nice()
    finally:
        group.close()
    assert not ray.is_initialized()
    assert not group.folder.exists()
    left = set(psutil.Process().children()) - before
    assert not [item for item in left if item.status() != psutil.STATUS_ZOMBIE]


JOIN = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(ray.get(ray.remote(lambda: 42).remote()))"


@pytest.mark.slow
def test_a_started_cluster_rejects_clients_without_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):  # the token stays: Ray keeps the first of a process
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    group = ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray"]), None, 0)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(tmp_path)}
    try:
        group.start()
        command = [sys.executable, "-c", JOIN, ray.get_runtime_context().gcs_address]
        for token in (None, "0" * 64, os.environ["RAY_AUTH_TOKEN"]):
            auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
            auth["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # it comes by loopback, where the cluster is
            joined = subprocess.run(command, env=plain | auth, capture_output=True, text=True, timeout=300, check=False)
            assert (joined.stdout.strip() == "42") is (token == os.environ["RAY_AUTH_TOKEN"]), joined.stderr
    finally:
        group.close()


def test_a_started_cluster_has_a_random_token(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokens = []
    for _ in range(2):
        environment.setenv("RAY_AUTH_TOKEN", "")
        group_of()._connect(tmp_path, "mark")
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert [len(token) for token in tokens] == [64, 64]
    assert tokens[0] != tokens[1]


def test_a_token_of_the_user_is_not_replaced(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("RAY_AUTH_TOKEN", "mine")
    environment.setenv("RAY_AUTH_MODE", "token")
    group_of()._connect(tmp_path, "mark")
    assert os.environ["RAY_AUTH_TOKEN"] == "mine"


@pytest.mark.parametrize("mode", ["disabled", "", "TOKEN"])
def test_a_started_cluster_without_a_token_is_rejected(
    environment: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    environment.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(EngineError, match=f"RAY_AUTH_MODE={mode}: .*; unset it"):
        group_of()._connect(tmp_path, "mark")


class Placement:
    """A placement group of Ray's."""

    def __init__(self, bundles: list[dict[str, float]], strategy: str) -> None:
        self.bundles, self.room = bundles, True

    def wait(self, seconds: float) -> bool:
        """Machines have eight GPUs."""
        return all(bundle.get("GPU", 0) <= 8 for bundle in self.bundles) and len(self.bundles) < 9


def places(monkeypatch: pytest.MonkeyPatch, group: ActorGroup, *sizes: list[float]) -> list[Any]:
    """The reserved bundles, then the bundle of each rank, sampler and server; None: Ray places it anywhere."""
    monkeypatch.setattr(groups, "placement_group", lambda bundles, strategy: Placement(bundles, strategy))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 16.0})
    chosen = [options.get("scheduling_strategy") for options in group._reserve(*sizes)]
    reserved = chosen[0].placement_group.bundles if chosen[0] else None
    return [reserved, *(strategy and strategy.placement_group_bundle_index for strategy in chosen)]


GPU, CPU = {"GPU": 1.0}, {"CPU": 1}
VLLM = ("sampler.name=vllm", "sampler.servers=2")
COLOCATED = "cluster.placement=colocated"
FRACTIONS = ("cluster.gpus_per_learner=0.6", "cluster.gpus_per_sampler=0.4")
DIVIDED = ("cluster.learners=4", "cluster.tensor_parallel_size=2", "sampler.tensor_parallel_size=4")


@pytest.mark.parametrize(
    ("overrides", "ranks", "copies", "servers", "placed"),
    [
        ((), [0.0, 0.0], [0.0], [], [None] * 4),  # nothing is reserved on CPUs
        ((), [1.0, 1.0], [0.0], [], [[GPU, GPU, CPU], 0, 1, 2]),
        ((COLOCATED, *FRACTIONS), [0.6, 0.6], [0.4, 0.4, 0.4], [], [[GPU] * 3, 0, 1, 0, 1, 2]),
        # a bundle, and thus a tensor-parallel group or a server, is on one machine
        ((*VLLM, *DIVIDED), [1.0] * 4, [], [4.0, 4.0], [[{"GPU": 2.0}] * 2 + [{"GPU": 4.0}] * 2, 0, 0, 1, 1, 2, 3]),
    ],
)
def test_processes_reserve_gpus_and_share_bundles(
    overrides: tuple[str, ...], ranks: list[float], copies: list[float], servers: list[float], placed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert places(monkeypatch, group_of(*overrides), ranks, copies, servers) == placed


@pytest.mark.parametrize(
    ("ranks", "width", "size", "bundles", "indices"),
    [
        (1, 1, 4, 4, [0, 1, 2, 3, 0, 1, 2, 3]),
        (1, 2, 4, 2, [0, 0, 1, 1, 0, 1]),
        (2, 1, 4, 2, [0, 0, 1, 1, 0, 0, 1, 1]),
        (4, 2, 8, 2, [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]),
    ],
)
def test_a_server_that_takes_turns_shares_the_bundles_of_its_ranks(
    ranks: int, width: int, size: int, bundles: int, indices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = len(indices) - size
    sizes = (f"cluster.tensor_parallel_size={ranks}", f"sampler.tensor_parallel_size={width}")
    group = group_of(VLLM[0], f"sampler.servers={servers}", COLOCATED, f"cluster.learners={size}", *sizes)
    placed = places(monkeypatch, group, [1.0] * size, [], [0.0] * servers)
    assert placed == [[{"GPU": float(size // bundles)}] * bundles, *indices]


def test_servers_on_cpus_are_spread_over_the_machines() -> None:
    options = group_of(*VLLM)._reserve([0.0], [], [0.0, 0.0])
    assert [item.get("scheduling_strategy") for item in options] == [None, "SPREAD", "SPREAD"]


@pytest.mark.parametrize(
    ("gpus", "devices"), [((0, 0), ["cpu", "cpu", "cpu"]), ((1, 0), ["auto", "auto", "cpu"]), ((1, 1), ["auto"] * 3)]
)
def test_a_process_without_a_gpu_computes_on_a_cpu_on_any_machine(
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


def test_a_cluster_without_room_names_its_free_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 4.0})
    message = r"no room for 10 GPUs within .*; free are \{'CPU': 4\.0\}: lower cluster\.lear"
    with pytest.raises(EngineError, match=message):
        places(monkeypatch, group_of(), [1.0] * 10, [], [])


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"CPU": 4.0}, "the cluster has 0 GPUs, this run needs 2 of them: lower cluster.learners, cluster.samplers or"),
        ({"GPU": 2.0}, "the cluster has 0 CPUs, this run needs 1 of them: lower cluster.learners, cluster.samplers"),
    ],
)
def test_a_cluster_too_small_for_a_run_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, resources: dict[str, float], message: str
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(groups, "placement_group", lambda *_, **__: pytest.fail("waited for room"))
    with pytest.raises(EngineError, match=re.escape(message)):
        group_of()._reserve([1.0, 1.0], [0.0], [])


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        (["cluster.gpus_per_learner=1", "cluster.learners=3"], 3),
        (["cluster.gpus_per_learner=1", "cluster.gpus_per_sampler=1", "cluster.samplers=2"], 3),
        (["cluster.gpus_per_sampler=1", "cluster.samplers=3", "cluster.gpus_per_learner=0"], 3),
        (["cluster.learners=3"], 3),
        ([COLOCATED, *FRACTIONS, "cluster.samplers=3"], 3),
    ],
)
async def test_missing_gpus_of_this_machine_are_an_error_before_a_run_folder_is_made(
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
async def test_ray_does_not_see_the_gpus_of_servers(
    visible: str | None, device: int, left: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        environment.delenv("CUDA_VISIBLE_DEVICES")
    visible_to_ray: list[str | None] = []
    environment.setattr(ray, "init", lambda **_: visible_to_ray.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    environment.setattr(torch.cuda, "device_count", lambda: 4)
    environment.setattr("palimpsest.engines.vllm.server_process.check_python", lambda _: None)
    served = ("sampler.name=vllm", f"sampler.devices=[{device}]")
    group_of(*served)._connect(tmp_path, "mark")
    assert visible_to_ray == [left]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    ranks = ("cluster.gpus_per_learner=1", f"cluster.learners={len(left.split(',')) + 1}")
    config = load_recipe("memagent-quickstart", ["engine.name=ray", *served, *ranks])
    with pytest.raises(EngineError, match=f"has {len(left.split(','))} GPUs, this run needs"):
        open_engine(config, objective="policy")


@pytest.mark.parametrize(
    ("overrides", "needed"), [([], 4), (["sampler.tensor_parallel_size=2"], 6), (["cluster.placement=colocated"], 2)]
)
@pytest.mark.parametrize("cpu_build", [False, True])
def test_servers_count_as_gpus_of_a_run_unless_they_take_turns_or_compute_on_cpus(
    overrides: list[str], needed: int, cpu_build: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", *VLLM, "cluster.learners=2", *overrides])
    monkeypatch.setattr(groups, "on_cpu", lambda: cpu_build)
    available = 2 if cpu_build else needed
    monkeypatch.setattr(groups, "gpus_but", lambda _: ["a GPU"] * available)
    groups.check_gpus(config, 2, 0)
    monkeypatch.setattr(groups, "gpus_but", lambda _: ["a GPU"] * (available - 1))
    with pytest.raises(EngineError, match=f"has {available - 1} GPUs, this run needs {available} of them"):
        groups.check_gpus(config, 2, 0)
