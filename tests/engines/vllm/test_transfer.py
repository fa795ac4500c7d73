"""New weights that reach servers without a file: what is asked of whom in which order, and what becomes of a fault.

The servers are of ten lines; the real ones are in test_vllm_transfer.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from palimpsest.config.sampler import SamplerConfig
from palimpsest.engines.protocol import Limits, WeightsDescription
from palimpsest.engines.vllm import weight_push
from palimpsest.engines.vllm.client import Client
from palimpsest.engines.vllm.engine import ServedLearner, VllmSampler, check_names
from palimpsest.engines.vllm.weight_push import OverIpc, OverNccl
from palimpsest.errors import ConfigError, EngineError, ProcessesLost, SamplerError
from palimpsest.types import SamplingParams
from support.vllm_wire import Wire, eighths, reply, wire

UPDATE = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"]
AFTER = ["/reset_prefix_cache", "/update_weight_version", "/weight_info", "/resume", "/inference/v1/generate"]
PARAMS = SamplingParams(max_tokens=2, temperature=1.0, top_p=1.0, stop_ids=(), seed=1)
pytestmark = pytest.mark.filterwarnings("ignore:a server leaves")


class Sends:
    """A learner whose end of a transfer is a note in a list, or waits for ever, as NCCL's does for one that is gone."""

    def __init__(self) -> None:
        self.version, self.done = 0, list[object]()
        self.waits = self.fails = self.learning = False
        self._end = asyncio.Event()

    async def describe(self) -> WeightsDescription:
        return WeightsDescription(("model.safetensors.weight",), ("float32",), ((2, 3),))

    async def invite(self) -> str:
        return f"invitation {len(self.done)}"

    async def join(self, invitation: str, size: int) -> None:
        self.done.append((invitation, size))

    async def send(self) -> None:
        if self.fails:
            raise EngineError("broadcasting weights: NCCL error")
        if self.waits:
            await asyncio.Event().wait()
        self.done.append("send")

    async def expose(self) -> str:
        self.done.append("expose")
        return "handles"

    async def release(self) -> None:
        self.done.append("release")

    async def abort(self, reason: str) -> None:
        self.done.append("abort")

    async def part(self) -> None:
        self.done.append("part")

    async def write_weights(self, folder: Path) -> int:
        self.done.append("file")
        self.version += self.learning
        folder.mkdir()
        header = json.dumps({"model.safetensors.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})
        content = len(header).to_bytes(8, "little") + header.encode() + bytes(24)
        (folder / "model.safetensors").write_bytes(content)
        return self.version

    async def score(self, ids: list[int]) -> list[float]:
        return eighths(ids)


class Ends:
    """The process of a server of ten lines."""

    def __init__(self, server: Wire, started: list[Path]) -> None:
        self._server, self._started, self.running = server, started, True

    def start(self, model: Path) -> Client:
        self._started.append(model)
        self.running = True
        return Client("server", self._server.url)

    def check(self) -> None: ...
    def stop(self) -> None: ...


@asynccontextmanager
async def served(
    tmp_path: Path, count: int = 2, way: Callable[[Any], Any] = lambda learner: OverNccl(learner, 2), **settings: Any
) -> AsyncIterator[tuple[ServedLearner, Sends, VllmSampler, list[Wire]]]:
    """Servers that have the weights of version 0, by a file."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(wire()) for _ in range(count)]
        urls = tuple(server.url for server in servers)
        config = SamplerConfig(name="vllm", urls=urls, **settings)
        sampler = VllmSampler(config, Limits(100, 64), mode="raw_logprobs", dtype="float32", logs=tmp_path)
        learner = Sends()
        published = ServedLearner(learner, sampler, tmp_path / "handover", way(learner))
        await published.publish()
        assert learner.done == ["file"]
        learner.done.clear()
        for server in servers:
            assert "/start_weight_update" not in server.asked
            server.asked.clear()
        yield published, learner, sampler, servers
        published.clear()
        await sampler.close()


async def test_servers_that_are_up_join_the_learner_once_and_take_every_version_without_a_file(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, sampler, servers):
        bodies: list[dict[str, Any]] = []
        servers[1].watched["/init_weight_transfer_engine"] = bodies.append
        servers[1].watched["/update_weights"] = bodies.append
        for version in (1, 2):
            learner.version = version
            assert await published.publish() == version
        assert learner.done == [("invitation 0", 5), "send", "send"]
        for server in servers:
            assert server.asked == ["/pause", "/init_weight_transfer_engine", *UPDATE[1:], *AFTER, *UPDATE, *AFTER]
            assert len(server.loaded) == 1
        group = {"nccl_unique_id_b64": "invitation 0", "world_size": 5, "packed": False, "rank_offset": 3}
        weights = {"names": ["model.safetensors.weight"], "dtype_names": ["float32"], "shapes": [[2, 3]]}
        assert bodies == [{"init_info": group}, *[{"update_info": weights}] * 2]
        completion = await sampler.generate((5, 6), PARAMS)
        assert completion.policy_version == 2


async def test_the_group_is_made_anew_without_a_server_that_left_and_again_with_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, _, servers):
        learner.version = 1
        await published.publish()
        learner.done.clear()
        servers[1].faults["/pause"] = lambda _: reply(500, b"")
        learner.version = 2
        await published.publish()
        assert learner.done == [("invitation 0", 3), "send", "file"]
        assert servers[0].asked.count("/shutdown_weight_transfer_engine") == 1
        del servers[1].faults["/pause"]
        learner.done.clear()
        learner.version = 3
        await published.publish()  # by the file, which one that isn't sound reads
        assert learner.done == ["send", "file"]
        assert len(servers[1].loaded) == 2
        learner.done.clear()
        learner.version = 4
        await published.publish()
        assert learner.done == [("invitation 0", 5), "send"]


@pytest.mark.parametrize("path", UPDATE[1:])
async def test_where_one_server_fails_nobody_waits_for_it_and_all_read_the_file(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as (published, learner, _, servers):
        learner.waits = path == "/update_weights"
        servers[0].faults[path] = lambda _: reply(500, {"error": "CUDA error"})
        learner.version = 1
        with pytest.warns(UserWarning, match=rf"new weights did not reach it: .*{path}: status 500: .*CUDA error"):
            assert await published.publish() == 1
        assert learner.done[-1] == "file"
        assert ("abort" in learner.done) == (path == "/update_weights")
        assert [len(server.loaded) for server in servers] == [2, 2]
        servers[0].faults.clear()
        learner.waits = False
        learner.done.clear()
        learner.version = 2
        await published.publish()
        assert "send" in learner.done[-1:]


async def test_servers_that_refuse_to_meet_the_learner_end_the_run_for_good(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, _, servers):
        servers[0].faults["/init_weight_transfer_engine"] = lambda _: reply(400, {"error": "bad terms"})
        learner.version = 1
        with pytest.raises(
            EngineError, match=r"refuse to meet .*bad terms.*set sampler\.publish=safetensors"
        ) as caught:
            await published.publish()
        assert type(caught.value) is EngineError


@pytest.mark.parametrize("fault", [reply(500, {"error": "CUDA error"}), None])
async def test_a_learner_that_would_wait_for_a_peer_for_ever_ends_the_run(tmp_path: Path, fault: bytes | None) -> None:
    async with served(tmp_path, publish_timeout_s=1) as (published, learner, _, servers):
        servers[0].faults["/init_weight_transfer_engine"] = lambda _: fault
        learner.version = 1
        told = "not within 1 s; raise sampler.publish_timeout_s" if fault is None else ".*CUDA error.*"
        with pytest.raises(ProcessesLost, match=rf"servers and learner did not meet \({told}\); the run goes on from"):
            await published.publish()
        assert learner.done[-1] == "abort"


async def test_a_way_that_fails_twice_in_a_row_ends_the_run_by_its_name(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, _, servers):
        servers[0].faults["/update_weights"] = lambda _: reply(500, b"")
        learner.version = 1
        await published.publish()
        learner.version = 2
        with pytest.raises(SamplerError, match=r"sampler\.publish=.* failed twice: .*; set sampler\.publish=safetens"):
            await published.publish()


async def test_a_server_that_never_answers_is_given_up_after_the_limit(tmp_path: Path) -> None:
    async with served(tmp_path, publish_timeout_s=1) as (published, learner, _, servers):
        learner.waits = True
        servers[0].faults["/update_weights"] = lambda _: None
        learner.version = 1
        assert await published.publish() == 1
        assert learner.done[-2:] == ["abort", "file"]


async def test_what_fails_at_the_learner_is_the_run_s_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as (published, learner, _, servers):
        learner.fails = True
        servers[0].faults["/update_weights"] = lambda _: None  # it waits for what is never sent
        monkeypatch.setattr(weight_push, "_GRACE_S", 0.05)
        learner.version = 1
        with pytest.raises(EngineError, match="NCCL error"):
            await published.publish()
        assert learner.done[-1] == "abort"


async def test_a_server_that_is_gone_is_started_anew_though_the_learner_was_the_first_to_see_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, _, servers):
        learner.fails = True
        servers[0].faults["/update_weights"] = lambda _: reply(500, b"")
        learner.version = 1
        assert await published.publish() == 1
        assert learner.done[-2:] == ["abort", "file"]


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
        assert learner.done == [("invitation 0", 3), "send", "file"]
        assert len(started) == 1
        process.stop = lambda: None  # type: ignore[method-assign]


async def test_servers_that_end_with_the_new_weights_start_on_one_folder_of_them(tmp_path: Path) -> None:
    async with served(tmp_path) as (published, learner, sampler, servers):
        started: list[Path] = []
        for member, server in zip(sampler._pool._members, servers, strict=True):
            member.process, member.started = cast(Any, Ends(server, started)), True

        def end(_: object) -> None:
            for each in sampler._pool._members:
                cast(Any, each.process).running = False

        servers[0].watched["/finish_weight_update"] = end
        learner.version = 1
        assert await published.publish() == 1
        assert learner.done == [("invitation 0", 5), "send", "file"]
        assert len(started) == 2
        assert all((folder / "model.safetensors").is_file() for folder in started)
        await sampler.close()
        assert learner.done[-1] == "part"


async def test_a_server_brought_back_reads_the_present_weights_but_none_the_learner_has_left(tmp_path: Path) -> None:
    async with served(tmp_path, 1) as (published, learner, sampler, [server]):
        learner.version = 1
        await published.publish()
        server.version = "another"  # it was started anew, by whomever
        with pytest.raises(SamplerError):
            await sampler.generate((5, 6), PARAMS)
        learner.done.clear()
        assert (await sampler.generate((5, 6), PARAMS)).policy_version == 1
        assert learner.done == ["file"]
        learner.version = 2
        await published.publish()
        learner.learning = True  # an update is on its way, which the writing waits for
        server.version = "another"
        with pytest.raises(SamplerError):
            await sampler.generate((5, 6), PARAMS)
        for version in (3, 4):
            told = f"weights of version 2, and the learner has those of {version} by now; the run goes on from"
            with pytest.raises(ProcessesLost, match=told):
                await sampler.generate((5, 6), PARAMS)


@asynccontextmanager
async def one_that_starts(tmp_path: Path) -> AsyncIterator[tuple[ServedLearner, Sends, VllmSampler, list[Wire], Any]]:
    """Two servers, of which the second has ended and doesn't answer yet where it is started again."""
    async with served(tmp_path, way=lambda _: None) as (published, learner, sampler, servers):
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


async def test_by_ipc_handles_are_kept_until_the_server_computes_with_copies(tmp_path: Path) -> None:
    async with served(tmp_path, 1, OverIpc) as (published, learner, _, [server]):
        seen: list[dict[str, Any]] = []
        server.watched["/update_weights"] = seen.append
        server.watched["/finish_weight_update"] = lambda _: learner.done.append("finish")
        for version in (1, 2):
            learner.version = version
            await published.publish()
        assert learner.done == ["expose", "finish", "release"] * 2
        assert server.asked.count("/init_weight_transfer_engine") == 1
        assert [each["update_info"]["ipc_handles_pickled"] for each in seen] == ["handles"] * 2
        server.faults["/update_weights"] = lambda _: reply(500, b"")
        learner.version = 3
        await published.publish()
        assert learner.done[-3:] == ["expose", "release", "file"]


@pytest.mark.parametrize("fault", [reply(500, b""), None])
async def test_by_ipc_a_server_that_is_not_ready_starts_on_the_file(tmp_path: Path, fault: bytes | None) -> None:
    async with served(tmp_path, 1, OverIpc, publish_timeout_s=1) as (published, learner, _, [server]):
        server.faults["/init_weight_transfer_engine"] = lambda _: fault
        learner.version = 1
        await published.publish()
        assert learner.done == ["file"]


@pytest.mark.parametrize(
    ("names", "shapes"),
    [(("other",), ((2, 3),)), (("model.safetensors.weight",), ((3, 2),)), ((), ())],
)
async def test_weights_whose_files_name_them_otherwise_are_refused(tmp_path: Path, names: Any, shapes: Any) -> None:
    await Sends().write_weights(tmp_path / "folder")
    check_names(await Sends().describe(), tmp_path / "folder")
    with pytest.raises(ConfigError, match=r"don't name its weights as its class does .*set sampler\.publish=safeten"):
        check_names(WeightsDescription(names, ("float32",) * len(names), shapes), tmp_path / "folder")
