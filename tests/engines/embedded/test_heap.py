"""Freed memory stays in the process."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded import engine

CHILD = """
import resource, torch
from palimpsest.engines.embedded.compute import keep_freed_memory
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


GIVING = """
import psutil, torch
from palimpsest.engines.embedded.compute import keep_freed_memory
from palimpsest.engines.process_guard import give_back_freed_memory
assert keep_freed_memory()
resident = psutil.Process().memory_info
tensors = [torch.ones(1 << 18) for _ in range(128)]  # of a megabyte each
kept = tensors[-1]  # at the top, where the heap alone would never shrink below it
del tensors
before = resident().rss
assert give_back_freed_memory()
print(before - resident().rss)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_given_back_when_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", GIVING], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100 << 20


async def test_an_engine_that_closes_gives_back_what_it_kept(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a process that opens one after the other grows by megabytes a run (benchmarks/soak.py)."""
    given: list[bool] = []
    monkeypatch.setattr(engine, "give_back_freed_memory", lambda: given.append(True))
    config = RunConfig.model_validate({"model": {"path": str(tiny_model_folder)}})
    await engine.EmbeddedEngine(config, objective=None).close()
    assert given == [True]


async def test_an_engine_is_gone_with_its_model_as_soon_as_nobody_has_it(tiny_model_folder: Path) -> None:
    """A search for circles comes late where objects are many and tensors few: until then two models are in memory."""
    config = RunConfig.model_validate({"model": {"path": str(tiny_model_folder)}})
    gc.disable()
    try:
        opened = engine.EmbeddedEngine(config, objective="policy")
        watched = [weakref.ref(each) for each in (opened, opened.model, opened.sampler, opened.learner)]
        await opened.close()
        del opened
        assert [each() for each in watched] == [None] * 4
    finally:
        gc.enable()
