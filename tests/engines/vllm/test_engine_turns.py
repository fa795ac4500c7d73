"""Servers that sleep while the learner uses their GPUs: in which order, and what happens to what fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from palimpsest.config.engine import SamplerConfig
from palimpsest.engines.protocol import Limits, StepBatch
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.engines.vllm.engine import ServedLearner, ThisMachine, VllmSampler
from palimpsest.errors import SamplerError
from palimpsest.types import SamplingParams
from support.vllm_wire import Wire, eighths, reply, wire

PARAMS = SamplingParams(max_tokens=2, temperature=1.0, top_p=1.0, stop_ids=(), seed=1)
pytestmark = pytest.mark.filterwarnings("ignore:a server leaves")


class Learns:
    """A learner that notes which servers hold a GPU as it learns and writes."""

    def __init__(self, servers: list[Started]) -> None:
        self.version, self.moves, self._servers = 0, True, servers
        self.held: list[list[bool]] = []

    def _look(self) -> None:
        self.held.append([server.running and not server.wire.asleep for server in self._servers])

    async def update(self, steps: Sequence[StepBatch]) -> list[Any]:
        self._look()
        self.version += self.moves
        return []

    async def write_weights(self, folder: Path) -> None:
        self._look()
        folder.mkdir()

    async def score(self, ids: list[int]) -> list[float]:
        self._look()
        return eighths(ids)


class Started:
    """The process of a server of ten lines. A new one is awake."""

    def __init__(self, server: Wire) -> None:
        self.wire, self.running, self.starts = server, False, 0

    def start(self, model: Path) -> VllmClient:
        self.running, self.starts = True, self.starts + 1
        self.wire.asleep = set()
        return VllmClient("server", self.wire.url)

    def check(self) -> None: ...

    def stop(self) -> None:
        self.running = False


@asynccontextmanager
async def turns(tmp_path: Path) -> AsyncIterator[tuple[ServedLearner, Learns, VllmSampler, list[Started]]]:
    """Two servers that sample with version 0."""
    async with AsyncExitStack() as stack:
        servers = [Started(await stack.enter_async_context(wire())) for _ in range(2)]
        sampler = VllmSampler(
            SamplerConfig(name="vllm", servers=2, timeout_s=30),
            Limits(100, 64),
            mode="raw_logprobs",
            dtype="float32",
            logs=tmp_path,
            server=lambda _, index, **__: servers[index],
        )
        learner = Learns(servers)
        machine = ThisMachine(cast(Any, learner), tmp_path / "handover")
        served = ServedLearner(cast(Any, learner), sampler, machine, in_turns=True)
        await served.publish()
        learner.held.clear()
        yield served, learner, sampler, servers
        machine.clear()
        await sampler.close()


async def test_ranks_learn_and_write_while_servers_sleep_and_weights_come_before_the_cache(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, learner, sampler, servers):
        for server in servers:
            server.wire.asked.clear()
        await served.update([])
        assert await served.publish() == 1
        assert learner.held == [[False, False]] * 3  # as it learns, writes and scores
        for server in servers:
            assert server.wire.asked == [
                *("/sleep", "/wake_up", "/collective_rpc", "/wake_up", "/reset_prefix_cache"),
                *("/update_weight_version", "/weight_info", "/resume", "/inference/v1/generate"),
            ]
            assert not server.wire.asleep
        assert (await sampler.generate((5, 6), PARAMS)).policy_version == 1
        assert [server.starts for server in servers] == [1, 1]


async def test_a_request_in_the_learner_s_turn_waits_for_the_new_weights(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, _, sampler, servers):
        await served.update([])
        asking = asyncio.create_task(sampler.generate((5, 6), PARAMS))
        scoring = asyncio.create_task(sampler.score((5,), (6,)))
        await asyncio.sleep(0.05)
        assert not any(server.wire.prompts[-1:] == [[5, 6]] for server in servers)
        await served.publish()
        assert (await asking).policy_version == 1
        assert await scoring == (-0.75,)


async def test_an_update_without_a_step_wakes_the_servers_too_for_they_have_no_weights(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, learner, sampler, servers):
        learner.moves = False
        await served.update([])
        assert await served.publish() == 0
        assert [len(server.wire.loaded) for server in servers] == [1, 1]
        assert (await sampler.generate((5, 6), PARAMS)).policy_version == 0
        assert await served.publish() == 0  # nothing new, and nobody slept
        assert [len(server.wire.loaded) for server in servers] == [1, 1]


async def test_a_server_that_ends_in_its_sleep_starts_with_the_next_weights(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, _, sampler, servers):
        await served.update([])
        servers[0].running = False
        await served.publish()
        while not sampler._pool._members[0].up:
            await asyncio.sleep(0.01)
        assert [server.starts for server in servers] == [2, 1]
        assert [len(server.wire.loaded) for server in servers] == [0, 1]
        assert all(member.usable for member in sampler._pool._members)
        await served.update([])
        assert all(server.wire.asleep for server in servers)


@pytest.mark.parametrize("path", ["/wake_up", "/collective_rpc"])
async def test_a_server_that_does_not_wake_up_ends_and_starts_again(path: str, tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, _, sampler, servers):
        await served.update([])
        servers[0].wire.faults[path] = lambda _: reply(500, {"error": "out of memory"})
        await served.publish()
        assert not servers[0].running
        assert (await sampler.generate((5, 6), PARAMS)).policy_version == 1
        servers[0].wire.faults.clear()
        await served.update([])
        await served.publish()
        while not sampler._pool._members[0].usable:
            await asyncio.sleep(0.01)
        assert [server.starts for server in servers] == [2, 1]


async def test_a_server_that_stays_partly_asleep_samples_nothing(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, _, _, servers):
        await served.update([])
        servers[0].wire.faults["/wake_up"] = lambda _: reply(200, {"status": "sleeping", "tags": ["kv_cache"]})
        await served.publish()
        assert [server.running for server in servers] == [False, True]


async def test_a_server_that_left_the_pool_gives_its_gpu_up_before_the_learner_learns(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, learner, sampler, servers):
        broken = dict.fromkeys(["/health", "/inference/v1/generate"], lambda _: reply(500, b""))
        servers[0].wire.faults |= broken
        calls = [sampler.generate((5, 6), PARAMS, session=f"{group}/0") for group in "ab"]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, SamplerError) for answer in answers) == 1
        assert servers[0].running
        await served.update([])
        assert learner.held == [[False, False]]
        assert not servers[0].running


async def test_the_learner_waits_for_a_server_that_is_starting_and_sends_it_to_sleep(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, learner, _, servers):
        servers[0].running = False
        servers[0].wire.faults["/health"] = lambda _: reply(503, b"")
        learner.version = 1
        await served.publish()
        updating = asyncio.create_task(served.update([]))
        await asyncio.sleep(0.05)
        assert learner.held[2:] == []  # it wrote and scored, and has not learnt
        servers[0].wire.faults.clear()
        await updating
        assert learner.held[-1] == [False, False]
        assert servers[0].wire.asleep


async def test_servers_that_cannot_sleep_end_the_run_with_the_reason(tmp_path: Path) -> None:
    async with turns(tmp_path) as (served, learner, _, servers):
        servers[0].wire.faults["/sleep"] = lambda _: reply(404, {"detail": "Not Found"})
        await served.update([])  # the other can
        assert not servers[0].running
        await served.publish()
        servers[1].wire.faults["/sleep"] = servers[0].wire.faults["/sleep"]
        with pytest.raises(SamplerError, match=r"all servers failed: .*/sleep: status 404"):
            await served.update([])
        assert len(learner.held) == 3
