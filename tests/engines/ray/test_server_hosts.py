"""Servers on the machines of a cluster fail alone; Ray itself is not started."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import numpy as np
import pytest

from palimpsest.config.load import load_recipe
from palimpsest.errors import EngineError, SamplerError
from support.vllm_process import digests

pytest.importorskip("ray", reason="needs the extra ray")

from ray.exceptions import RayActorError, RayTaskError

from palimpsest.engines.ray import server_hosts
from palimpsest.engines.ray.ray_runtime import Late, Limit, WrittenWeights
from palimpsest.engines.ray.server_hosts import ServerHost, ServerHosts

LIMIT = Limit("cluster.timeout_s", 10)


class Remote:
    """An actor whose methods run when their result is fetched."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(partial, self._methods[name]))


class Group:
    """The methods of an ActorGroup that servers use; rank 0 is on machine a."""

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


def on_b(**methods: Callable[..., Any]) -> Remote:
    return Remote(node=lambda: ("b", "host-b"), **methods)


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


class Machine:
    """A server that gets weights, and fails from piece number `fails` on."""

    def __init__(self, folder: Path, fails: int | None = None, machine: str | None = None) -> None:
        self.folder, self.fails, self.machine = folder, fails, machine or folder.name
        self.pieces: list[tuple[str, int]] = []
        self.before: list[Machine] = []
        """Machines that Ray can take a piece from by then."""
        methods = {"create": self.create, "receive": self.receive, "link": self.link, "keep": lambda names: None}
        self.actor = Remote(node=lambda: (self.machine, f"host-{self.machine}"), **methods)

    def create(self, name: str, names: Sequence[str]) -> Path:
        (self.folder / name).mkdir(parents=True)
        for file in names:
            (self.folder / name / file).touch()
        return self.folder / name

    def receive(self, file: Path, at: int, piece: Callable[[], bytes]) -> None:
        assert all((file.name, at) in other.pieces for other in self.before)
        if self.fails is not None and self.fails <= len(self.pieces):
            raise RayActorError
        content = piece()
        with file.open("r+b") as written:
            written.seek(at)
            written.write(content)
        self.pieces.append((file.name, at))

    def link(self, folder: Path) -> Path:
        return Path(shutil.copytree(folder, self.folder / folder.name))


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights in 61 pieces of two files."""
    monkeypatch.setattr(server_hosts, "PIECE", 16)
    folder = tmp_path / "1-version-0"
    folder.mkdir()
    (folder / "a").write_bytes(os.urandom(16 * 60))
    (folder / "b").write_bytes(b"less")
    return folder


@pytest.mark.parametrize("number", [1, 2, 3, 9])
async def test_every_machine_gets_every_byte_with_few_pieces_in_flight(number: int, written: Path) -> None:
    machines = [Machine(written.parent / str(n)) for n in range(number)]
    for n, machine in enumerate(machines, 1):
        machine.before = machines[: (1 << (n.bit_length() - 1)) - 1]  # of the previous waves of 1, 2, 4
    group = Group(*(machine.actor for machine in machines))
    pieces, counts, read = WeakSet[Any](), list[int](), group.ranks[0].read.remote

    def counted(*arguments: Any) -> Any:
        pieces.add(piece := read(*arguments))
        counts.append(len(pieces))
        return piece

    group.ranks = cast(Any, [SimpleNamespace(read=SimpleNamespace(remote=counted))])
    hosts = hosts_of(group, written.parent)
    await hosts.write(written.name)
    assert [server.weights for server in hosts._servers] == [machine.folder / written.name for machine in machines]
    assert all(digests(machine.folder / written.name) == digests(written) for machine in machines)
    assert 1 < max(counts) <= server_hosts._AHEAD * number.bit_length() + 1


@pytest.mark.parametrize("failing", [0, 1, 3])
async def test_other_machines_get_weights_when_one_fails_half_way(failing: int, written: Path) -> None:
    machines = [Machine(written.parent / str(n), fails=20 if n == failing else None) for n in range(4)]
    group = Group(*(machine.actor for machine in machines))
    hosts = hosts_of(group, written.parent)
    with pytest.warns(UserWarning, match=f"a server failed: vLLM server {failing} on host-{failing}: RayActorError"):
        await hosts.write(written.name)
    assert group.ended == [machines[failing].actor]
    assert [server.weights is None for server in hosts._servers] == [n == failing for n in range(4)]
    left = [machine for machine in machines if machine.fails is None]
    assert all(digests(machine.folder / written.name) == digests(written) for machine in left)


async def test_a_file_that_the_first_rank_lacks_is_an_error_of_the_run(written: Path) -> None:
    def failing(error: Exception) -> Callable[..., None]:
        def fail(*_: Any) -> None:
            raise error

        return fail

    lost = failing(RayTaskError("receive", "a traceback", FileNotFoundError()))  # type: ignore[no-untyped-call]
    machines = [Machine(written.parent / str(n)) for n in range(2)]
    for machine in machines:
        machine.actor._methods["receive"] = lost
    group = Group(*(machine.actor for machine in machines))
    group.ranks = [Remote(read=failing(EngineError("the weights: no such file")))]
    with pytest.warns(UserWarning, match="a server failed"), pytest.raises(EngineError, match="no such file"):
        await hosts_of(group, written.parent).write(written.name)


async def test_a_server_that_ends_while_it_receives_weights_leaves_them_to_its_machine(written: Path) -> None:
    servers = [Machine(written.parent / str(n), 20 if n == 2 else None, machine="b") for n in range(3)]
    group = Group(*(server.actor for server in servers))
    hosts = hosts_of(group, written.parent)
    with pytest.warns(UserWarning, match="a server failed: vLLM server 2 on host-b: RayActorError"):
        await hosts.write(written.name)
    assert group.ended == [servers[2].actor]
    folders = [server.folder / written.name for server in servers]
    assert [server.weights for server in hosts._servers] == [*folders[:2], None]
    assert digests(folders[0]) == digests(folders[1]) == digests(written)
    assert (len(servers[0].pieces), len(servers[1].pieces)) == (0, 61)  # the other has links


async def test_servers_of_a_machine_that_all_end_miss_the_weights(tmp_path: Path) -> None:
    (tmp_path / "1-version-0").mkdir()
    (tmp_path / "1-version-0" / "weights").write_bytes(b"0123456789")

    def receive(*_: object) -> Path:
        raise RayActorError

    hosts = hosts_of(Group(*(on_b(create=receive) for _ in range(2))), tmp_path)
    with pytest.warns(UserWarning, match="a server failed"):
        folder = await hosts.write("1-version-0")
    for server in hosts._servers:
        with pytest.raises(SamplerError, match=r"RayActorError.*; it starts with the next weights"):
            server.start(folder)


async def test_weights_of_a_server_stay_when_the_one_that_received_them_ends(tmp_path: Path) -> None:
    settings = load_recipe("memagent-quickstart", ["sampler.name=vllm", f"sampler.folder={tmp_path}"]).sampler
    options = {"mode": "processed_logprobs", "dtype": "float32", "window": 64, "folder": tmp_path / "logs"}
    receiver, other, again = (ServerHost(settings, index, "", options) for index in range(3))
    received = await receiver.create("1-version-0", ["weights"])
    for offset, piece in ((3, b"def"), (0, b"abc")):
        await receiver.receive(received / "weights", offset, np.frombuffer(piece, np.uint8))
    linked = await other.link(received)
    assert (linked / "weights").samefile(received / "weights")  # no second copy
    await again.link(received)
    copied = await again.create("1-version-0", ["weights"])  # must not write into the file of the others
    await again.receive(copied / "weights", 0, np.frombuffer(b"another", np.uint8))
    for host in (again, receiver, other):
        assert (linked / "weights").read_bytes() == b"abcdef"
        assert host._weights is not None
        host._weights.clear()
    assert not linked.exists()


def test_a_server_without_an_actor_raises_the_reason_for_every_caller(tmp_path: Path) -> None:
    def check() -> None:
        raise RayActorError

    group = Group(on_b(check=check))
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

    group = Group(on_b(stop=stop))
    (server,) = hosts_of(group, tmp_path)._servers
    server.stop()
    assert group.ended == [group.actors[0]]
    with pytest.raises(SamplerError, match="all have ended"):
        server.check()


async def test_servers_that_do_not_answer_are_waited_for_together(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def frozen(_: object) -> None:
        together.wait(timeout=30)  # breaks if calls are made one after another
        raise Late("late; raise sampler.timeout_s=10")

    group = Group(*(on_b(keep=frozen) for _ in range(3)))
    hosts = hosts_of(group, tmp_path)
    with pytest.warns(UserWarning, match=r"a server failed: late; raise sampler\.timeout_s=10") as warned:
        await hosts.keep({"1-version-0"})
    assert len(warned) == 3
    assert set(group.ended) == set(group.actors)
    assert [server.actor for server in hosts._servers] == [None] * 3
