"""The benchmarks at tiny sizes: what they print, and that the sides they compare do the same work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.bench import forest, forest_cuda, grpo_step, retrieval, rl_step, rollout, train_step
from palimpsest.bench.workloads import Shapes, padded_gradient, plain_gradient
from palimpsest.engines.protocol import StepBatch
from palimpsest.report.plots import plot_scaling
from support.command import Run
from support.models import build_llama

CONTRACT = (
    "gradient_max_relative_error_float64",
    "memact_reuse",
    "memact_learner_speedup",
    "section_first_reuse",
    "section_first_learner_speedup",
    "section_first_prefill_ratio",
    "peak_memory_ratio",
    "trl_step_ratio",
    "time_per_physical_token_ratio",
    "scaling",
)

SCRIPTS_FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(SCRIPTS_FOLDER.glob("*.py"))


def distinct_prefixes(batch: StepBatch) -> int:
    """Tokens that have to be computed: a segment's last token predicts nothing."""
    rows = [item.segment.token_ids[:-1] for item in batch.segments]
    return len({row[: end + 1] for row in rows for end in range(len(row))})


@pytest.fixture(scope="module")
def figures(tiny_model_folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(grpo_step.TRL_PYTHON, raising=False)
        return forest.run(sizes=forest.TINY, model=str(tiny_model_folder))


@pytest.mark.slow
def test_forest_figures_hold_the_contracts_keys(figures: dict[str, Any]) -> None:
    assert set(CONTRACT) <= set(figures)
    assert json.loads(json.dumps(figures)) == figures
    assert [len(row) for row in figures["scaling"]] == [3] * len(forest.TINY.scaling)
    assert [row[0] for row in figures["depth"]] == list(forest.TINY.levels)


def test_forest_gradients_are_those_of_the_segments() -> None:
    assert 0 < forest.gradient_error() < 1e-9


@pytest.mark.slow
def test_reuse_and_prefill_follow_from_the_shape(figures: dict[str, Any]) -> None:
    of = forest.TINY
    count = of.trajectories * of.segments
    assert figures["memact_reuse"] == pytest.approx(
        count * (of.prompt + of.own - 1) / (of.prompt + count * (of.own - 1)), rel=0.02
    )
    whole = of.question + of.memory + of.section
    shared = of.section + of.question + of.group * of.memory
    wanted = (of.group * whole - (of.group - 1) * of.question) / shared
    assert figures["section_first_prefill_ratio"] == pytest.approx(wanted, rel=0.25)  # short prefixes aren't waited for


@pytest.mark.slow
def test_a_forest_without_trl_says_so(figures: dict[str, Any]) -> None:
    import importlib.util

    assert (figures["trl_step_ratio"] is None) == (importlib.util.find_spec("trl") is None)


def test_the_padded_and_the_plain_way_compute_one_gradient() -> None:
    model = build_llama(60)
    batch = Shapes(60).memact(3, 20, 2, 10, 4)
    losses, gradients = [], []
    ways: tuple[Callable[[], float], ...] = (
        lambda: padded_gradient(model, batch.segments, 35, 80),
        lambda: plain_gradient(model, batch),
    )
    for way in ways:
        model.zero_grad(set_to_none=True)
        losses.append(way())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, one in gradients[0].items():
        assert (one - gradients[1][name]).abs().max() <= 1e-4 * one.abs().max()


@pytest.mark.parametrize("levels", [1, 2, 4, 6])
def test_chains_of_any_depth_have_the_tokens_and_the_reuse_asked_for(levels: int) -> None:
    batch = Shapes(500).chain(levels, 24, 3000, 2.9)
    physical = distinct_prefixes(batch)
    logical = sum(len(item.segment.token_ids) - 1 for item in batch.segments)
    assert physical == pytest.approx(3000, rel=0.05)
    assert logical / physical == pytest.approx(2.9, rel=0.05)


def test_both_layouts_hold_the_same_turns() -> None:
    memory_first, section_first = Shapes(300).reading(4, 50, 8, 6, 5)
    pairs = zip(memory_first.segments, section_first.segments, strict=True)
    assert all(sorted(a.segment.token_ids) == sorted(b.segment.token_ids) for a, b in pairs)
    assert distinct_prefixes(section_first) < distinct_prefixes(memory_first) / 2


def test_a_whole_step_runs_on_a_cpu_at_tiny_sizes(tmp_path: Path) -> None:
    result = rl_step.run(tmp_path, device="cpu")
    assert json.loads((tmp_path / "rl-step.json").read_text()) == result
    of = rl_step.TINY_STEP
    assert result["sampled_tokens"] <= of.problems * of.group * (of.paragraphs * of.memory + of.answer)
    assert 0 < result["trained_tokens"] <= result["sampled_tokens"]
    assert result["grad_norm"] > 0
    assert {stage["kernels"][0]["name"] for name, stage in result["stages"].items() if name in ("rollout", "learn")}
    assert "rollout: " in (tmp_path / "rl-step.txt").read_text()


def test_the_gpus_tiny_size_has_heads_that_its_kernel_takes() -> None:
    assert forest_cuda.TINY_GPU.head_dim >= 16
    assert rl_step.TINY_STEP.width // rl_step.TINY_STEP.heads >= 16


def test_the_gpus_table_runs_on_a_cpu_at_tiny_sizes() -> None:
    result = forest_cuda.run(device="cpu")
    (row,) = result["forests"]
    assert result["matrix_tflops"] > 0
    assert row["reuse"] > 1
    assert row["forest_s"] > 0
    assert row["rows_s"] > 0
    assert row["matrix_share"] > 0


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    plot_scaling([[1, 100, 0.1], [4, 400, 0.4]], str(tmp_path / "scaling.png"))
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_bench_without_a_name_lists_the_benchmarks(palimpsest: Run) -> None:
    shown = palimpsest("bench").stdout
    assert all(name in shown for name in ("rollout", "train-step", "forest", "all"))


def broken(**options: Any) -> dict[str, Any]:
    raise RuntimeError("the neighbour left\nand took the key")


def without_vllm(**options: Any) -> dict[str, Any]:
    return {"ours_tokens_per_s": 5.0, "ratio_vllm": None}


def speechless(*sizes: Any, **options: Any) -> dict[str, Any]:
    return {"seconds": 2.0}


def one_of_each_kind(patch: pytest.MonkeyPatch) -> None:
    """One lacks a peer, one fails, two are well; there is no GPU."""
    for module, run in ((rollout, without_vllm), (train_step, broken), (retrieval, speechless), (forest, speechless)):
        patch.setattr(module, "run", run)
    patch.setattr(forest_cuda, "available", lambda: False)


def test_all_benchmarks_go_on_where_one_fails_or_lacks_what_it_needs(
    palimpsest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_of_each_kind(monkeypatch)
    done = palimpsest("bench", "all", "--size", "small", "--json")
    found = json.loads(done.stdout)
    assert {name: each["status"] for name, each in found.items()} == {
        "rollout": "ok",
        "train-step": "failed",
        "retrieval": "ok",
        "forest": "ok",
        "forest-cuda": "skipped",
    }
    assert found["train-step"]["notes"] == ["the neighbour left"]
    assert found["forest-cuda"]["notes"] == ["no CUDA device here"]
    assert "vLLM is not installed" in found["rollout"]["notes"][0]
    assert found["forest"] == {"status": "ok", "notes": [], "figures": {"seconds": 2.0}}
    assert done.returncode == 1  # one failed


def test_all_benchmarks_print_a_table_each(palimpsest: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    one_of_each_kind(monkeypatch)
    monkeypatch.setattr(train_step, "run", speechless)
    done = palimpsest("bench", "all")
    assert done.returncode == 0  # a peer or a device that isn't there is no failure
    assert "bench forest-cuda: skipped: no CUDA device here" in done.stdout
    assert "PALIMPSEST_VLLM_PYTHON" in done.stdout
    assert done.stdout.count("2.00") == 3


@pytest.mark.slow
def test_each_engine_replays_the_same_plan_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALIMPSEST_VLLM_PYTHON", raising=False)
    found = rollout.run(chunks=(1, 2), group_size=2, rounds=2)
    assert found["episodes"] == 4
    assert found["turns"] == 2 * 2 + 2 * 3  # a turn for every chunk, and the answer
    for name in ("ours", "transformers", "transformers_cb"):
        assert found[f"{name}_tokens_per_s"] > 0
    assert found["vllm_tokens_per_s"] is None
    assert found["ratio_transformers"] > 0


@pytest.mark.slow
def test_both_ways_of_a_training_step_have_one_loss() -> None:
    found = train_step.run(segments=8, repeats=1)
    assert found["loss_gap"] < 1e-5
    assert found["ours_s"] > 0
    assert found["padded_s"] > 0


@pytest.mark.parametrize("change", ["nothing=3", "group=0", "group"])
def test_sizes_that_do_not_exist_are_refused(change: str, palimpsest: Run) -> None:
    done = palimpsest("bench", "forest", "--size", change)
    assert done.returncode
    assert change in done.stderr


@pytest.mark.skipif(not os.environ.get(grpo_step.TRL_PYTHON), reason=f"{grpo_step.TRL_PYTHON} is not set")
def test_trls_trainer_runs_the_same_step(tiny_model_folder: Path) -> None:
    assert (grpo_step.ratio(str(tiny_model_folder), 1, 4) or 0) > 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
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


@pytest.mark.slow
def test_the_script_has_a_dry_run() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS_FOLDER / "forest.py"), "--dry-run", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert json.loads(done.stdout)["forests"], done.stderr


SERVING = {
    "first-byte --episodes 2 --probes 2 --every 0.1 --load 400": {"p50_ms", "p99_ms", "fewest_running"},
    "throughput --episodes 3 --at-once 2 --tokens 60 --rounds 1": {"evaluation_s", "server_s", "ratio"},
    "long --tokens 300 --rest 0": {"tokens_per_s", "memory_mb", "mb_per_100k_tokens"},
    "lengths --tokens 50 100 --plot cost.png": {"documents"},
    "questions --questions 3 --tokens 100": {"one_after_the_other", "at_once", "in_one_request"},
    "leaks --rounds 1 --malformed 12 --requests 3 --slow 0 --rest 0": {"before", "rounds"},
}


@pytest.mark.slow
@pytest.mark.parametrize("words", SERVING, ids=lambda words: str(words).split()[0])
def test_figures_of_a_server_at_tiny_sizes(words: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPTS_FOLDER / "serving.py"), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) >= SERVING[words]
    if "questions" in found:  # what the first reading computed, the others begin with
        computed = {way: found[way]["computed"] for way in SERVING[words]}
        assert computed["in_one_request"] < computed["at_once"] < computed["one_after_the_other"]
    if "--plot" in words:
        assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_retrieval_figures_at_a_tiny_size() -> None:
    found = retrieval.run(retrieval.TINY)
    assert json.loads(json.dumps(found)) == found
    for side in ("direct", "server", "client"):
        assert 0 < found[f"{side}_p50"] <= found[f"{side}_p99"]
        assert found[f"{side}_queries_per_s"] > 0
    assert found["limit_mean"] == pytest.approx(found["direct_mean"] * found["clients"] / found["cores"])
    asked = [query for seed in range(10) for query in retrieval.queries_of(retrieval.Sizes(), seed)]
    assert len(set(asked)) > 0.99 * len(asked)  # so good as none comes from the cache
