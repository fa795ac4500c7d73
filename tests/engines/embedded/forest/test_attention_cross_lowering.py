"""The attention kernels of the CUDA path, compiled for an H100 without one; see tests/support/cross_lowering.py.

Needs a C++ compiler and Triton, which CUDA builds of torch bring. For the CPU build of torch 2.13:
`pip install --no-deps --target /tmp/triton triton==3.7.1`, then `PYTHONPATH=src:/tmp/triton`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from support import cross_lowering
from support.cross_lowering import CASES, H100, build_guard, forests_of

OTHER = 1500  # places of a forest that reuses the kernels of earlier ones
COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed; this file says how"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels: make gpu-session"),
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    return build_guard(tmp_path_factory.mktemp("guard"), COMPILER)


@pytest.mark.parametrize("name", CASES)
def test_mask_and_attention_compile_for_an_h100_with_one_main_kernel(
    name: str, guard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, cross_lowering.__file__, str(guard), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    forests = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["places"], each["queries"], each["gradient"]) for each in forests] == [*forests_of(name)]
    for forest in forests:
        forward, backward = (templates(forest["attention"], wanted) for wanted in (False, True))
        with capsys.disabled():
            print(f"\n{name}, {forest['places']} places, {forest['queries']} queries", *forward, *backward, sep="\n  ")
        kernels = forest["mask"] + forest["attention"]
        if forest["places"] == OTHER:
            assert not kernels
            continue
        assert len(forward) == 1
        assert len(backward) == forest["gradient"]
        assert forest["mask"]
        assert (forward[0]["wgmma"] > 0) == (name != "float32")
        assert not any(kernel["decodes"] for kernel in kernels)
        assert max(kernel["shared"] for kernel in kernels) <= H100.shared_memory_per_block_optin


def templates(kernels: list[dict[str, Any]], backward: bool) -> list[dict[str, Any]]:
    """Kernels of FlexAttention's templates."""
    return [each for each in kernels if "_tem_" in each["name"] and ("backward" in each["name"]) == backward]
