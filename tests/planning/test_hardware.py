"""This machine's devices, with a program in place of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest.errors import ConfigError
from palimpsest.planning.hardware import this_machine


def listing(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi that prints `text` first in the search path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{text}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_are_those_that_cuda_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(tmp_path, "NVIDIA H200\\nNVIDIA H200\\nNVIDIA H200\\n", monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (this_machine().device.name, this_machine().count) == ("h200", 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert this_machine().count == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,-1,1")  # up to the first invalid index
    assert this_machine().count == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine().device.is_cpu


def test_a_gpu_without_a_data_sheet_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(tmp_path, "Some Chip 9000\\n", monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ConfigError, match="no data sheet"):
        this_machine()


@pytest.mark.parametrize("program", ["echo NVIDIA-SMI has failed; exit 9", "printf '\\377\\n'; exit 1"])
def test_a_driver_that_fails_counts_as_none(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(tmp_path, "", monkeypatch)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    assert this_machine().device.is_cpu
    (tmp_path / "nvidia-smi").write_text("no program")
    assert this_machine().device.is_cpu


def test_without_a_gpu_the_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_machine().device.is_cpu
    assert this_machine().device.memory_gb > 0
