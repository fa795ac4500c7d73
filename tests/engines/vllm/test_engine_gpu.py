"""vLLM and the learner on one GPU: published weights, and the gap between the two afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from palimpsest.runs.jsonl_rows import read_rows

PYTHON = os.environ.get("PALIMPSEST_VLLM_PYTHON") or (sys.executable if find_spec("vllm") else None)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(PYTHON is None, reason="vLLM is not here: name a Python that has it in PALIMPSEST_VLLM_PYTHON"),
]
GAP = {"float32": 1e-3, "bfloat16": 0.5}  # nats, the largest of all tokens
IN_TURNS = ("engine.name=ray", "cluster.placement=colocated")  # the server sleeps while a rank learns on its GPU


@pytest.mark.parametrize(("dtype", "layout"), [("float32", ()), ("bfloat16", ()), ("bfloat16", IN_TURNS)])
def test_servers_have_the_learners_weights_after_each_step(
    dtype: str, layout: Sequence[str], device: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if layout and find_spec("ray") is None:
        pytest.skip("Ray is not installed: extra ray")
    words = [
        "train",
        "memagent-quickstart",
        "--out",
        str(tmp_path / "run"),
        "train.max_steps=3",
        "train.save_steps=100",
    ]
    servers = ["sampler.name=vllm", "sampler.max_model_len=2048", "sampler.gpu_memory_utilization=0.3", *layout]
    settings = [f"model.dtype={dtype}", f"model.device={device}"]
    command = [sys.executable, "-m", "palimpsest", *words, *servers, *settings]
    exact = {"TRITON_F32_DEFAULT": "ieee"}  # else tf32, whose 2^-11 per score would need 1e-2 and hide old weights
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=600, env={**os.environ, **exact})
    assert done.returncode == 0, done.stderr
    assert "leaves the pool" not in done.stderr
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "sampler/logprob_gap_max" in row]
    assert rows
    largest = max(row["sampler/logprob_gap_max"] for row in rows)
    record_property("largest gap, nats", largest)
    record_property("mean gap, nats", max(row["sampler/logprob_gap_mean"] for row in rows))
    timings = read_rows(tmp_path / "run" / "timings.jsonl")
    record_property("publish, s", timings[-1]["publish/seconds"])
    assert largest < GAP[dtype]
