"""Compute thread of an engine, GPUs of this machine, and freed memory.

Calls run one at a time, in order: sampler and learner that share weights share the thread too, so neither reads weights
during a write.

The C library (glibc) returns the top of its heap to the system when more than about 64 MB of it are free. A forward
and backward pass over a long forest frees and allocates that much many times, and the kernel clears every page again:
10 to 30% of the learner's time on a CPU. `keep_freed_memory` prevents this. Resident memory then stays at its peak
until `give_back_freed_memory`; without that call a process that trains run after run grows.

Guaranteed: an engine without `close` doesn't block the interpreter's exit, except for the call in progress.
Not covered: stopping a started call, which runs to its end if its caller is cancelled; blocks of over 32 MB, which
glibc always returns; other C libraries.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import torch

from palimpsest.engines.process_guard import glibc

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
"""oneDNN keeps that many compiled products, one per shape, of a third of a megabyte each; its own default is 1024."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


def set_threads(threads: int) -> None:
    """Set the threads per operation for calls from this thread, and repeatable results where they are free (CPU)."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(not torch.cuda.is_available(), warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a costly debugging aid


class ComputeThread:
    """A thread that starts with its first call."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: see `set_threads`, which affects only the calling thread; None: the process default."""
        setup = None if threads is None else partial(set_threads, threads)
        self._executor = ThreadPoolExecutor(1, "palimpsest-compute", setup)

    async def run(self, call: Callable[[*Args], T], *args: *Args) -> T:
        """Await `call(*args)` on the thread; the event loop continues meanwhile."""
        return await asyncio.wrap_future(self.post(call, *args))

    def post(self, call: Callable[[*Args], T], *args: *Args) -> Future[T]:
        """Queue `call(*args)` before any later call, without waiting for it."""
        return self._executor.submit(call, *args)

    async def close(self) -> None:
        """End the thread after the queued calls."""
        await asyncio.to_thread(self._executor.shutdown)


VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_but(servers: Sequence[int]) -> list[str]:
    """CUDA names of this machine's GPUs, without those of vLLM servers."""
    count, named = torch.cuda.device_count(), os.environ.get(VISIBLE)
    visible = [str(number) for number in range(count)] if named is None else named.split(",")[:count]
    return [gpu for gpu in visible if gpu not in map(str, servers)]


def memories() -> dict[str, int]:
    """Memory of each GPU in bytes, by its CUDA name; 0: unknown."""
    available = torch.cuda.is_available()
    return {
        name: torch.cuda.get_device_properties(number).total_memory if available else 0
        for number, name in enumerate(gpus_but(()))
    }


@cache
def multiplies_bfloat16() -> bool:
    """Whether this machine's CPU has products of bfloat16 (avx512_bf16 or AMX), several times as fast as float32."""
    return _capable("avx512_bf16") or _capable("amx_bf16")


def _capable(name: str) -> bool:
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(has.get(name))


def packs_weights(dtype: torch.dtype, numbers: int) -> bool:
    """Whether oneDNN's products with a weight of that size in its own layout are faster than plain ones on this CPU.

    In bfloat16 a plain product reorders the weights in each call. In float32 oneDNN has AVX-512 on every CPU, and MKL
    on Intel's only: oneDNN is 2.2 times as fast on an AMD EPYC of 2025. On an Intel Xeon of 2023 it takes up to 3 times
    as long for weights that the core's cache holds, and less for larger ones.
    """
    if dtype == torch.bfloat16:
        return multiplies_bfloat16()
    if dtype != torch.float32 or not torch.backends.mkldnn.is_available() or not _capable("avx512_f"):
        return False
    return numbers > _SMALL or not (torch.backends.mkl.is_available() and _intel())


_SMALL = 1 << 20  # numbers: 4 MiB


@cache
def _intel() -> bool:
    """Whether Intel made this machine's CPU."""
    with suppress(OSError):
        return b"GenuineIntel" in Path("/proc/cpuinfo").read_bytes()
    return "Intel" in platform.processor()


def memory_of(device: torch.device) -> int:
    """Memory of a GPU, or of this machine within the limit of its control group, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # not Linux, another version of control groups, or "max"
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    return min(limits)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_LARGEST = 32 << 20  # glibc takes blocks from its heap up to this size
_NEVER = (1 << 31) - 1
_ARENAS = 2  # heaps of the process; free memory fragments in the default of 8 per core


def keep_freed_memory() -> bool:
    """Set glibc's options for this process; returns False if unsupported, which only costs speed and memory."""
    mallopt = glibc("mallopt")
    options = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, _ARENAS))
    return mallopt is not None and {mallopt(*option) for option in options} == {1}
