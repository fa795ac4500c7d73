"""vLLM's weight transfer on a CPU: gloo in the place of NCCL's communicator, files in that of CUDA's IPC handles.

All else of both ends is vLLM's own and palimpsest's. `learner` is for processes of palimpsest, `server` a plugin of
vLLM's (entry point `vllm.general_plugins`); `installed` writes what has both called.
"""

from __future__ import annotations

import importlib
import os
import secrets
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NOTES = "CPU_TRANSFER_NOTES"
"""Names the file that tells what was done, a word a line."""
AT_START = """
import sys
if any(word == 'train' or 'default_worker' in word for word in sys.orig_argv):
    sys.path.append({packages!r})
    import cpu_transfer
    cpu_transfer.learner()
"""


def note(word: str) -> None:
    with open(os.environ[NOTES], "a") as file:
        file.write(f"{word}\n")


def beside(name: str) -> Path:
    """A file of the test's."""
    return Path(os.environ[NOTES]).with_name(name)


class Communicator:
    """What vLLM uses of its PyNcclCommunicator."""

    def __init__(self, key: bytes, rank: int, size: int, device: object) -> None:
        dist: Any = importlib.import_module("torch.distributed")
        note(f"join-{rank}-of-{size}")
        store = dist.FileStore(str(beside(f"meeting-{key.hex()[:16]}")), size)
        self._rank, self._options = rank, dist.BroadcastOptions
        self._group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))

    def broadcast(self, tensor: Any, src: int, stream: object = None) -> None:
        if self._rank == src:
            note("broadcast")
        options = self._options()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        note(f"part-{self._rank}")


def put(module: str, name: str, value: Callable[..., Any]) -> None:
    setattr(importlib.import_module(module), name, value)


def nothing(*_: object) -> None: ...


def both() -> None:
    """What neither end finds on a CPU."""
    put("vllm.distributed.weight_transfer.nccl_common", "uid_init_process_group", Communicator)
    put("torch.cuda", "current_stream", lambda *_: SimpleNamespace(synchronize=nothing))
    put("torch.cuda", "get_device_properties", lambda _: SimpleNamespace(uuid="GPU-of-the-test"))
    put("torch.cuda", "synchronize", nothing)
    put("torch.cuda", "ipc_collect", nothing)
    put("torch.accelerator", "synchronize", nothing)
    put("torch.accelerator", "current_device_index", lambda: 0)


def server() -> None:
    both()
    put("vllm.distributed.weight_transfer.ipc_engine", "rebuild_cuda_tensor", rebuilt)


def learner() -> None:
    both()
    put("torch.multiprocessing.reductions", "reduce_tensor", reduced)
    drawn = SimpleNamespace(ncclGetUniqueId=lambda: SimpleNamespace(internal=secrets.token_bytes(128)))
    put("vllm.distributed.device_communicators.pynccl_wrapper", "NCCLLibrary", lambda: drawn)
    put("palimpsest.engines.embedded.weight_transfer", "check_gpu", nothing)
    put("palimpsest.engines.embedded.weight_transfer", "on_device", lambda _: nullcontext())
    put("palimpsest.engines.vllm.server_process", "check_build", nothing)
    put("palimpsest.config.sampler", "check_publish", nothing)
    from palimpsest.engines.embedded.learner import ForestLearner
    from palimpsest.engines.ray.actors import Rank

    changes: tuple[tuple[type, str, object], ...] = (
        (ForestLearner, "write_weights", noted(ForestLearner.write_weights)),
        (Rank, "publish", noted(Rank.publish)),
    )
    for owner, name, value in changes:
        setattr(owner, name, value)


def noted(write: Any) -> Any:
    def writing(self: Any, folder: Path) -> Any:
        note("file")
        return write(self, folder)

    return writing


def reduced(value: Any) -> tuple[None, tuple[object, ...]]:
    """What rebuilds it, and its arguments, of which the seventh is the number of the GPU."""
    from safetensors.torch import save_file

    path = beside(f"handle-{secrets.token_hex(4)}")
    save_file({"value": value.clone()}, path)
    return None, (str(path), 0, 0, 0, 0, 0, 0)


def rebuilt(path: str, *_: object) -> Any:
    from safetensors.torch import load_file

    note("copy")
    return load_file(path)["value"]


def installed(folder: Path, python: str) -> dict[str, str]:
    """Environment of palimpsest whose servers run on `python`, with all of the above at both ends."""
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    mine, theirs = folder / "learner", folder / "server"
    for each in (mine, theirs):
        each.mkdir(parents=True)
        (each / "cpu_transfer.py").symlink_to(__file__)
    (mine / "sitecustomize.py").write_text(AT_START.format(packages=packages))
    plugin = theirs / "cpu_transfer-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu_transfer\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\ncpu_transfer = cpu_transfer:server\n")
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={theirs} exec {python} "$@"\n')
    wrapper.chmod(0o755)
    paths = os.pathsep.join(filter(None, (str(mine), os.environ.get("PYTHONPATH", ""))))
    (folder / "notes").touch()
    return {**os.environ, "PYTHONPATH": paths, "PALIMPSEST_VLLM_PYTHON": str(wrapper), NOTES: str(folder / "notes")}


def done(environment: dict[str, str]) -> list[str]:
    """The notes."""
    return Path(environment[NOTES]).read_text().split()
