"""Servers that end, start and come back while weights are published: who samples by which weights, who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from palimpsest.config.engine import SamplerConfig
from palimpsest.engines.protocol import Limits
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.engines.vllm.engine import ServedLearner, ThisMachine, VllmSampler
from palimpsest.errors import SamplerError
from palimpsest.types import SamplingParams
from support.vllm_wire import Wire, eighths, reply, wire

PARAMS = SamplingParams(max_tokens=2, temperature=1.0, top_p=1.0, stop_ids=(), seed=1)
pytestmark = pytest.mark.filterwarnings("ignore:a server leaves")


class Writes:
    """A learner of one version after the other."""

    def __init__(self) -> None:
        self.version = 0

    async def write_weights(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").touch()

    async def score(self, ids: list[int]) -> list[float]:
        return eighths(ids)


class Ends:
    """The process of a server of ten lines."""

    def __init__(self, server: Wire, started: list[Path]) -> None:
        self._server, self._started, self.running = server, started, True

    def start(self, model: Path) -> VllmClient:
        self._started.append(model)
        self.running = True
        return VllmClient("server", self._server.url)

    def check(self) -> None:
        if not self.running:
            raise SamplerError("the server ended")

    def stop(self) -> None: ...


@asynccontextmanager
async def served(
    tmp_path: Path, count: int = 2
) -> AsyncIterator[tuple[ServedLearner, Writes, VllmSampler, list[Wire]]]:
    """Servers that have the weights of version 0."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(wire()) for _ in range(count)]
        config = SamplerConfig(name="vllm", urls=tuple(server.url for server in servers))
        sampler = VllmSampler(config, Limits(100, 64), mode="raw_logprobs", dtype="float32", logs=tmp_path)
        learner = Writes()
        machine = ThisMachine(cast(Any, learner), tmp_path / "handover")
        published = ServedLearner(cast(Any, learner), sampler, machine)
        await published.publish()
        yield published, learner, sampler, servers
        machine.clear()
        await sampler.close()


async def test_the_only_server_that_ends_with_the_new_weights_is_started_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, 1) as (published, learner, sampler, [server]):
        started: list[Path] = []
        process = Ends(server, started)
        sampler._pool._members[0].process, sampler._pool._members[0].started = cast(Any, process), True
        answers = iter([reply(500, b""), reply(200, {"success": True})])
        server.faults["/reset_prefix_cache"] = lambda _: next(answers)
        process.stop = lambda: setattr(process, "running", False)  # type: ignore[method-assign]
        learner.version = 1
        assert await published.publish() == 1
        assert len(started) == 1
        process.stop = lambda: None  # type: ignore[method-assign]


async def test_a_server_brought_back_reads_the_present_weights(tmp_path: Path) -> None:
    async with served(tmp_path, 1) as (published, learner, sampler, [server]):
        learner.version = 1
        await published.publish()
        server.version = "another"  # it was started again, by whomever
        with pytest.raises(SamplerError):
            await sampler.generate((5, 6), PARAMS)
        assert (await sampler.generate((5, 6), PARAMS)).policy_version == 1
        assert len(server.loaded) == 3
        assert server.loaded[1] == server.loaded[2]


@asynccontextmanager
async def one_that_starts(tmp_path: Path) -> AsyncIterator[tuple[ServedLearner, Writes, VllmSampler, list[Wire], Any]]:
    """Two servers, of which the second has ended and doesn't answer yet where it is started again."""
    async with served(tmp_path) as (published, learner, sampler, servers):
        member = cast(Any, sampler._pool._members[1])
        member.process = Ends(servers[1], [])
        member.process.running = False
        servers[1].version = "default"
        servers[1].faults["/health"] = lambda _: reply(503, b"")
        learner.version = 1
        async with asyncio.timeout(60):
            assert await published.publish() == 1
        yield published, learner, sampler, servers, member


async def sampled(sampler: VllmSampler, server: Wire, groups: str) -> int:
    """How many of the rollouts of eight `groups` `server` is asked for."""
    server.prompts.clear()
    versions = {(await sampler.generate((5, 6), PARAMS, session=f"{each}/0")).policy_version for each in groups}
    assert versions == {sampler.version}
    return len(server.prompts)


async def test_a_server_that_ended_while_idle_is_reported_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, sampler, [_, server]):
        member = cast(Any, sampler._pool._members[1])
        member.process, member.started = Ends(server, []), True
        member.process.running = False

        async def publish_twice() -> None:
            for learner.version in (1, 2):
                await published.publish()
                while not member.up:
                    await asyncio.sleep(0.01)

        with pytest.warns(UserWarning, match="a server leaves the pool: the server ended") as warned:
            await asyncio.wait_for(publish_twice(), 60)
        assert len(warned) == 1


async def test_a_server_that_starts_takes_part_without_a_publication_having_waited_for_it(tmp_path: Path) -> None:
    async with one_that_starts(tmp_path) as (_, _, sampler, [_, late], member):
        assert await sampled(sampler, late, "abcdefgh") == 0
        late.faults.clear()
        while not member.up:
            await asyncio.sleep(0.01)
        assert await sampled(sampler, late, "ijklmnop") == 8  # the other has the groups before


async def test_a_server_that_starts_for_longer_than_a_step_keeps_its_folder_and_loads_the_next_weights(
    tmp_path: Path,
) -> None:
    async with one_that_starts(tmp_path) as (published, learner, sampler, [_, late], member):
        learner.version = 2
        await published.publish()
        (folder,) = member.process._started
        assert (folder / "model.safetensors").is_file()
        late.faults.clear()
        while not member.up:
            await asyncio.sleep(0.01)
        assert await sampled(sampler, late, "abcdefgh") == 0  # its weights are those of version 1
        learner.version = 3
        await published.publish()
        assert await sampled(sampler, late, "abcdefgh") == 4
        assert not folder.exists()
        assert member.process._started == [folder]


async def test_the_last_server_left_is_waited_for_while_it_starts_and_then_has_the_newest_weights(
    tmp_path: Path,
) -> None:
    async with one_that_starts(tmp_path) as (published, learner, sampler, [good, late], member):
        learner.version = 2
        await published.publish()
        good.faults |= dict.fromkeys(["/health", "/pause", "/inference/v1/generate"], lambda _: reply(500, b""))
        with pytest.raises(SamplerError):
            await sampler.generate((5, 6), PARAMS)
        asking = asyncio.create_task(sampler.generate((5, 6), PARAMS))
        late.faults.clear()
        assert (await asking).policy_version == 2
        assert len(member.process._started) == 1
