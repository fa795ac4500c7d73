"""Freed memory stays in the process."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

CHILD = """
import resource, torch
from palimpsest.engines.embedded.heap import keep_freed_memory
assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(5 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(4)][-1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_tensors_of_the_same_sizes_need_no_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < (160 << 20) // resource.getpagesize() / 100
