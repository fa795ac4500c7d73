"""How long processes are waited for, and what is said where one fails; Ray itself is not started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palimpsest.config.load import load_recipe
from palimpsest.errors import EngineError, ProcessesLost, RunError, SamplerError

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

import ray
from ray.exceptions import RayActorError, RayTaskError

from palimpsest.engines.ray import server_hosts
from palimpsest.engines.ray.actor_group import ActorGroup
from palimpsest.engines.ray.ray_runtime import Late, Limit
from palimpsest.engines.ray.server_hosts import ServerHost, ServerHosts, WrittenWeights


def group_of(*overrides: str) -> ActorGroup:
    return ActorGroup(load_recipe("memagent-quickstart", ["engine.name=ray", *overrides]), "policy", 0)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls are what they answer: an exception, None for never, or a value; the group that made them, once ended."""
    ended: list[Any] = []

    def wait(calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [call for call in calls if call is not None][:1]
        return ready, [call for call in calls if call not in ready]

    def get(calls: list[Any]) -> list[Any]:
        for call in calls:
            if isinstance(call, Exception):
                raise call
        return calls

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ActorGroup, "close", lambda group: ended.append(group))
    return ended


LIMIT = Limit("cluster.timeout_s", 10)


def failed(cause: Exception) -> RayTaskError:
    return RayTaskError("update", "a traceback\nof many lines", cause)  # type: ignore[no-untyped-call]


def test_all_answers_come_in_the_order_of_the_calls(called: list[Any]) -> None:
    assert group_of().collect([3, 1, 2], LIMIT, "update") == [3, 1, 2]
    assert not called


def test_processes_that_do_not_answer_in_time_are_ended_with_the_limit_and_its_key(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of("cluster.timeout_s=1")
    clock = count(step=0.75)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(ProcessesLost, match=r"^update: not done within 2 s; raise cluster\.timeout_s=1$"):
        group.collect([1, None], group.limit(2), "update")
    assert called == [group]


def test_what_is_asked_after_a_failure_is_told_the_first(called: list[Any]) -> None:
    group = group_of()
    for error in (RayActorError(), RunError("of no interest any more")):
        with pytest.raises(ProcessesLost, match=r"^update: .* lost a process \(RayActorError"):
            group.collect([error], LIMIT, "update")
    group._state = "lost"
    with pytest.raises(ProcessesLost, match=r"^update: .* lost a process \(RayActorError"):
        group.start()


def test_who_waits_while_all_is_lost_waits_no_longer(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    group, waits = group_of(), 0

    def wait(calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        nonlocal waits
        waits += 1
        group._answers.failed(RayActorError(), "save")  # in another thread
        return [], calls

    monkeypatch.setattr(ray, "wait", wait)
    for calls in ([None], [None], []):
        with pytest.raises(ProcessesLost, match=r"^save: .* lost a process"):
            group.collect(calls, LIMIT, "update")
    assert waits == 1


def test_ranks_that_gave_each_other_up_name_the_limit(called: list[Any]) -> None:
    with pytest.raises(ProcessesLost, match=r"Timed out waiting.*raise cluster\.timeout_s"):
        group_of().collect([failed(RuntimeError("[gloo] Timed out waiting 1000ms for recv"))], LIMIT, "update")


def test_what_the_user_can_mend_is_told_as_it_was_raised(called: list[Any]) -> None:
    raised = failed(RunError("cluster.folder: node does not see /a"))
    with pytest.raises(RunError, match=r"^cluster\.folder: node does not see /a$"):
        group_of().collect([1, raised], LIMIT, "starting")
    assert len(called) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [(RayActorError(), "RayActorError"), (failed(ZeroDivisionError("of\nlines")), "ZeroDivision")],
)
def test_a_lost_process_is_told_in_a_line_with_what_to_do(called: list[Any], error: Exception, told: str) -> None:
    with pytest.raises(ProcessesLost, match=rf"engine\.name=ray lost a process \({told}.*newest check") as caught:
        group_of().collect([error, None], LIMIT, "update")
    assert "\n" not in str(caught.value)
    assert len(called) == 1


# ---- servers: their failures end nothing ---------------------------------------------------------------------


class Remote:
    """An actor that works once its result is asked for."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(partial, self._methods[name]))


class Group:
    """As much of an ActorGroup as servers need; rank 0 is on machine a."""

    def __init__(self, *actors: Remote) -> None:
        self.actors, self.ended = actors, list[Any]()
        self.ranks = [Remote(read=lambda path, at, size: path.read_bytes()[at : at + size], keep=lambda names: None)]

    def check(self) -> None: ...

    def limit(self) -> Limit:
        return LIMIT

    def host(self, index: int, *_: object) -> Remote:
        return self.actors[index]

    def end(self, actor: Remote) -> None:
        self.ended.append(actor)

    def result(self, call: Callable[[], Any], limit: Limit, what: str) -> Any:
        return call()

    def call(self, actors: list[Remote], method: str, *arguments: Any, limit: Limit) -> list[Any]:
        return [getattr(actor, method).remote(*arguments)() for actor in actors]


def hosts_of(group: Group, folder: Path) -> ServerHosts:
    config = load_recipe("memagent-quickstart", ["engine.name=ray", "sampler.name=vllm", "cluster.learners=1"])

    def write(name: str) -> WrittenWeights:
        files = {file.name: file.stat().st_size for file in (folder / name).iterdir()}
        return WrittenWeights("a", folder / name, files)

    hosts = ServerHosts(config, group, write, 1)
    for index in range(len(group.actors)):
        hosts.server(config.sampler, index)
    hosts._make_actors()
    return hosts


def on_b() -> tuple[str, str]:
    return "b", "host-b"


async def test_a_server_that_ends_while_it_receives_weights_costs_its_machine_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_hosts, "PIECE", 4)
    (tmp_path / "1-version-0").mkdir()
    (tmp_path / "1-version-0" / "weights").write_bytes(b"0123456789")
    received: dict[int, bytes] = {}
    lost: list[int] = []

    def receive(index: int, name: str, file: str, *piece: Any) -> Path:
        if index in lost or (not lost and index in received):  # the first one, with its second piece
            lost[:] = [index]
            raise RayActorError
        received[index] = received.get(index, b"") + piece[-1]()
        return Path(f"/of-{index}") / name

    def link(index: int, folder: Path) -> Path:
        assert folder.parent != Path(f"/of-{lost[0]}")
        return Path(f"/of-{index}") / folder.name

    group = Group(*(Remote(node=on_b, receive=partial(receive, n), link=partial(link, n)) for n in range(3)))
    hosts = hosts_of(group, tmp_path)
    with pytest.warns(UserWarning, match="a server failed: vLLM server . on host-b: RayActorError"):
        await hosts.write("1-version-0")
    (first,) = lost
    assert group.ended == [group.actors[first]]
    places = [server.weights for server in hosts._servers]
    assert places == [None if n == first else Path(f"/of-{n}/1-version-0") for n in range(3)]
    assert sorted(received.values()) == [b"0123", b"0123456789"]


async def test_servers_of_a_machine_that_all_end_miss_the_weights(tmp_path: Path) -> None:
    (tmp_path / "1-version-0").mkdir()
    (tmp_path / "1-version-0" / "weights").write_bytes(b"0123456789")

    def receive(*_: object) -> Path:
        raise RayActorError

    hosts = hosts_of(Group(*(Remote(node=on_b, receive=receive) for _ in range(2))), tmp_path)
    with pytest.warns(UserWarning, match="a server failed"):
        folder = await hosts.write("1-version-0")
    for server in hosts._servers:
        with pytest.raises(SamplerError, match=r"RayActorError.*; it starts with the next weights"):
            server.start(folder)


async def test_weights_of_a_server_stay_when_the_one_that_received_them_ends(tmp_path: Path) -> None:
    settings = load_recipe("memagent-quickstart", ["sampler.name=vllm", f"sampler.folder={tmp_path}"]).sampler
    options = {"mode": "processed_logprobs", "dtype": "float32", "window": 64, "folder": tmp_path / "logs"}
    receiver, other, again = (ServerHost(settings, index, "", options) for index in range(3))
    for offset, piece in ((0, b"abc"), (3, b"def")):
        received = await receiver.receive("1-version-0", "weights", offset, piece)
    linked = await other.link(received)
    assert (linked / "weights").samefile(received / "weights")  # no second copy
    await again.link(received)
    await again.receive("1-version-0", "weights", 0, b"another")  # must not write into the file of the others
    for host in (again, receiver, other):
        assert (linked / "weights").read_bytes() == b"abcdef"
        assert host._weights is not None
        host._weights.clear()
    assert not linked.exists()


def test_a_server_without_an_actor_gives_the_reason_to_every_caller(tmp_path: Path) -> None:
    def check() -> None:
        raise RayActorError

    group = Group(Remote(node=on_b, check=check))
    (server,) = hosts_of(group, tmp_path)._servers
    for _ in range(2):  # another thread may ask again
        with pytest.raises(SamplerError, match="vLLM server 0 on host-b: RayActorError"):
            server.check()
    assert group.ended == [group.actors[0]]
    server.stop()
    assert not server.running


def test_a_server_whose_actor_fails_to_stop_ends_with_it(tmp_path: Path) -> None:
    def stop() -> None:
        raise EngineError("all have ended")

    group = Group(Remote(node=on_b, stop=stop))
    (server,) = hosts_of(group, tmp_path)._servers
    server.stop()
    assert group.ended == [group.actors[0]]
    with pytest.raises(SamplerError, match="all have ended"):
        server.check()


async def test_servers_that_do_not_answer_are_waited_for_together(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def frozen(_: object) -> None:
        together.wait(timeout=30)  # breaks if they are asked one after another
        raise Late("late; raise sampler.timeout_s=10")

    group = Group(*(Remote(node=on_b, keep=frozen) for _ in range(3)))
    hosts = hosts_of(group, tmp_path)
    with pytest.warns(UserWarning, match=r"a server failed: late; raise sampler\.timeout_s=10") as warned:
        await hosts.keep({"1-version-0"})
    assert len(warned) == 3
    assert set(group.ended) == set(group.actors)
    assert [server.actor for server in hosts._servers] == [None] * 3
