"""Runs killed at random moments with `kill -9` end with the same bytes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import Logger
from support.kill_child import STEPS, run
from support.killing import child, contents, differences, killed_often


def compare(path: Path, whole: Path) -> None:
    assert len(read_rows(path / "metrics.jsonl")) == STEPS
    assert differences(path, whole) == []


@pytest.mark.parametrize("kind", ["fakes", "fakes+2"])
def test_a_run_killed_three_times_ends_as_the_same_bytes(tmp_path: Path, kind: str) -> None:
    run(kind, tmp_path / "whole", "none")
    steps = killed_often(kind, tmp_path / "run", "none", kills=3, step_s=0.05)
    compare(tmp_path / "run", tmp_path / "whole")
    assert any(0 < step < STEPS for step in steps), steps


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("engine", 10), ("engine+1", 5)])
def test_a_run_of_the_embedded_engine_killed_often_ends_as_the_same_bytes(
    tmp_path: Path, tiny_model_folder: Path, kind: str, kills: int
) -> None:
    model = str(tiny_model_folder)
    with child(kind, tmp_path / "whole", model) as process:
        assert process.wait(timeout=300) == 0
    steps = killed_often(kind, tmp_path / "run", model, kills=kills, step_s=0.1)
    compare(tmp_path / "run", tmp_path / "whole")
    norms = [row["optim/grad_norm"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert all(norm > 0 for norm in norms)  # the weights changed in every step
    assert any(0 < step < STEPS for step in steps), steps


class Stopper(Logger):
    """Sends SIGTERM to its process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def log(self, step: int, metrics: object, timings: object) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("kind", ["engine+1", "engine/parallel", "engine/edit"])
def test_the_embedded_engine_interrupted_and_resumed_ends_as_the_same_bytes(
    tmp_path: Path, tiny_model_folder: Path, kind: str
) -> None:
    model, steps = str(tiny_model_folder), 6
    run(kind, tmp_path / "whole", model, steps=steps)
    run(kind, tmp_path / "run", model, Stopper(4), steps=steps)
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 4
    run(kind, tmp_path / "run", model, steps=steps)
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == steps
    ours, theirs = contents(tmp_path / "run"), contents(tmp_path / "whole")
    for name in ("metrics.jsonl", "checkpoints/step-000006/model.safetensors", "trajectories/step-000005.jsonl.zst"):
        assert ours[name] == theirs[name]
