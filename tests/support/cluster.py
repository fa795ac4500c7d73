"""Runs on Ray as commands, and the processes and files that they leave."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest

TAG = "PALIMPSEST_TEST"


def own_address() -> str:
    """Of this machine on a network, otherwise of its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


ON_RAY = ("engine.name=ray", "cluster.learners=2", "cluster.samplers=1")


def settings(steps: int) -> list[str]:
    """Overrides of a run of seconds."""
    train = {"max_steps": steps, "batch_size": 2, "num_minibatches": 2, "group_size": 4, "save_steps": 1}
    return [*(f"train.{key}={value}" for key, value in train.items()), "logging.report_to=[jsonl]"]


def command_of(process: psutil.Process) -> list[str]:
    """Empty if the process ended meanwhile."""
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


@dataclass
class ClusterRun:
    """`palimpsest train` of the packaged model with engine.name=ray."""

    out: Path
    steps: int = 2
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] | None = None
    apart: bool = False
    """True if its standard error isn't in its output."""
    pids: list[int] = field(default_factory=list)
    temporary: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="t", dir="/tmp")))
    """Its temporary folder, with a short path for sockets."""

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)

    def start(self, *more: str) -> subprocess.Popen[str]:
        if (self.out / "config.yaml").exists():
            words = ["train", "--resume", str(self.out)]
        else:
            words = ["train", "memagent-quickstart", "--out", str(self.out), *settings(self.steps), *ON_RAY]
        environment = {**os.environ, TAG: self.tag, "TMPDIR": str(self.temporary)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "palimpsest", *words, *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if self.apart else subprocess.STDOUT,
            text=True,
        )
        self.pids.append(self.process.pid)
        return self.process

    def finish(self) -> str:
        """Run to a successful end; its output."""
        process = self.start()
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        return output

    def wait_for_step(self, step: int) -> None:
        while len(self.rows()) < step:
            assert self.process is not None
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.2)

    def rows(self) -> list[bytes]:
        path = self.out / "metrics.jsonl"
        return path.read_bytes().splitlines() if path.exists() else []

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def named(self, name: str) -> list[psutil.Process]:
        return [each for each in self.processes() if name in Path((command_of(each) or [""])[0]).name]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TAG) == self.tag)
        except (psutil.Error, OSError):
            return False

    def gone(self) -> bool:
        """True if all processes end by themselves."""
        for _ in range(300):
            if not self.processes():
                return True
            time.sleep(0.1)
        return False

    def folders_left(self) -> list[Path]:
        """Shared memory and temporary files, with sockets."""
        memory = [path for pid in self.pids for path in Path("/dev/shm").glob(f"palimpsest-{pid}-*")]
        return [*memory, *self.temporary.iterdir()]


AUTHENTICATED = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


def with_a_token(work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    """Run `work` in another process: Ray reads its way of authentication when it is imported."""
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for name, value in AUTHENTICATED.items():
            patch.setenv(name, value)
        pool.submit(_run, work, arguments).result()


def _run(work: Callable[..., Coroutine[Any, Any, None]], arguments: Sequence[Any]) -> None:
    asyncio.run(work(*arguments))


@contextmanager
def machines(gpus: Sequence[int], *, store: int = 100_000_000) -> Iterator[str]:
    """Address of a Ray cluster with one raylet per simulated machine, each with that many simulated GPUs and `store`
    bytes of shared memory."""
    tag = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {TAG: tag}
    temporary = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))  # short, for sockets
    with socket.create_server(("0.0.0.0", 0)) as free:
        port = free.getsockname()[1]
    address = f"{own_address()}:{port}"
    try:
        for number, count in enumerate(gpus):
            joins = [f"--address={address}"] if number else ["--head", f"--port={port}", "--include-dashboard=false"]
            sizes = [f"--num-gpus={count}", "--num-cpus=2", f"--object-store-memory={store}"]
            places = [f"--temp-dir={temporary / str(number)}", "--min-worker-port=0", "--max-worker-port=0"]
            command = [str(Path(sys.executable).with_name("ray")), "start", *joins, *sizes, *places]
            started = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert not started.returncode, started.stderr[-2000:]
        yield address
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(TAG) == tag:
                    process.kill()
        shutil.rmtree(temporary, ignore_errors=True)
