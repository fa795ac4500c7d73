"""Commands that get a signal at a chosen call, and their surviving processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.small_run import small_run

CHILD = Path(__file__).with_name("signal_child.py")
WAIT_S = 60


@dataclass(frozen=True)
class Ended:
    """A command that a signal ended."""

    status: int
    stderr: str
    survivors: list[int]
    """Process ids of its session."""


def session(leader: int) -> list[int]:
    """Processes of a session that still run."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            pids.append(int(entry.parent.name))
    return pids


def survivors(leader: int) -> list[int]:
    """Processes of a session that don't end by themselves within the time."""
    deadline = time.monotonic() + WAIT_S
    while (pids := session(leader)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return pids


def interrupted(name: str, function: str, command: list[str], *, times: int = 1) -> Ended:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(CHILD), name, str(times), function, *command]
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(words, env=environment, start_new_session=True, **streams)
    _, stderr = child.communicate(timeout=240)
    return Ended(child.returncode, stderr, survivors(child.pid))


def small(model: Path, **changes: object) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in (small_run(model) | changes).items()]


def quickstart(model: Path, out: Path) -> list[str]:
    changes = {"evaluation.problems": 2, "evaluation.sizes": [1, 2], "evaluation.baselines": {}}
    return ["quickstart", "memagent", *small(model, **changes), "--out", str(out)]


def killed_at(words: list[str], out: Path, episodes: int) -> None:
    """Run `palimpsest` with `words`, an evaluation into `out`, and kill it once it has logged that many episodes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "palimpsest", *words]
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **silent) as process:
        while process.poll() is None and logged(out) < episodes:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before"


def logged(out: Path) -> int:
    """Lines in the log of an evaluation."""
    log = out / "samples.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0
