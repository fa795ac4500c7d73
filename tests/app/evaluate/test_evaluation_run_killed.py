"""Killed processes of evaluations: no process remains, and the evaluation resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from palimpsest.evaluation.sample_log import read_samples
from support.command import Run
from support.interrupting import interrupted, quickstart
from support.small_run import small_evaluation

EVALUATES = "palimpsest.app.quickstart.quickstart_run:QuickstartProcesses._receive"


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "status"), [("SIGKILL@worker", 2), ("SIGKILL", -signal.SIGKILL)])
def test_a_killed_quickstart_or_worker_leaves_no_process_and_resumes(
    victim: str, status: int, tmp_path: Path, tiny_model_folder: Path, palimpsest: Run
) -> None:
    out = tmp_path / "out"
    ended = interrupted(victim, EVALUATES, quickstart(tiny_model_folder, out))
    assert (ended.status, ended.survivors) == (status, []), ended.stderr
    assert "Traceback" not in ended.stderr
    assert ("error: a worker process ended with exit code -9" in ended.stderr) == (status == 2)
    done = palimpsest("quickstart", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert set(json.loads((out / "summary.json").read_text())) >= {"accuracy", "seed"}


@pytest.mark.slow
def test_a_killed_evaluation_resumes_from_its_log(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    out = tmp_path / "out"
    command = small_evaluation(tiny_model_folder, out, chunks="1,2")
    ended = interrupted("SIGKILL", "palimpsest.app.evaluate.evaluation_run:summaries_of", command)
    assert (ended.status, ended.survivors) == (-signal.SIGKILL, [])
    log = (out / "samples.jsonl").read_bytes()
    lines = log.splitlines(keepends=True)
    (out / "samples.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:40])  # as if it had died in the sixth
    assert palimpsest(*command).returncode == 0
    samples, unreadable = read_samples(out / "samples.jsonl")
    assert (len(samples), unreadable) == (8, 0)
    assert sorted((out / "samples.jsonl").read_bytes().splitlines()) == sorted(log.splitlines())


@pytest.mark.slow
def test_two_trainings_at_once_are_refused_on_one_folder_and_fine_on_two(tmp_path: Path) -> None:
    """Both begin while the other is at it, in whatever order."""
    child = Path(__file__).parents[2] / "support" / "kill_child.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

    def begin(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(child), "fakes", str(tmp_path / name), "none"]
        return subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    first = begin("one")
    assert first.stdout is not None
    assert "training\n" in iter(first.stdout.readline, "")
    first.send_signal(signal.SIGSTOP)  # it holds the folder for as long as it takes
    same, other = begin("one"), begin("two")
    assert "is in use by process" in same.communicate(timeout=240)[1]
    assert same.returncode == 1  # the script of the test shows the error; the command line makes a line of it
    assert other.communicate(timeout=240)[1] == ""
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=240)
    assert (first.returncode, other.returncode) == (0, 0)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("one", "two")]
    assert metrics[0] == metrics[1]
