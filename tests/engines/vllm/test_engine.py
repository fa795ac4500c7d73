"""A learner whose weights go to servers: written once a version, handed over in a folder of a new name, and cleared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from palimpsest.config.engine import SamplerConfig
from palimpsest.config.load import load_recipe
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Limits
from palimpsest.engines.vllm.engine import ServedLearner, ThisMachine, VllmSampler
from palimpsest.errors import ConfigError, SamplerError
from support.vllm_wire import Wire, eighths, reply, wire


class Writes:
    """A learner of one version after the other."""

    def __init__(self) -> None:
        self.version = 0
        self.written: list[Path] = []

    async def write_weights(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").touch()
        self.written.append(folder)

    async def score(self, ids: Sequence[int]) -> list[float]:
        return eighths(list(ids))

    async def load(self, folder: Path) -> None:
        self.version = 7


def served(server: Wire, handover: Path) -> tuple[ServedLearner, Writes, VllmSampler, ThisMachine]:
    learner = Writes()
    sampler = VllmSampler(
        SamplerConfig(name="vllm", urls=(server.url,)),
        Limits(100, 64),
        mode="raw_logprobs",
        dtype="float32",
        logs=handover,
    )
    machine = ThisMachine(cast(Any, learner), handover)
    return ServedLearner(cast(Any, learner), sampler, machine), learner, sampler, machine


async def test_a_version_is_written_once_into_a_folder_of_a_new_name_and_those_before_it_go(tmp_path: Path) -> None:
    async with wire() as server:
        published, learner, sampler, machine = served(server, tmp_path / "handover")
        assert [await published.publish() for _ in range(3)] == [0, 0, 0]
        assert len(learner.written) == len(server.loaded) == 1
        learner.version = 1
        assert [await published.publish() for _ in range(2)] == [1, 1]
        await published.load(tmp_path)  # a checkpoint's weights are not those that were published
        assert [await published.publish() for _ in range(2)] == [7, 7]
        assert server.loaded == [str(path) for path in learner.written]
        assert len(set(learner.written)) == 3
        assert [path for path in (tmp_path / "handover").iterdir() if path.is_dir()] == learner.written[-1:]
        machine.clear()
        machine.clear()
        await sampler.close()
    assert not (tmp_path / "handover").exists()


@pytest.mark.filterwarnings("ignore:a server leaves")
async def test_a_version_that_no_server_took_is_written_again(tmp_path: Path) -> None:
    async with wire() as server:
        published, learner, sampler, machine = served(server, tmp_path / "handover")
        server.faults["/collective_rpc"] = lambda _: reply(500, b"")
        with pytest.raises(SamplerError, match="all servers failed"):
            await published.publish()
        server.faults.clear()
        assert await published.publish() == 0
        assert len(set(learner.written)) == 2
        machine.clear()
        await sampler.close()


async def test_weights_on_their_way_need_a_folder_that_is_there(tmp_path: Path, tiny_model_folder: Path) -> None:
    missing = tmp_path / "missing"
    servers = [
        "sampler.name=vllm",
        "sampler.urls=[http://127.0.0.1:1]",
        f"sampler.folder={missing}",
        f"model.path={tiny_model_folder}",
    ]
    with pytest.raises(ConfigError, match=r"sampler\.folder=.*: no such folder; make it, or set it to null"):
        open_engine(load_recipe("memagent-quickstart", servers), objective="policy")
