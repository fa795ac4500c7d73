"""Ranks in processes of their own, without Ray: gloo on loopback. Imports torch alone, as each of them does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def run_ranks(count: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `count` processes; raises what one of them raised."""
    meeting = Path(mkdtemp(prefix="meeting-", dir=folder)) / "at"
    spawn(_rank, (count, str(meeting), work, arguments), nprocs=count)


def _rank(rank: int, count: int, meeting: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=60)
    )
    try:
        work(rank, *arguments)
    except BaseException:
        dist.destroy_process_group()
        raise
    done = [Path(f"{meeting}-done-{each}") for each in range(count)]
    done[rank].touch()
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in done) and time.monotonic() < deadline:
        time.sleep(0.01)  # no barrier: gloo may abort a rank that still waits in one when the other has left it
    sys.stdout.flush()
    os._exit(0)  # without taking down connections whose other end may be gone, which may abort too


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """While this process is the only rank."""
    meeting = f"file://{folder}/meeting-alone"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1, timeout=timedelta(seconds=60))
    try:
        yield
    finally:
        dist.destroy_process_group()
