"""Runs in child processes that are killed and resumed, and a comparison of their folders."""

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
    """A child process of the run, once it trains."""
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
    """Kill the run in `kills` steps, up to `step_s` after their start, then let it end; the recorded steps at each."""
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
    """Files of a run except its log, timings, and a run set aside by a kill before its first checkpoint."""
    differs = {"events.jsonl", "timings.jsonl", ".lock"}
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in differs]
    files = [file for file in files if ".old-" not in str(file.relative_to(path))]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def differences(path: Path, other: Path) -> list[str]:
    """Files that differ or that one of two runs lacks."""
    one, two = contents(path), contents(other)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
