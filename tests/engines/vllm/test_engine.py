"""A learner that publishes to servers, which end, start again, and sleep while it learns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.engine import SamplerConfig
from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Limits, StepBatch
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.engines.vllm.engine import ServedLearner, ThisMachine, VllmSampler
from palimpsest.errors import ConfigError, SamplerError
from palimpsest.types import SamplingParams
from support.vllm_wire import Wire, eighths, reply, wire

PARAMS = SamplingParams(max_tokens=2, temperature=1.0, top_p=1.0, stop_ids=(), seed=1)
pytestmark = pytest.mark.filterwarnings("ignore:a server leaves")


class Process:
    """The process of a scripted server; a new one is awake."""

    def __init__(self, server: Wire) -> None:
        self.wire, self.running, self.folders = server, False, list[Path]()

    @property
    def starts(self) -> int:
        return len(self.folders)

    def start(self, model: Path) -> VllmClient:
        self.folders.append(model)
        self.running, self.wire.asleep = True, set()
        return VllmClient("server", self.wire.url)

    def check(self) -> None:
        if not self.running:
            raise SamplerError("the server ended")

    def stop(self) -> None:
        self.running = False


class Learner:
    """Records which servers use their GPUs while it learns, writes and scores."""

    def __init__(self, servers: list[Process]) -> None:
        self.version, self.moves, self._servers = 0, True, servers
        self.awake: list[list[bool]] = []
        self.written: list[Path] = []

    def _look(self) -> None:
        self.awake.append([server.running and not server.wire.asleep for server in self._servers])

    async def update(self, steps: Sequence[StepBatch]) -> list[Any]:
        self._look()
        self.version += self.moves
        return []

    async def write_weights(self, folder: Path) -> None:
        self._look()
        folder.mkdir()
        (folder / "model.safetensors").touch()
        self.written.append(folder)

    async def score(self, ids: list[int]) -> list[float]:
        self._look()
        return eighths(list(ids))

    async def load(self, folder: Path) -> None:
        self.version = 7


@dataclass
class Served:
    published: ServedLearner
    learner: Learner
    sampler: VllmSampler
    servers: list[Process]
    machine: ThisMachine

    async def sample(self, group: str = "") -> int:
        """Version of the weights."""
        return (await self.sampler.generate((5, 6), PARAMS, session=f"{group}/0")).policy_version

    async def until_up(self, index: int) -> None:
        while not self.sampler._pool._members[index].usable:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(
    tmp_path: Path, count: int = 2, *, started: bool = True, in_turns: bool = False
) -> AsyncIterator[Served]:
    """Servers with the weights of version 0; `started`: by the sampler, not by the user."""
    async with AsyncExitStack() as stack:
        servers = [Process(await stack.enter_async_context(wire())) for _ in range(count)]
        urls = () if started else tuple(server.wire.url for server in servers)
        settings = SamplerConfig(name="vllm", urls=urls, timeout_s=30, **({"servers": count} if started else {}))
        options: Any = {"mode": "raw_logprobs", "dtype": "float32", "logs": tmp_path}
        sampler = VllmSampler(settings, Limits(100, 64), server=lambda _, index, **__: servers[index], **options)
        learner: Any = Learner(servers)
        machine = ThisMachine(learner, tmp_path / "handover")
        published = ServedLearner(learner, sampler, machine, in_turns=in_turns)
        await published.publish()
        learner.awake.clear()
        yield Served(published, learner, sampler, servers, machine)
        machine.clear()
        machine.clear()
        await sampler.close()


async def test_a_version_is_written_once_into_a_new_folder_and_older_folders_are_deleted(tmp_path: Path) -> None:
    async with served(tmp_path, 1, started=False) as pool:
        (server,) = pool.servers
        assert [await pool.published.publish() for _ in range(3)] == [0, 0, 0]
        assert len(pool.learner.written) == len(server.wire.loaded) == 1
        pool.learner.version = 1
        assert [await pool.published.publish() for _ in range(2)] == [1, 1]
        await pool.published.load(tmp_path)  # a checkpoint's weights are not those that were published
        assert [await pool.published.publish() for _ in range(2)] == [7, 7]
        assert server.wire.loaded == [str(path) for path in pool.learner.written]
        assert len(set(pool.learner.written)) == 3
        assert [path for path in (tmp_path / "handover").iterdir() if path.is_dir()] == pool.learner.written[-1:]
    assert not (tmp_path / "handover").exists()


async def test_a_version_that_no_server_loaded_is_written_again(tmp_path: Path) -> None:
    async with served(tmp_path, 1, started=False) as pool:
        (server,) = pool.servers
        server.wire.faults["/collective_rpc"] = lambda _: reply(500, b"")
        pool.learner.version = 1
        with pytest.raises(SamplerError, match="all servers failed"):
            await pool.published.publish()
        server.wire.faults.clear()
        assert await pool.published.publish() == 1
        assert len(set(pool.learner.written)) == 3


def test_a_missing_folder_for_weights_is_an_error(tmp_path: Path, tiny_model_folder: Path) -> None:
    servers = ["sampler.name=vllm", "sampler.urls=[http://127.0.0.1:1]", f"sampler.folder={tmp_path / 'missing'}"]
    with pytest.raises(ConfigError, match=r"sampler\.folder=.*: no such folder; make it, or set it to null"):
        open_engine(
            load_recipe("memagent-quickstart", [*servers, f"model.path={tiny_model_folder}"]), objective="policy"
        )


# ---- servers that end --------------------------------------------------------------------------------------------


async def test_the_only_server_that_ends_with_the_new_weights_is_started_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, 1) as pool:
        answers = iter([reply(500, b""), reply(200, {"success": True})])
        pool.servers[0].wire.faults["/reset_prefix_cache"] = lambda _: next(answers)
        pool.learner.version = 1
        assert await pool.published.publish() == 1
        assert pool.servers[0].starts == 2


async def test_a_server_with_other_weights_reads_the_present_ones(tmp_path: Path) -> None:
    async with served(tmp_path, 1, started=False) as pool:
        pool.learner.version = 1
        await pool.published.publish()
        pool.servers[0].wire.version = "another"  # the user started it again
        with pytest.raises(SamplerError):
            await pool.sample()
        assert await pool.sample() == 1
        loaded = pool.servers[0].wire.loaded
        assert len(loaded) == 3
        assert loaded[1] == loaded[2]


async def test_a_server_that_ended_while_idle_is_reported_once(tmp_path: Path) -> None:
    async with served(tmp_path) as pool:
        pool.servers[1].running = False

        async def publish_twice() -> None:
            for pool.learner.version in (1, 2):
                await pool.published.publish()
                await pool.until_up(1)

        with pytest.warns(UserWarning, match="a server leaves the pool: the server ended") as warned:
            await asyncio.wait_for(publish_twice(), 60)
        assert len(warned) == 1


@asynccontextmanager
async def one_that_starts(tmp_path: Path) -> AsyncIterator[tuple[Served, Process, Process]]:
    """Two servers with version 1; the second ended, was started again and doesn't answer yet."""
    async with served(tmp_path) as pool:
        good, late = pool.servers
        late.running, late.wire.version = False, "default"
        late.wire.faults["/health"] = lambda _: reply(503, b"")
        pool.learner.version = 1
        async with asyncio.timeout(60):
            assert await pool.published.publish() == 1
        yield pool, good, late


async def requests_of(pool: Served, server: Process, groups: str) -> int:
    """Number of the `groups` that `server` samples for."""
    server.wire.prompts.clear()
    assert {await pool.sample(group) for group in groups} == {pool.sampler.version}
    return len(server.wire.prompts)


async def test_a_publication_does_not_wait_for_a_server_that_starts(tmp_path: Path) -> None:
    async with one_that_starts(tmp_path) as (pool, _, late):
        assert await requests_of(pool, late, "abcdefgh") == 0
        late.wire.faults.clear()
        await pool.until_up(1)
        assert await requests_of(pool, late, "ijklmnop") == 8  # the other has the groups before


async def test_a_server_that_starts_for_longer_than_a_step_keeps_its_folder_and_loads_the_next_weights(
    tmp_path: Path,
) -> None:
    async with one_that_starts(tmp_path) as (pool, _, late):
        pool.learner.version = 2
        await pool.published.publish()
        folder = late.folders[-1]
        assert (folder / "model.safetensors").is_file()
        late.wire.faults.clear()
        while not pool.sampler._pool._members[1].up:
            await asyncio.sleep(0.01)
        assert await requests_of(pool, late, "abcdefgh") == 0  # its weights are those of version 1
        pool.learner.version = 3
        await pool.published.publish()
        assert await requests_of(pool, late, "abcdefgh") == 4
        assert not folder.exists()
        assert late.starts == 2


async def test_requests_wait_for_the_last_server_to_start_and_get_the_newest_weights(tmp_path: Path) -> None:
    async with one_that_starts(tmp_path) as (pool, good, late):
        pool.learner.version = 2
        await pool.published.publish()
        broken = dict.fromkeys(["/health", "/pause", "/inference/v1/generate"], lambda _: reply(500, b""))
        good.wire.faults |= broken
        pool.sampler._pool._members[0].process = None  # the user started it
        with pytest.raises(SamplerError):
            await pool.sample()
        sampling = asyncio.create_task(pool.sample())
        late.wire.faults.clear()
        assert await sampling == 2
        assert late.starts == 2


# ---- servers that sleep while the learner uses their GPUs ---------------------------------------------------------


async def test_ranks_learn_and_write_while_servers_sleep_and_weights_come_before_the_cache(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        for server in pool.servers:
            server.wire.asked.clear()
        await pool.published.update([])
        assert await pool.published.publish() == 1
        assert pool.learner.awake == [[False, False]] * 3  # while it learns, writes and scores
        for server in pool.servers:
            assert server.wire.asked == [
                *("/sleep", "/wake_up", "/collective_rpc", "/wake_up", "/reset_prefix_cache"),
                *("/update_weight_version", "/weight_info", "/resume", "/inference/v1/generate"),
            ]
            assert not server.wire.asleep
        assert await pool.sample() == 1
        assert [server.starts for server in pool.servers] == [1, 1]


async def test_a_request_in_the_learners_turn_waits_for_the_new_weights(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        await pool.published.update([])
        sampling = asyncio.create_task(pool.sample())
        scoring = asyncio.create_task(pool.sampler.score((5,), (6,)))
        await asyncio.sleep(0.05)
        assert not any(server.wire.prompts[-1:] == [[5, 6]] for server in pool.servers)
        await pool.published.publish()
        assert await sampling == 1
        assert await scoring == (-0.75,)


async def test_an_update_without_a_step_wakes_the_servers_with_weights(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        pool.learner.moves = False
        await pool.published.update([])
        for _ in range(2):  # the second time, nothing is new and no server slept
            assert await pool.published.publish() == 0
            assert [len(server.wire.loaded) for server in pool.servers] == [1, 1]
        assert await pool.sample() == 0


async def test_a_server_that_ends_while_asleep_starts_with_the_next_weights(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        await pool.published.update([])
        pool.servers[0].running = False
        await pool.published.publish()
        await pool.until_up(0)
        assert [server.starts for server in pool.servers] == [2, 1]
        assert [len(server.wire.loaded) for server in pool.servers] == [0, 1]
        await pool.published.update([])
        assert all(server.wire.asleep for server in pool.servers)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/wake_up", reply(500, {"error": "out of memory"})),
        ("/collective_rpc", reply(500, {"error": "out of memory"})),
        ("/wake_up", reply(200, {"status": "sleeping", "tags": ["kv_cache"]})),
    ],
)
async def test_a_server_that_does_not_wake_up_ends_and_starts_again(path: str, fault: bytes, tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        await pool.published.update([])
        pool.servers[0].wire.faults[path] = lambda _: fault
        await pool.published.publish()
        assert [server.running for server in pool.servers] == [False, True]
        assert await pool.sample() == 1
        pool.servers[0].wire.faults.clear()
        await pool.published.update([])
        await pool.published.publish()
        await pool.until_up(0)
        assert [server.starts for server in pool.servers] == [2, 1]


async def test_a_server_that_left_the_pool_frees_its_gpu_before_the_learner_learns(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        broken = dict.fromkeys(["/health", "/inference/v1/generate"], lambda _: reply(500, b""))
        pool.servers[0].wire.faults |= broken
        answers = await asyncio.gather(*map(pool.sample, "ab"), return_exceptions=True)
        assert sum(isinstance(answer, SamplerError) for answer in answers) == 1
        assert pool.servers[0].running
        await pool.published.update([])
        assert pool.learner.awake == [[False, False]]
        assert not pool.servers[0].running


async def test_the_learner_waits_for_a_server_that_is_starting_and_sends_it_to_sleep(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        pool.servers[0].running = False
        pool.servers[0].wire.faults["/health"] = lambda _: reply(503, b"")
        pool.learner.version = 1
        await pool.published.publish()
        updating = asyncio.create_task(pool.published.update([]))
        await asyncio.sleep(0.05)
        assert pool.learner.awake[2:] == []  # it wrote and scored only
        pool.servers[0].wire.faults.clear()
        await updating
        assert pool.learner.awake[-1] == [False, False]
        assert pool.servers[0].wire.asleep


async def test_a_run_whose_servers_cannot_sleep_ends_with_the_reason(tmp_path: Path) -> None:
    async with served(tmp_path, in_turns=True) as pool:
        one, other = pool.servers
        one.wire.faults["/sleep"] = lambda _: reply(404, {"detail": "Not Found"})
        await pool.published.update([])  # the other can
        assert not one.running
        await pool.published.publish()
        other.wire.faults["/sleep"] = one.wire.faults["/sleep"]
        with pytest.raises(SamplerError, match=r"all servers failed: .*/sleep: status 404"):
            await pool.published.update([])
        assert len(pool.learner.awake) == 3
