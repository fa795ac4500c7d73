"""The compute thread, and freed memory that stays in the process."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys

import pytest
import torch

from palimpsest.engines.embedded.compute import ComputeThread


def test_grad_mode_and_thread_settings_hold_on_the_thread() -> None:
    thread = ComputeThread(1)
    assert asyncio.run(thread.run(torch.is_grad_enabled))
    assert not asyncio.run(thread.run(torch.is_inference_mode_enabled))
    assert asyncio.run(thread.run(torch.get_num_threads)) == 1
    asyncio.run(thread.close())


def test_an_error_on_the_thread_is_the_callers_and_the_next_call_works() -> None:
    def broken() -> None:
        raise ValueError("no")

    thread = ComputeThread()
    with pytest.raises(ValueError, match="no"):
        asyncio.run(thread.run(broken))
    assert asyncio.run(thread.run(int, "3")) == 3
    asyncio.run(thread.close())


FREED = """
import psutil, resource, torch
from palimpsest.engines.embedded.compute import keep_freed_memory
from palimpsest.engines.process_guard import give_back_freed_memory
assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(5 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(4)][-1])
assert give_back_freed_memory()
resident = psutil.Process().memory_info
tensors = [torch.ones(1 << 18) for _ in range(128)]  # 1 MiB each
last = tensors[-1]  # at the top, below which the heap alone never shrinks
del tensors
before = resident().rss
assert give_back_freed_memory()
print(before - resident().rss)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_reused_without_new_pages_until_it_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    faults, returned = map(int, done.stdout.split())
    assert faults < (160 << 20) // resource.getpagesize() / 100
    assert returned > 100 << 20
