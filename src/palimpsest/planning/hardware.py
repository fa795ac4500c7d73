"""Devices of a plan: GPUs from data sheets, this machine's GPUs by nvidia-smi, and CPU cores.

Not covered: GPUs that CUDA_VISIBLE_DEVICES names by UUID, and partitions (MIG).
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

import psutil

from palimpsest.config.engine import MOST_RANKS
from palimpsest.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a CPU core; all cores of a machine share one memory."""

    name: str
    memory_gb: float
    tflops: float
    """Dense products, 10^12 operations per second: bfloat16 on a GPU, float32 on a core."""
    bandwidth_tb: float
    """Reads from its memory, 10^12 bytes per second."""

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


DEVICES = {
    name: Device(name, *sheet)
    for name, sheet in {
        "h100": (80, 989, 3.35),
        "h800": (80, 989, 3.35),
        "h200": (141, 989, 4.8),
        "h20": (96, 148, 4.0),
        "b200": (180, 2250, 8.0),
        "a100-80": (80, 312, 2.0),
        "a100-40": (40, 312, 1.55),
        "l40s": (48, 362, 0.86),
        "4090": (24, 165, 1.0),
    }.items()
}
"""NVIDIA's data sheets (SXM modules), without sparsity."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Equal machines, each with `count` equal GPUs or cores."""

    device: Device
    count: int
    machines: int = 1

    def __post_init__(self) -> None:
        if self.total > MOST_RANKS and not self.device.is_cpu:
            raise ConfigError(
                f"{self.machines} machines with {self.count} GPUs: use at most {MOST_RANKS} GPUs in total"
            )

    @property
    def total(self) -> int:
        return self.count * self.machines


def named_device(name: str) -> Device:
    """The device of a data sheet. Raises ConfigError.

    >>> named_device("NVIDIA H100 80GB HBM3").name, named_device("NVIDIA A100-SXM4-40GB").name
    ('h100', 'a100-40')
    """
    words = re.sub(r"[^a-z0-9]", "", name.lower())
    for known in sorted(DEVICES, key=len, reverse=True):
        if all(part in words for part in known.split("-")):
            return DEVICES[known]
    raise ConfigError(f"GPU {name}: no data sheet; choose one of {', '.join(DEVICES)}")


def cpu(cores: int) -> Hardware:
    """Cores with 256-bit vectors (2 fused multiply-adds of 8 floats per cycle at 3.7 GHz) and this machine's memory."""
    return Hardware(Device("cpu", psutil.virtual_memory().total / 1e9, 0.12, 0.02), cores)


def this_machine() -> Hardware:
    """The GPUs of this machine that CUDA may use, which count as equal to the first; without any, its cores."""
    gpus = list[str]()
    with suppress(OSError, subprocess.SubprocessError):  # no driver, or one that fails
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        listing = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=30, check=True).stdout
        gpus = listing.split("\n")[:-1]
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:  # up to the first invalid index
        indices = takewhile(lambda word: re.fullmatch("[0-9]+", word.strip()), named.split(","))
        gpus = [gpus[at] for at in takewhile(range(len(gpus)).__contains__, map(int, indices))]
    return Hardware(named_device(gpus[0]), len(gpus)) if gpus else cpu(os.cpu_count() or 1)
