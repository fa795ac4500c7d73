"""The measurements that need a GPU: the table of `make test-gpu` has their figures; how fast it was is not judged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.bench import forest_cuda, rl_step

pytestmark = pytest.mark.gpu


def out(tmp_path: Path) -> Path:
    return Path(os.environ.get("PALIMPSEST_GPU_OUT", tmp_path))


def test_a_whole_step_of_half_a_billion_weights_is_profiled(
    device: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    figures = rl_step.run(out(tmp_path), device=device)
    assert json.loads((out(tmp_path) / "rl-step.json").read_text()) == figures
    assert figures["stages"].keys() == set(rl_step.STAGES)
    assert figures["stages"]["learn"]["kernels"]
    assert figures["physical_tokens"] < figures["logical_tokens"]
    for name in ("seconds", "peak_mb", "sampled_tokens_per_s", "learnt_tokens_per_s", "logprob_gap_mean"):
        record_property(name, figures[name])
    for name, stage in figures["stages"].items():
        record_property(f"{name}, s", stage["seconds"])
        record_property(f"{name}, kernels busy", stage["busy"])


def test_forests_are_measured_beside_segments_on_their_own(
    device: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    sizes = replace(forest_cuda.GpuSizes(), rounds=2) if device == "cuda" else None
    figures = forest_cuda.run(device=device, sizes=sizes)
    (out(tmp_path) / "forest.json").write_text(json.dumps(figures, indent=1) + "\n")
    for row in figures["forests"]:
        faster = f"{row['speedup']:.2f} times as fast, {row['matrix_share']:.0%} of the matrix rate"
        record_property(f"{row['physical_tokens']:,} tokens", f"reuse {row['reuse']:.2f}, {faster}")
        assert row["reuse"] > 1
