"""New weights on their way to other processes: by NCCL, by CUDA IPC, or as a folder.

    nccl    the first rank makes an id, joins the servers' workers by it, and broadcasts one weight after the other
            through vLLM's own trainer engine; further ranks take part in gathering each
    ipc     handles of weights on the GPU that learner and server share, which the server copies from

Weights go by the names that their class has for them, adapters merged, the output projection besides the embeddings.

Guaranteed: nothing is unpickled here. NCCL's peers meet by an id that servers are told over their own socket; vLLM's
other way is a TCP store without a key, through which whoever is first could hand out a pickle.
Not covered: a peer that is lost while weights are on their way, which whoever watches ends by `abort`; memory of merged
adapters that was exposed to a server which then died: CUDA keeps it until this process ends.

The weights as a folder for another process, which reads them into a model that is there already.

Guaranteed: safetensors and config.json as transformers writes them, with the output projection in a file of its own
where it shares its tensor with the embeddings: some readers load tied weights once and leave the projection as it was,
silently (docs/vllm.md); adapters are merged.
Not covered: classes that can't be untied.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from pickle import dumps
from threading import Thread
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.engines.embedded.model_loading import merged_weights
from palimpsest.engines.protocol import WeightsDescription
from palimpsest.errors import ConfigError, EngineError, ProcessesLost

T = TypeVar("T")
Weights = Callable[[], Iterator[tuple[str, Tensor]]]
"""Whole weights in the servers' dtype, always in the same order; collective where ranks share them."""


class Described:
    """Weights, and what they are called."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        """`device`: the GPU that they are sent from; they may lie elsewhere. Raises ConfigError for a CPU."""
        check_gpu(device)
        self._weights, self.device = weights, device

    @cached_property
    def description(self) -> WeightsDescription:
        """Of all weights in the order in which they go. Gathers them once, as sending does."""
        with torch.no_grad():
            described = [(name, str(value.dtype), tuple(value.shape)) for name, value in self._weights()]
        names, dtypes, shapes = zip(*described, strict=True)
        return WeightsDescription(names, tuple(dtype.removeprefix("torch.") for dtype in dtypes), shapes)

    def _on_gpu(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, value.to(self.device)) for name, value in self._weights())


def check_gpu(device: torch.device) -> None:
    """Raise ConfigError for a device that has neither NCCL nor IPC."""
    if device.type != "cuda":
        raise ConfigError(
            f"sampler.publish: the learner computes on {device}, and only a GPU sends weights without a file: set "
            "sampler.publish=safetensors"
        )


class NcclSender(Described):
    """One a rank. Every rank describes and sends; the first one alone invites and joins."""

    def __init__(self, weights: Weights, device: torch.device, *, rank: int = 0) -> None:
        super().__init__(weights, device)
        self._rank = rank
        self._engine: Any = None
        self._group = 0
        """Number of the group that was joined, or that is to be."""

    def invite(self) -> str:
        """An id by which peers meet, in base64."""
        with _here():
            from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

            return base64.b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()

    def join(self, invitation: str, size: int) -> None:
        """Meet the servers' workers, `size` - 1 of them; returns once all are there. Raises ProcessesLost."""
        self.take(met(invitation, size, self.device))

    def take(self, communicator: Any) -> None:
        """Broadcast over this group from now on."""
        self.abort()
        engine = self._trainer_engine()
        engine.model_update_group = communicator
        self._engine = engine

    @torch.no_grad()
    def send(self) -> None:
        """Broadcast every weight to the workers that were joined. Raises EngineError, ProcessesLost."""
        if self._rank:
            for _ in self._weights():  # the others' part in gathering
                pass
            return
        if self._engine is None:
            raise EngineError("weights can't be broadcast: no server has joined")
        with _telling("broadcasting weights"), on_device(self.device):
            self._engine.send_weights()

    def abort(self) -> None:
        """Part from the workers, from whatever thread: a broadcast in progress ends."""
        engine, self._engine = self._engine, None
        self._group += 1
        if engine is not None:
            engine.shutdown()

    def _trainer_engine(self) -> Any:
        """vLLM's; what it would ask of servers is asked of them elsewhere, over their sockets."""
        from vllm.distributed.weight_transfer.base import ParamMeta
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

        told = self.description
        each = zip(told.names, told.dtypes, told.shapes, strict=True)
        metas = [ParamMeta(name, getattr(torch, dtype), shape) for name, dtype, shape in each]
        return NCCLTrainerWeightTransferEngine(client=_Elsewhere(), source=_Source(self._going, metas), packed=False)

    def _going(self) -> Iterator[tuple[str, Tensor]]:
        """Weights as long as nobody aborts: NCCL must not be asked of a group that is taken apart."""
        group = self._group
        for name, value in self._on_gpu():
            if group != self._group:
                raise ProcessesLost("broadcasting weights: given up")
            yield name, value


def met(invitation: str, size: int, device: torch.device) -> Any:
    """vLLM's communicator of a group of `size`, as its first. Holds nothing of the learner's, for NCCL may wait for a
    peer for ever. Raises ProcessesLost."""
    with _here(), _telling("joining the servers"), on_device(device):
        from vllm.distributed.weight_transfer import nccl_common

        return nccl_common.uid_init_process_group(base64.b64decode(invitation), 0, size, device.index or 0)


def on_device(device: torch.device) -> Any:
    """Within it this thread's GPU is `device`."""
    return torch.cuda.device(device)


class LocalSender:
    """One of the above, asked from an event loop. Satisfies `Broadcasts` or `Exposes` of
    engines/vllm/weight_push.py."""

    def __init__(self, sender: Any, thread: ComputeThread) -> None:
        """`thread` is where the weights are computed."""
        self._sender, self._thread = sender, thread

    async def describe(self) -> WeightsDescription:
        return await self._thread.run(getattr, self._sender, "description")

    async def invite(self) -> str:
        return await asyncio.to_thread(self._sender.invite)

    async def join(self, invitation: str, size: int) -> None:
        communicator = await _beside(partial(met, invitation, size, self._sender.device), late=_part)
        await asyncio.to_thread(self._sender.take, communicator)  # parts from the group before, too: seconds

    async def send(self) -> None:
        await _beside(self._sender.send)

    async def abort(self, reason: str) -> None:
        await asyncio.to_thread(self._sender.abort)

    async def part(self) -> None:
        await self.abort("")

    async def expose(self) -> str:
        return await self._thread.run(self._sender.expose)

    async def release(self) -> None:
        await self._thread.run(self._sender.release)


async def _beside(call: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
    """Call in a thread that may wait for ever: neither the learner's work nor the end of the process waits for it.
    `late` has what comes once nobody waits any more."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001  whoever awaits has it
            done.set_exception(error)

    Thread(target=run, name="palimpsest-transfer", daemon=True).start()
    try:
        return await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        if late is not None:
            done.add_done_callback(lambda each: late(each.result()) if each.exception() is None else None)
        raise


def _part(communicator: Any) -> None:
    communicator.destroy()


class _Source:
    """vLLM's `WeightSource`."""

    def __init__(self, weights: Weights, metas: list[Any]) -> None:
        self._weights, self._metas = weights, metas

    def metadata(self) -> list[Any]:
        return self._metas

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._weights()


class _Elsewhere:
    """vLLM's `VLLMWeightSyncClient` for one whose servers somebody else asks at the same time (engines/vllm)."""

    def init_weight_transfer_engine(self, init_info: object) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: object) -> None: ...
    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class IpcSender(Described):
    """Of a learner of one process."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        super().__init__(weights, device)
        self._held: list[Tensor] = []

    @torch.no_grad()
    def expose(self) -> str:
        """CUDA IPC handles of all weights by the GPU's UUID, as vLLM takes them: pickled, in base64. What they point
        to stays until `release`."""
        from torch.multiprocessing.reductions import reduce_tensor

        uuid = str(torch.cuda.get_device_properties(self.device).uuid)
        self._held = [value.contiguous() for _, value in self._on_gpu()]
        handles = [{uuid: reduce_tensor(value)[1]} for value in self._held]
        torch.cuda.synchronize(self.device)
        return base64.b64encode(dumps(handles)).decode()

    def release(self) -> None:
        """Let go of what was exposed; a second call does nothing."""
        self._held = []
        torch.cuda.ipc_collect()


_HERE = {
    "NCCL_SOCKET_IFNAME": "lo",  # peers are on this machine
    "VLLM_CONFIGURE_LOGGING": "0",  # vLLM, once imported, would take over this process's log
}


@contextmanager
def _here() -> Iterator[None]:
    """While NCCL and vLLM are asked for a group: what they read from the environment, where the user has not set it."""
    added = [name for name in _HERE if name not in os.environ]
    os.environ.update((name, _HERE[name]) for name in added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class _telling:
    """NCCL's and CUDA's errors as ours: most often a peer is gone."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RuntimeError | ValueError | AttributeError):  # the last: of a group taken apart
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ProcessesLost(f"{self._doing}: {line:.300}") from error


# ---- The weights as a folder for another process, which reads them into a model that is there already --------


_INDEX = "model.safetensors.index.json"
_WHOLE, _REST, _HEAD = "model.safetensors", "model-1.safetensors", "output-projection.safetensors"


@torch.no_grad()
def write_untied(model: Any, folder: Path) -> None:
    """Write `model` into `folder`, which doesn't exist."""
    weights = None
    if hasattr(model, "peft_config"):
        weights = {name: weight.cpu() for name, weight in merged_weights(model, model.dtype)}
        model = model.get_base_model()
    model.save_pretrained(folder, state_dict=weights)
    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        return
    (module,) = [name for name, each in model.named_modules() if each is head]
    weight = {f"{module}.weight": head.weight.detach().cpu().contiguous()}
    save_file(weight, folder / _HEAD, metadata={"format": "pt"})
    index = _index(folder)
    index["weight_map"].update(dict.fromkeys(weight, _HEAD))
    (folder / _INDEX).write_text(json.dumps(index, indent=1))
    untied(model.config).save_pretrained(folder)


def size_of(model: Any, dtype: torch.dtype) -> int:
    """Bytes of all weights of `model`, its output projection apart, as `dtype`."""
    output = model.get_output_embeddings().weight
    tied = output.numel() if output is model.get_input_embeddings().weight else 0
    weights = (weight for name, weight in model.named_parameters() if ".lora_" not in name)
    return int((sum(weight.numel() for weight in weights) + tied) * dtype.itemsize)


def no_room(folder: Path, error: Exception, *, needed: int, key: str) -> EngineError:
    """What a disk refused, of the `needed` bytes of weights; `key` names the folder."""
    at = folder if folder.is_dir() else folder.parent
    written = sum(file.stat().st_size for file in folder.glob("*"))
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return EngineError(
        f"{folder}: weights can't be written ({reason}): {written:,} bytes were, {needed:,} are needed, "
        f"{shutil.disk_usage(at).free:,} are free on the disk; free some room, or set {key} to a folder of a larger one"
    )


def untied(config: Any) -> Any:
    """A copy of transformers' `config` that ties no weights, nor do those inside it (a multimodal model's parts)."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = False
    for name in config.sub_configs:
        if hasattr(part := getattr(config, name, None), "tie_word_embeddings"):
            setattr(config, name, untied(part))
    return config


def _index(folder: Path) -> Any:
    """Which tensor is in which file. A file that is alone gets another name: under its own no index is looked for."""
    if (folder / _INDEX).is_file():
        return json.loads((folder / _INDEX).read_text())
    whole = (folder / _WHOLE).rename(folder / _REST)
    with safe_open(whole, framework="pt") as tensors:
        return {"metadata": {}, "weight_map": dict.fromkeys(tensors.keys(), _REST)}
