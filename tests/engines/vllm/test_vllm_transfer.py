"""`sampler.publish=nccl` and `ipc` by the real vLLM at both ends, on a CPU: gloo stands for NCCL's communicator and a
file for a CUDA IPC handle (support/cpu_transfer.py); all else is what runs on a GPU. Nothing here tells of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from palimpsest.runs.jsonl_rows import read_rows
from support.cpu_transfer import done, installed

PYTHON = os.environ.get("PALIMPSEST_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no $PALIMPSEST_VLLM_PYTHON, a Python with vLLM"),
]
GAP = 1e-4  # nats; float32 on both sides
WEIGHTS = 39  # of the packaged model, the output projection that it is tied with among them
RAY = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")


def start(way: str, out: Path, steps: int, environment: dict[str, str], *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "palimpsest", "train", "memagent-quickstart", "--out", str(out)]
    servers = ["sampler.name=vllm", "sampler.max_context=2048", f"sampler.publish={way}"]
    learning = [f"train.steps={steps}", "train.save_every=100", "optim.learning_rate=1e-3"]
    return subprocess.Popen(
        [*command, *servers, *learning, *more],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def gaps(out: Path) -> list[float]:
    rows = read_rows(out / "metrics.jsonl") if (out / "metrics.jsonl").is_file() else []
    return [row["sampler/logprob_gap_max"] for row in rows if "sampler/logprob_gap_max" in row]


@pytest.mark.parametrize(
    ("way", "more", "notes"),
    [
        ("ipc", (), {"file": 1, "copy": 3 * WEIGHTS}),
        pytest.param(
            "nccl",
            ("engine.name=ray", "cluster.learners=2", "sampler.servers=2"),
            {"file": 2, "broadcast": 3 * WEIGHTS, **{f"join-{rank}-of-3": 1 for rank in range(3)}},
            marks=RAY,
        ),
    ],
)
def test_servers_get_every_version_without_a_file_and_sample_by_it(
    way: str, more: tuple[str, ...], notes: dict[str, int], tmp_path: Path
) -> None:
    assert PYTHON is not None
    environment, out = installed(tmp_path, PYTHON), tmp_path / "run"
    process = start(way, out, 3, environment, *more)
    _, told = process.communicate()
    assert process.returncode == 0, told
    assert "leaves the pool" not in told
    assert len(gaps(out)) == 3
    assert max(gaps(out)) < GAP
    assert Counter(done(environment)) == notes  # each rank has its part in the file that servers start from


def test_a_server_that_is_killed_starts_from_a_file_and_joins_again(tmp_path: Path) -> None:
    assert PYTHON is not None
    environment, out = installed(tmp_path, PYTHON), tmp_path / "run"
    process = start("nccl", out, 6, environment, "sampler.servers=2", "sampler.devices=[1, 2]")
    while len(gaps(out)) < 2:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.1)
    servers = [each for each in psutil.process_iter(["cmdline"]) if is_server(each, out)]
    assert len(servers) == 2
    servers[0].kill()
    _, told = process.communicate()
    assert process.returncode == 0, told
    assert len(gaps(out)) == 6
    assert max(gaps(out)) < GAP
    notes = Counter(done(environment))
    assert notes["file"] == 2
    assert notes["join-0-of-3"] == 2
    assert notes["join-0-of-2"] <= 1  # none where it was up again before the next weights


def is_server(process: psutil.Process, out: Path) -> bool:
    words = process.info["cmdline"] or []
    return "vllm.entrypoints.openai.api_server" in words and any(str(out) in word for word in words)
