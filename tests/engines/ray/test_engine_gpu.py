"""A run on Ray whose learner and sampler share one GPU, against the same run in one process on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from palimpsest.runs.jsonl_rows import read_rows
from support.cluster import ClusterRun, settings
from support.command import Run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: extra ray")]

SHARED = ("cluster.placement=colocated", "cluster.gpus_per_learner=0.6", "cluster.gpus_per_sampler=0.4")
DIFFERING = {"crc32", "policy/physical_tokens", "policy/reuse", "learner/idle_share", "learner/padding_share"}
TOLERANCE = 1e-3


def test_a_learner_and_a_sampler_on_one_gpu_learn_what_one_process_learns(
    run: ClusterRun, device: str, tmp_path: Path, palimpsest: Run, record_property: Callable[[str, object], None]
) -> None:
    process = run.start("cluster.learners=1", *(SHARED if device == "cuda" else ()))
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert run.gone()
    done = palimpsest("train", "memagent-quickstart", *settings(2), "--out", str(tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    ours, theirs = read_rows(run.out / "metrics.jsonl"), read_rows(tmp_path / "one" / "metrics.jsonl")
    assert len(ours) == len(theirs) == 2
    names = ours[0].keys() - DIFFERING
    gaps = {name: abs(ours[0][name] - theirs[0][name]) for name in names}
    record_property("largest difference of a metric of step 1", max(gaps.values()))
    record_property("gap to the sampler, nats", ours[0].get("sampler/logprob_gap_max"))
    timings = [json.loads(line) for line in (run.out / "timings.jsonl").read_text().splitlines()]
    record_property("publish, s", timings[-1]["publish/seconds"])
    assert all(gap < TOLERANCE for gap in gaps.values()), gaps
