"""A killed and resumed run on a GPU, whose kernels may add in another order, is compared to a tolerance."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.runs.jsonl_rows import read_rows
from support.kill_child import STEPS
from support.killing import child, differences
from support.models import build_llama

pytestmark = pytest.mark.gpu

REACHED = 4  # a checkpoint is written every third step
TOLERANCE = {"rel": 0.05, "abs": 0.01}


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    device: str, tmp_path: Path, tiny_tokenizer: Any, record_property: Callable[[str, object], None]
) -> None:
    model, whole, killed = tmp_path / "model", tmp_path / "whole", tmp_path / "killed"
    build_llama(len(tiny_tokenizer), hidden_size=64).save_pretrained(model)  # heads of 16
    tiny_tokenizer.save_pretrained(model)
    finish(whole, model)
    with child("engine", killed, str(model)) as process:
        while process.poll() is None and len(read_rows(killed / "metrics.jsonl")) < REACHED:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert REACHED <= len(read_rows(killed / "metrics.jsonl")) < STEPS
    finish(killed, model)
    rows, wanted = read_rows(killed / "metrics.jsonl"), read_rows(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == [row["step"] for row in wanted] == list(range(1, STEPS + 1))
    differ = [row["step"] for row, other in zip(rows, wanted, strict=True) if row != other]
    record_property("same bytes", not differences(killed, whole))
    record_property("first step that differs", differ[0] if differ else None)
    if device == "cpu":
        assert differences(killed, whole) == []
    for row, other in zip(rows[:6], wanted[:6], strict=True):  # later ones may have sampled another token
        for name in row.keys() - {"crc32"}:
            assert row[name] == pytest.approx(other[name], **TOLERANCE), f"step {row['step']}, {name}"


def finish(path: Path, model: Path) -> None:
    with child("engine", path, str(model)) as process:
        assert process.wait(timeout=600) == 0
