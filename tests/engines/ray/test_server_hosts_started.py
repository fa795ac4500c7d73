"""Servers on the machines of a real Ray: two raylets simulate two machines, a script vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.errors import EngineError, RunError, SamplerError
from support.cluster import machines, settings, with_a_token
from support.vllm_process import digests, pretender

pytest.importorskip("ray", reason="needs the extra ray")

from ray._private import state

from palimpsest.engines.ray import server_hosts
from palimpsest.engines.ray.server_hosts import ServerHosts

pytestmark = pytest.mark.slow
SERVED = ("engine.name=ray", "cluster.learners=2", "sampler.name=vllm", "sampler.max_model_len=512")
RANKS_TOGETHER = ("cluster.tensor_parallel_size=2",)  # both ranks on one machine


@pytest.fixture(autouse=True)
def _python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_VLLM_PYTHON", pretender(tmp_path))


@asynccontextmanager
async def hosts(tmp_path: Path, *overrides: str) -> AsyncIterator[ServerHosts]:
    """The server hosts of an engine before its start."""
    config = load_recipe("memagent-quickstart", [*settings(2), *SERVED, *overrides])
    engine: Any = open_engine(config, objective="policy", folder=tmp_path / "run")
    try:
        yield engine._hosts
    finally:
        await engine.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not true():
            await asyncio.sleep(0.1)


async def started(servers: ServerHosts, folder: Path) -> list[Any]:
    """A client of each server, once it answers."""
    return [await answering(server, folder) for server in servers._servers]


async def answering(server: Any, folder: Path) -> Any:
    client = await asyncio.to_thread(server.start, folder)
    async with asyncio.timeout(120):
        while True:
            try:
                await client.check_health()
                return client
            except SamplerError:
                await asyncio.sleep(0.2)


async def facts_of(client: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await client._ask("GET", "/seen")
    return answer


def of_ray(actor: Any) -> Any:
    """Ray's record of an actor."""
    return state.actors(actor._actor_id.hex())


def raylet_of(node: str) -> psutil.Process:
    raylets = [item for item in psutil.process_iter(["name", "cmdline"]) if item.info["name"] == "raylet"]
    (raylet,) = [item for item in raylets if any(node in word for word in item.info["cmdline"] or ())]
    return raylet


def test_weights_reach_every_machine_once_without_a_common_folder(tmp_path: Path) -> None:
    with_a_token(copied, tmp_path)


async def copied(tmp_path: Path) -> None:
    server_hosts.PIECE = 1 << 20  # several of a file
    with machines([3, 3]) as address:  # the ranks and a server, and three servers
        async with hosts(tmp_path, *RANKS_TOGETHER, f"cluster.address={address}", "sampler.servers=4") as served:
            first = await served.write("1-version-0")
            clients = await started(served, first)
            facts = [await facts_of(client) for client in clients]
            folders = [Path(fact["folder"]) for fact in facts]
            for file in first.iterdir():  # servers of a machine share the bytes of each
                copies = {
                    (s.node, (at / file.name).stat().st_ino) for s, at in zip(served._servers, folders, strict=True)
                }
                assert len(copies) == len({node for node, _ in copies}) == len({inode for _, inode in copies}) == 2
            assert first in folders  # that of the first rank
            assert all(fact["files"] == digests(first) for fact in facts)
            assert max(path.stat().st_size for path in first.iterdir()) > 3 << 20
            second = await served.write("2-version-1")
            for client in clients:
                await client.load(second, "tag")
            facts = [await facts_of(client) for client in clients]
            assert {Path(fact["folder"]).name for fact in facts} == {second.name}
            assert all(fact["files"] == digests(second) for fact in facts)
            await served.keep({second.name})
            parents = {Path(fact["folder"]).parent for fact in facts}
            assert not [parent / first.name for parent in parents if (parent / first.name).exists()]
        await until(lambda: not any(parent.exists() for parent in parents))
        await until(lambda: not any(psutil.pid_exists(fact["pid"]) for fact in facts))


def test_a_lost_actor_leaves_the_weights_to_the_other_servers_of_its_machine(tmp_path: Path) -> None:
    with_a_token(outlived, tmp_path)


async def outlived(tmp_path: Path) -> None:
    with machines([2, 2]) as address:
        async with hosts(tmp_path, *RANKS_TOGETHER, f"cluster.address={address}", "sampler.servers=2") as served:
            first = await served.write("1-version-0")
            await started(served, first)
            away: list[Any] = [server for server in served._servers if server.weights != first]
            other, receiver = away[0], away[-1]
            assert other is not receiver
            weights, received = other.weights, receiver.weights
            os.kill(of_ray(receiver.actor)["Pid"], signal.SIGKILL)
            await until(lambda: not received.exists())
            assert other.running
            await asyncio.to_thread(other.stop)
            fact = await facts_of(await answering(other, first))
            assert (fact["folder"], fact["files"]) == (str(weights), digests(first))


async def test_frozen_actors_end_and_their_servers_start_again(tmp_path: Path) -> None:
    async with hosts(tmp_path, "sampler.servers=2", "sampler.timeout_s=5") as served:
        await started(served, await served.write("1-version-0"))
        frozen = [psutil.Process(of_ray(server.actor)["Pid"]) for server in served._servers]
        for process in frozen:
            process.suspend()
        with pytest.warns(UserWarning, match=r"a server failed: vLLM server .*raise sampler\.timeout_s=5") as warned:
            second = await served.write("2-version-1")
        assert len([warning for warning in warned if "a server failed" in str(warning.message)]) == 2
        await until(lambda: not any(process.is_running() for process in frozen))
        assert {(await facts_of(client))["folder"] for client in await started(served, second)} == {str(second)}


def test_a_lost_machine_fails_its_servers_alone(tmp_path: Path) -> None:
    with_a_token(lost, tmp_path)


async def lost(tmp_path: Path) -> None:
    with machines([2, 1]) as address:
        async with hosts(tmp_path, *RANKS_TOGETHER, f"cluster.address={address}") as served:
            (client,) = await started(served, await served.write("1-version-0"))
            (server,), ranks = served._servers, served._group.ranks
            nodes = {of_ray(rank)["Address"]["NodeID"] for rank in ranks}
            assert len(nodes) == 1  # ranks of a tensor-parallel group
            assert server.node not in nodes
            assert (await facts_of(client))["gpus"] == "0"  # as Ray numbers those of a machine
            raylet_of(server.node).kill()
            await until(lambda: not server.running)
            with pytest.raises(SamplerError):
                await client.check_health()
            await asyncio.to_thread(server.stop)
            again = await served.write("2-version-1")  # the ranks are alive, and the lost machine is not waited for
            with pytest.raises(SamplerError, match="vLLM server 0"):
                server.start(again)


async def test_ended_servers_and_actors_start_again(tmp_path: Path) -> None:
    async with hosts(tmp_path, "sampler.servers=2") as served:
        folder = await served.write("1-version-0")
        clients = await started(served, folder)
        server, other = served._servers
        os.kill((await facts_of(clients[0]))["pid"], signal.SIGKILL)
        await until(lambda: not server.running)
        with pytest.raises(SamplerError, match="vLLM server 0 ended"):
            server.check()
        server.stop()
        clients = await started(served, folder)
        assert server.running
        os.kill(of_ray(server.actor)["Pid"], signal.SIGKILL)
        await until(lambda: not server.running)
        with pytest.raises(SamplerError):
            await clients[0].check_health()
        await clients[1].check_health()
        for number in range(2, 20):  # on a busy machine an actor takes its time
            second = await served.write(f"{number}-version-1")
            if server.weights is not None:
                break
        assert {(await facts_of(client))["folder"] for client in await started(served, second)} == {str(second)}
        assert other.running


async def test_requests_end_when_cancelled_or_with_ray(tmp_path: Path) -> None:
    async with hosts(tmp_path) as served:
        (client,) = await started(served, await served.write("1-version-0"))
        await client.sleep()  # requests wait
        asking = [asyncio.create_task(client._complete([1, 2], {"max_tokens": 1})) for _ in range(2)]
        await asyncio.sleep(1)
        asking[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking[0]
        await asyncio.to_thread(served._group.close)
        with pytest.raises(EngineError, match="have ended"):  # not a SamplerError: no episode is to blame
            await asking[1]


async def test_a_folder_that_a_machine_lacks_is_named(tmp_path: Path) -> None:
    async with hosts(tmp_path, f"sampler.folder={tmp_path}/none") as served:
        with pytest.raises(RunError, match=r"sampler\.folder=.*none: .*set sampler\.folder=null"):
            await served.write("1-version-0")
