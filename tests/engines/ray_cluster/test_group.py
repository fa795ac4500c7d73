"""How the processes of a cluster are started, and what is said where they can't be."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from palimpsest.config.load import load_recipe
from palimpsest.engines import process_guard
from palimpsest.engines.open import open_engine
from palimpsest.errors import ConfigError, EngineError
from palimpsest.types import SamplingParams

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

import ray
import ray._private.worker as rays
from ray._private import services

from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.ray_runtime import PRINTS, TRIES, open_sockets, patient, prints_as_warnings

tries: list[str] = []
"""How often Ray was to ask a head, at each time that it was called."""


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Start Ray, or join one, where `ray.init` raises these; the times it was called."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for name in ("RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "0")

    tries.clear()

    def connect(*errors: Exception, overrides: tuple[str, ...] = ()) -> int:
        pending, called = list(errors), 0

        def init(**options: Any) -> None:
            nonlocal called
            called += 1
            tries.extend(filter(None, [os.environ.get(TRIES)]))
            if pending:
                raise pending.pop(0)

        monkeypatch.setattr(ray, "init", init)
        config = load_recipe("memagent-quickstart", ["engine.name=ray", *overrides])
        ActorGroup(config, None, 0)._connect(tmp_path, "test-starts")
        return called

    return connect


@pytest.mark.filterwarnings("ignore:Ray didn't start")
def test_ray_that_takes_too_long_is_started_again_without_what_it_had_started(connect: Callable[..., int]) -> None:
    left = psutil.Popen(["sleep", "600"], env={process_guard.MARK: "test-starts", "PATH": "/usr/bin:/bin"})
    assert connect(Exception("The current node timed out"), RuntimeError("Failed to start GCS.")) == 3
    assert left.wait(60) < 0


@pytest.mark.filterwarnings("ignore:Ray didn't start")
@pytest.mark.parametrize(
    "errors", [[Exception("timed out\nin lines")] * 3, [OSError("no space")], [RuntimeError("a cluster is there")]]
)
def test_what_keeps_ray_from_starting_is_told_in_a_line(connect: Callable[..., int], errors: list[Exception]) -> None:
    with pytest.raises(EngineError, match="Ray's start failed: ") as caught:
        connect(*errors)
    assert "\n" not in str(caught.value)


def test_ray_has_as_long_to_start_as_the_cluster_s_time_limit_says(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[..., int]
) -> None:
    late = [RuntimeError("no such node")] * 3

    def get_node(*_: object) -> dict[str, str]:
        if late:
            raise late.pop()
        return {"labels": "there"}

    monkeypatch.setattr(services, "get_node", get_node)
    with patient(60):
        assert rays_services().get_node("127.0.0.1:1", "node") == {"labels": "there"}  # Ray asks for 30 s otherwise
    late += [RuntimeError("no such node")] * 3
    with patient(-1), pytest.raises(RuntimeError, match="no such node"):
        rays_services().get_node("127.0.0.1:1", "node")
    assert services.get_node is get_node
    connect(overrides=("cluster.timeout_s=80",))
    assert tries in (["80"], ["79"])  # seconds that are left for the head


def rays_services() -> Any:
    return services


def test_what_listens_on_more_than_loopback_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)), socket.create_server(("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        assert [each.rpartition(" at ")[2] for each in open_sockets([psutil.Process()])] == [f"0.0.0.0:{port}"]


def joining(port: int, folder: Path) -> tuple[str, ...]:
    return f"cluster.address=127.0.0.1:{port}", f"cluster.folder={folder}", "cluster.timeout_s=80"


def test_a_cluster_that_can_not_be_joined_is_named_and_asked_for_no_longer_than_was_said(
    connect: Callable[..., int], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(EngineError, match=rf"cluster\.address=127\.0\.0\.1:{port}: joining failed: .*no such head"):
            connect(ConnectionError("no such head"), overrides=joining(port, tmp_path))
        assert connect(overrides=joining(port, tmp_path)) == 1
        assert tries == ["2", "2"]  # of some 36 s each
        assert TRIES not in os.environ


def test_an_address_where_nobody_listens_is_told_before_ray_looks_for_it(
    connect: Callable[..., int], tmp_path: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        port = silent.getsockname()[1]
        with pytest.raises(EngineError, match=rf"address=127\.0\.0\.1:{port}: joining failed: ConnectionRef"):
            connect(AssertionError("Ray was asked"), overrides=joining(port, tmp_path))


def test_a_folder_that_is_not_there_is_refused_before_a_model_is_read(tmp_path: Path) -> None:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", f"cluster.folder={tmp_path}/nowhere"])
    with pytest.raises(ConfigError, match=r"cluster\.folder=.*nowhere: not a writable folder"):
        open_engine(config, objective="policy")


def test_a_folder_named_from_where_the_run_began_has_its_whole_path_for_other_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process_guard, "start", lambda *_: None)
    for name in ("_connect", "_create", "collect"):
        monkeypatch.setattr(ActorGroup, name, lambda *_: None)
    group = ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", "cluster.folder=here"]), None, 0)
    group.start()
    assert group.folder.parent == tmp_path / "here"


async def test_what_keeps_processes_from_starting_is_told_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(group: ActorGroup) -> None:
        raise EngineError("no room for 8 GPUs")

    monkeypatch.setattr(ActorGroup, "start", start)
    config = load_recipe("memagent-quickstart", ["engine.name=ray"])
    engine = open_engine(config, objective="policy")
    assert engine.learner is not None
    with pytest.raises(EngineError, match="no room"):
        await engine.learner.publish()
    with pytest.raises(EngineError, match="no room"):  # as it is, though it is met on the way to a token
        await engine.sampler.generate((1,), SamplingParams(max_tokens=1))
    with pytest.raises(EngineError, match="no room"):
        await engine.sampler.score((1,), (2,))
    await engine.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Ray didn't start")
def test_ray_itself_is_started_again_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]


def test_what_ray_prints_by_itself_is_a_warning_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def say(text: str) -> None:
        getattr(rays, PRINTS)({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)

    with prints_as_warnings(), pytest.warns(UserWarning, match=r"^Ray: A worker died\.$"):
        say("\nA worker died.\nIts log follows.")
    assert capsys.readouterr() == ("", "")
    say("a line of Ray's for a Ray of somebody else")
    assert "of somebody else" in capsys.readouterr().out


JOIN = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(ray.get(ray.remote(lambda: 42).remote()))"


@pytest.mark.slow
def test_a_cluster_of_ours_lets_in_nobody_without_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):  # the token stays: Ray keeps the first of a process
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    group = ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray"]), None, 0)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(tmp_path)}
    try:
        group.start()
        command = [sys.executable, "-c", JOIN, ray.get_runtime_context().gcs_address]
        for token in (None, "0" * 64, os.environ["RAY_AUTH_TOKEN"]):
            own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
            own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # it comes by loopback, where the cluster is
            joined = subprocess.run(command, env=plain | own, capture_output=True, text=True, timeout=300, check=False)
            assert (joined.stdout.strip() == "42") is (token == os.environ["RAY_AUTH_TOKEN"]), joined.stderr
    finally:
        group.close()
