"""What an engine computes on: its thread, the GPUs of this machine, and the memory that it keeps.

One call runs at a time, in the order they were handed in: sampler and learner that share weights share the thread
too, so neither reads what the other is writing.

The C library (glibc) returns the top of its heap to the system when more than about 64 MB of it are free. A forward
and backward pass over a long forest frees and allocates that much many times, and the kernel clears every page again:
10 to 30% of the learner's time on a CPU. `keep_freed_memory` prevents this. Resident memory then stays at its peak
until `give_back_freed_memory`; without that call a process that trains run after run grows.

Guaranteed: an engine left without `close` doesn't keep the interpreter from ending, except for the call in progress.
Not covered: stopping a call that has begun: if its caller is cancelled, it runs to its end; single blocks of over
32 MB, which glibc always returns; other C libraries, where nothing is changed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

import torch

T = TypeVar("T")
Args = TypeVarTuple("Args")


def set_threads(threads: int) -> None:
    """Threads of one operation, for calls from this thread, and repeatable results where they cost nothing (CPU)."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(not torch.cuda.is_available(), warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a costly debugging aid


class ComputeThread:
    """A thread that starts with its first call."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: as of `set_threads`, which holds for the thread that calls it alone; None: as the process has."""
        setup = None if threads is None else partial(set_threads, threads)
        self._executor = ThreadPoolExecutor(1, "palimpsest-compute", setup)

    async def run(self, call: Callable[[*Args], T], *args: *Args) -> T:
        """What `call(*args)` returns or raises there; the event loop goes on meanwhile."""
        return await asyncio.wrap_future(self.post(call, *args))

    def post(self, call: Callable[[*Args], T], *args: *Args) -> Future[T]:
        """Have `call(*args)` done before any later call, without waiting for it."""
        return self._executor.submit(call, *args)

    async def close(self) -> None:
        """End the thread once what was handed in is done."""
        await asyncio.to_thread(self._executor.shutdown)


# ---- The GPUs of this machine --------------------------------------------------------------------------------


VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_but(servers: Sequence[int]) -> list[str]:
    """GPUs of this machine, by the names that CUDA has for them, without those of servers of vLLM."""
    count, named = torch.cuda.device_count(), os.environ.get(VISIBLE)
    visible = [str(number) for number in range(count)] if named is None else named.split(",")[:count]
    return [gpu for gpu in visible if gpu not in map(str, servers)]


def memories() -> dict[str, int]:
    """Bytes that each GPU holds, by the name that CUDA has for it; 0: not known."""
    available = torch.cuda.is_available()
    return {
        name: torch.cuda.get_device_properties(number).total_memory if available else 0
        for number, name in enumerate(gpus_but(()))
    }


# ---- Keeps freed memory in the process, so that the next tensor of that size needs no new pages --------------


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # glibc takes blocks from its heap up to this size
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Apply to this process; whether the C library took it. Without it everything works, slower."""
    mallopt = _glibc("mallopt")
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) & bool(mallopt(_TRIM_THRESHOLD, _NEVER))


def give_back_freed_memory() -> bool:
    """Give every page that holds nothing back to the system; whether the C library had any to give."""
    malloc_trim = _glibc("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(0))


def _glibc(name: str) -> Any:
    """A function of the C library, None where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
