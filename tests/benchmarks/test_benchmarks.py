"""The benchmarks at tiny sizes: their output, and that the compared sides do the same work."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "vllm_worker.py")
MEASURES_TORCH = ("learner.py", "rollout.py")
WITHOUT_TORCH = [path for path in SCRIPTS if path.name not in MEASURES_TORCH]


def measured(script: str, *words: str) -> dict[str, Any]:
    """Output of a benchmark."""
    environment = {name: value for name, value in os.environ.items() if name != "PALIMPSEST_VLLM_PYTHON"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, str(FOLDER / script), *words]
    return dict(json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout))


@pytest.mark.parametrize("script", WITHOUT_TORCH, ids=lambda path: path.name)
def test_every_script_says_how_it_is_used_and_does_nothing_more(script: Path, tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = [{str(script)!r}, "--help"]
try:
    runpy.run_path({str(script)!r}, run_name="__main__")
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script.name} ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", MEASURES_TORCH)
def test_a_script_that_measures_torch_says_how_it_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"usage: {name} ")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_engine_replays_the_same_plan_in_a_separate_process() -> None:
    figures = measured("rollout.py", "--chunks", "1", "2", "--group", "2", "--rounds", "2")
    assert figures["episodes"] == 4
    assert figures["turns"] == 2 * 2 + 2 * 3  # a turn for every chunk, and the answer
    for name in ("ours", "transformers", "transformers_cb"):
        assert figures[f"{name}_tokens_per_s"] > 0
    assert figures["vllm_tokens_per_s"] is None
    assert figures["ratio_transformers"] > 0


@pytest.mark.slow
def test_both_ways_of_a_training_step_have_one_loss() -> None:
    figures = measured("learner.py", "step", "--segments", "8", "--rounds", "1")
    assert figures["loss_gap"] < 1e-5
    assert figures["ours_s"] > 0
    assert figures["padded_s"] > 0


@pytest.mark.slow
def test_reuse_and_prefill_follow_from_the_shape(tiny_model_folder: Path) -> None:
    figures = measured("learner.py", "forest", "--model", str(tiny_model_folder), "--rounds", "1")
    assert figures["memact_reuse"] == pytest.approx(80 * 1799 / (1500 + 80 * 299), rel=0.02)
    complete, shared = 50 + 200 + 1000, 1000 + 50 + 16 * 200
    assert figures["section_first_prefill_ratio"] == pytest.approx((16 * complete - 15 * 50) / shared, rel=0.25)
    assert figures["scaling"][0][:2] == [1, 1199]


@pytest.mark.slow
def test_a_step_on_ray_is_that_of_the_embedded_engine() -> None:
    figures = measured("learner.py", "ray", "--segments", "8", "--rounds", "2")
    assert figures["same_turns"] == 1
    assert figures["logprob_gap"] < 1e-4
    assert figures["loss_gap"] < 1e-5
    assert set(figures["ratio"]) == {"sampling", "update", "publish", "step"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: pip install trl==1.16.0")
def test_trl_s_trie_computes_the_same_loss_from_as_many_tokens(tiny_model_folder: Path) -> None:
    figures = measured("learner.py", "trl", "--model", str(tiny_model_folder), "--rounds", "1", "--chunks", "2")
    for batch in figures.values():
        assert batch["loss_gap"] < 1e-6
        assert batch["share"]["ours"] == pytest.approx(batch["share"]["trl"], rel=0.02)
    assert figures["section_first"]["share"]["trl"] > 2 * figures["memory_first"]["share"]["trl"]


def test_retrieval_figures_at_a_tiny_size() -> None:
    sizes = {"passages": 200, "vocabulary": 100, "queries": 16, "clients": 4, "rounds": 1}
    figures = measured("retrieval.py", *(word for name, size in sizes.items() for word in (f"--{name}", str(size))))
    for side in ("direct", "server", "client"):
        assert 0 < figures[f"{side}_p50"] <= figures[f"{side}_p99"]
        assert figures[f"{side}_queries_per_s"] > 0
    assert figures["limit_mean"] == pytest.approx(figures["direct_mean"] * 4 / figures["cores"])


def test_many_episodes_finish_with_few_file_descriptors_and_no_server_is_lost() -> None:
    words = ("--servers", "4", "--problems", "16", "--chunks", "1", "--tokens", "70", "--json")
    command = shlex.join([sys.executable, str(FOLDER / "driver.py"), *words])
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent / "src")}
    limited = ["bash", "-c", f"ulimit -n 150; exec {command}"]
    done = subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "leaves the pool" not in done.stderr
    figures = json.loads(done.stdout)
    assert (figures["episodes"], figures["turns"]) == (256, 256 * 3)
