"""Runs in processes of their own that are killed and go on, and what is compared of their folders."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palimpsest.runs.jsonl_rows import read_rows
from support.kill_child import STEPS

CHILD = Path(__file__).with_name("kill_child.py")


@contextmanager
def child(kind: str, path: Path, model: str) -> Iterator[subprocess.Popen[str]]:
    """The run in a process of its own, once it trains."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), kind, str(path), model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert "training\n" in iter(process.stdout.readline, "")
            yield process
        finally:
            process.kill()


def killed_often(kind: str, path: Path, model: str, *, kills: int, step_s: float, seed: int = 0) -> list[int]:
    """Kill the run in `kills` of its steps, up to `step_s` after they began, then let it end.

    Returns the number of steps on record at each death.
    """
    rng = random.Random(seed)
    steps: list[int] = []
    for reached in sorted(rng.sample(range(STEPS), kills)):
        with child(kind, path, model) as process:
            while process.poll() is None and len(read_rows(path / "metrics.jsonl")) < reached:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, step_s))
            process.send_signal(signal.SIGKILL)
            process.wait()
        steps.append(len(read_rows(path / "metrics.jsonl")))
    with child(kind, path, model) as process:
        assert process.wait(timeout=300) == 0
    return steps


def contents(path: Path) -> dict[str, bytes]:
    """Everything of a run but its log, its clocks, and what a kill before its first checkpoint had it keep aside."""
    differs = {"events.jsonl", "timings.jsonl", ".lock"}
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in differs]
    files = [file for file in files if ".old-" not in str(file.relative_to(path))]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def differences(path: Path, whole: Path) -> list[str]:
    """Files that one of two runs lacks, or that are not the same bytes."""
    one, other = contents(path), contents(whole)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
