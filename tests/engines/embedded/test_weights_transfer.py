"""The learner's end of weights that go to servers without a file, as far as a CPU knows it; the rest is played by the
real vLLM in test_vllm_transfer.py, on a CPU, and test_gpu_vllm.py."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palimpsest.config.model import AdapterConfig, ModelConfig
from palimpsest.config.schema import OptimConfig
from palimpsest.engines.embedded import weight_transfer
from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import trainable
from palimpsest.engines.embedded.weight_transfer import IpcSender, LocalSender, NcclSender
from palimpsest.engines.protocol import WeightsDescription
from palimpsest.errors import ConfigError, EngineError, ProcessesLost
from support.disks import no_file_over

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
    monkeypatch.setattr(weight_transfer, "check_gpu", lambda _: None)
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
    monkeypatch.setattr(weight_transfer, "check_gpu", lambda _: None)
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


def test_a_group_that_was_given_up_is_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_transfer, "check_gpu", lambda _: None)
    names = ["a", "b", "c"]
    sender = NcclSender(lambda: ((name, torch.zeros(2)) for name in names), CPU)
    sending = sender._going()
    assert next(sending)[0] == "a"
    sender.abort()
    with pytest.raises(ProcessesLost, match="broadcasting weights: given up"):
        next(sending)


async def test_one_who_waits_for_peers_holds_nothing_of_the_learner_s_and_parts_if_they_come_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_transfer, "check_gpu", lambda _: None)
    monkeypatch.setattr(weight_transfer, "on_device", lambda _: nullcontext())
    begun, end, parted = threading.Event(), threading.Event(), threading.Event()
    common = ModuleType("vllm.distributed.weight_transfer.nccl_common")

    def waits(*_: object) -> Any:
        begun.set()
        end.wait()
        return SimpleNamespace(destroy=parted.set)

    common.uid_init_process_group = waits  # type: ignore[attr-defined]
    packages = ["vllm", "vllm.distributed", "vllm.distributed.weight_transfer"]
    for name in packages:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[packages[-1]], "nccl_common", common, raising=False)

    class Weights:
        def __call__(self) -> Any:
            return iter(())

    weights, thread = Weights(), ComputeThread()
    sender, there = LocalSender(NcclSender(weights, CPU), thread), weakref.ref(weights)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.join("aWQ=", 2), 0.05)
    assert begun.is_set()
    del weights, sender
    gc.collect()
    assert there() is None
    assert not parted.is_set()
    end.set()
    assert parted.wait(10)
    await thread.close()


def test_what_nccl_and_vllm_read_from_the_environment_is_there_while_they_are_asked_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "1")  # the user's own stays
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    seen: dict[str, str] = {}

    class Library:
        def __init__(self) -> None:
            seen.update(os.environ)

        def ncclGetUniqueId(self) -> Any:
            return SimpleNamespace(internal=bytes(128))

    wrapper = ModuleType("vllm.distributed.device_communicators.pynccl_wrapper")
    wrapper.NCCLLibrary = Library  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators", wrapper.__name__):
        monkeypatch.setitem(sys.modules, name, wrapper)
    monkeypatch.setattr(weight_transfer, "check_gpu", lambda _: None)
    assert NcclSender(lambda: iter(()), CPU).invite() == "A" * 170 + "A="
    assert (seen["VLLM_CONFIGURE_LOGGING"], seen["NCCL_SOCKET_IFNAME"]) == ("1", "lo")
    assert (os.environ["VLLM_CONFIGURE_LOGGING"], os.environ.get("NCCL_SOCKET_IFNAME")) == ("1", None)


def test_a_disk_without_room_for_what_servers_read_is_told_with_the_room_and_the_key(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    learner = learner_on(tiny_model_folder)
    size = sum(each.nbytes for _, each in learner.whole_weights())
    told = (
        rf"folder: weights can't be written \(.*File too large.*\): [\d,]+ bytes were, {size:,} are needed, [\d,]+ are "
        r"free on the disk; free some room, or set sampler\.folder to a folder of a larger one"
    )
    with no_file_over(100_000), pytest.raises(EngineError, match=told):
        learner.write_weights(tmp_path / "folder")
