"""`scripts/gpu_session.py`: its figures, its supervision, and all of it at tiny size on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gpu_session
from gpu_session import LIMITS, Figures, Session, operations, run_process
from gpu_tests import CHECKOUT, LIMIT_S
from palimpsest.config.training_steps import OptimConfig
from palimpsest.engines.embedded.forest.attention import on_path
from palimpsest.engines.embedded.forest.layout import build_forests
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.planning.model_shape import KNOWN


def figures_of(out: Path, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    command = [sys.executable, "scripts/gpu_session.py", "--device", "cpu", "--out", str(out), *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((out / "figures.json").read_text())
    assert all(row.keys() == {"part", "figure", "value", "unit", "why"} for row in figures)
    assert all(row["figure"] in done.stdout for row in figures)
    assert len((out / "figures.md").read_text().splitlines()) == 2 + len(figures)
    named = {(row["part"], row["figure"]): row for row in figures}
    assert len(named) == len(figures)
    return named


@pytest.mark.slow
def test_one_part_alone_records_rates_and_errors(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "--only", "kernels")
    assert {part for part, _ in figures} == {"kernels"}
    assert figures["kernels", "product rate"]["value"] > 0
    assert figures["kernels", "attention, relative error of output"]["value"] < 0.02
    assert figures["kernels", "torch"]["value"] == torch.__version__


@pytest.mark.parametrize(
    ("code", "limit_s", "why"),
    [
        ("import sys; sys.exit('OutOfMemoryError: 80 GB')", 60, "ended with 1: OutOfMemoryError: 80 GB"),
        ("import os; os.abort()", 60, "ended with -6: "),
        ("import time; print('on', flush=True); time.sleep(600)", 2, "killed after 2 s"),
        ("pass", 60, ""),
    ],
    ids=["error", "crash", "hang", "success"],
)
def test_the_end_of_a_part_is_its_last_figure(code: str, limit_s: float, why: str, tmp_path: Path) -> None:
    Figures(tmp_path).add("learner", "earlier", 0.5, "s")
    assert run_process("learner", [sys.executable, "-c", code], tmp_path, limit_s) == (not why)
    earlier, last = json.loads((tmp_path / "figures.json").read_text())
    assert earlier["value"] == 0.5
    assert (last["figure"], last["why"], last["value"] is None) == ("part", why, bool(why))


def test_an_error_inside_a_part_is_a_reason_and_the_part_continues(tmp_path: Path) -> None:
    session = Session("learner", "cpu", tmp_path, Figures(tmp_path))
    with session.attempt("large"):
        raise torch.OutOfMemoryError("80 GB\nmore")
    session.add("small", 1)
    large, small = session.figures.all
    assert (large["value"], large["why"]) == (None, "OutOfMemoryError: 80 GB")
    assert small["value"] == 1


def test_limits_fill_the_session() -> None:
    assert sum(LIMITS.values()) == LIMIT_S


@pytest.mark.parametrize("name", ["0.5B", "Qwen/Qwen3-4B", "Qwen/Qwen2.5-7B-Instruct"])
def test_a_model_has_the_weights_of_its_shape(name: str, tmp_path: Path) -> None:
    session = Session("sampler", "meta", tmp_path, Figures(tmp_path))
    weights = sum(weight.numel() for weight in session.build(session.shape(name)).parameters())
    assert weights == (494_032_768 if name == "0.5B" else KNOWN[name].parameters)


@pytest.mark.parametrize("places", [2048, 8192, 16_384])
@pytest.mark.parametrize("layout", ["memory_first", "section_first"])
def test_a_batch_fills_one_forest(layout: str, places: int) -> None:
    (forest,) = build_forests(gpu_session.batch_of(layout, places, 4096).segments, places, places)
    assert 0.6 * places < forest.physical_tokens <= places
    assert (forest.reuse > 2) == (layout == "section_first")


@pytest.mark.parametrize("layout", ["memory_first", "section_first"])
def test_operations_are_those_that_torch_counts_and_the_attended_pairs(layout: str, tmp_path: Path) -> None:
    session = Session("learner", "cpu", tmp_path, Figures(tmp_path))
    shape = session.shape("0.5B")
    learner = ForestLearner(session.build(shape), optim=OptimConfig())
    batch = gpu_session.batch_of(layout, 512, shape.vocab)
    (forest,) = build_forests(batch.segments, 512, 512)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        learner._forward(forest, False)
    everywhere = torch.arange(forest.physical_tokens)
    pairs = [int(on_path(forest.exits, where, everywhere).sum()) for where in (everywhere, forest.places)]
    products = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
    assert operations(shape, batch)[0] == products + 4 * shape.query * sum(pairs)


@pytest.mark.slow
def test_all_parts_have_figures_on_a_cpu(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "--minutes", "60")
    assert {part for part, _ in figures} == {*LIMITS}
    assert [row for row in figures.values() if row["value"] is None] == []
    for part in ("learner", "compiled"):
        assert figures[part, "memory_first: HFU"]["value"] > figures[part, "memory_first: MFU"]["value"] > 0
    assert figures["learner", "section_first: reuse"]["value"] > 2
    assert figures["ranks", "whole publication"]["value"] > 0
    assert "_Parts" in (tmp_path / "profile.txt").read_text()
