"""The learner's end of weights that go to servers without a file, as far as a CPU knows it; the rest is played by the
real vLLM in test_vllm_transfer.py, on a CPU, and test_gpu_vllm.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palimpsest.config.model import AdapterConfig, ModelConfig
from palimpsest.config.schema import OptimConfig
from palimpsest.engines.embedded import transfer
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model import trainable
from palimpsest.engines.embedded.thread import ComputeThread
from palimpsest.engines.embedded.transfer import IpcSender, LocalSender, NcclSender
from palimpsest.engines.protocol import WeightsDescription
from palimpsest.errors import ConfigError, EngineError

CPU = torch.device("cpu")


def learner_on(folder: Path, **settings: Any) -> ForestLearner:
    return ForestLearner(trainable(ModelConfig(path=str(folder), **settings)), optim=OptimConfig())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "bfloat16"},
        pytest.param(
            {"lora": AdapterConfig(rank=4)},
            marks=pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra lora"),
        ),
    ],
)
def test_what_is_sent_is_what_the_file_holds(
    settings: dict[str, Any], tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "check_gpu", lambda _: None)
    learner = learner_on(tiny_model_folder, **settings)
    learner.write_weights(tmp_path / "file")
    wanted: dict[str, torch.Tensor] = {}
    for file in (tmp_path / "file").glob("*.safetensors"):
        wanted |= load_file(file)
    with torch.no_grad():
        sent = dict(learner.whole_weights())
    assert sent.keys() == wanted.keys()
    assert all(torch.equal(sent[name], wanted[name]) for name in wanted)
    described = NcclSender(learner.whole_weights, CPU).description
    assert described.names == tuple(sent)
    assert described.shapes == tuple(tuple(value.shape) for value in sent.values())
    assert set(described.dtypes) == {settings.get("dtype", "float32")}


@pytest.mark.parametrize("kind", [NcclSender, IpcSender])
def test_a_learner_on_a_cpu_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"sampler\.publish: the learner computes on cpu.*set sampler\.publish=safet"):
        kind(lambda: iter(()), CPU)


def test_weights_are_sent_to_those_alone_who_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "check_gpu", lambda _: None)
    gathered = list[int]()

    def weights() -> Any:
        gathered.append(1)
        yield "weight", torch.zeros(2)

    with pytest.raises(EngineError, match="no server has joined"):
        NcclSender(weights, CPU).send()
    assert not gathered
    NcclSender(weights, CPU, rank=1).send()  # its part in gathering
    assert gathered


async def test_one_that_waits_for_ever_keeps_neither_the_loop_nor_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    class Waits:
        description = WeightsDescription((), (), ())

        def send(self) -> None:
            begun.set()
            end.wait()

    thread = ComputeThread()
    sender = LocalSender(Waits(), thread)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send(), 0.05)
    assert begun.is_set()
    assert await sender.describe() == Waits.description
    assert all(each.daemon for each in threading.enumerate() if each.name == "palimpsest-transfer")
    await thread.close()
    end.set()


async def test_what_a_sender_raises_is_raised_where_it_is_awaited() -> None:
    def broken() -> None:
        raise EngineError("NCCL error")

    class Fails:
        send: Callable[[], None] = staticmethod(broken)

    with pytest.raises(EngineError, match="NCCL error"):
        await LocalSender(Fails(), ComputeThread()).send()
