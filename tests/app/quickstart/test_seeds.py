"""`palimpsest quickstart --seeds`: a run each, one report of all."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.quickstart.quickstart_results import Results, over_seeds, summary_json, write_report
from palimpsest.config.load import load_recipe
from palimpsest.evaluation.sample_log import Cell
from palimpsest.evaluation.summary import Score, student, summarise
from support.command import Run


def results(seed: int, right: float, **changes: Any) -> Results:
    """Of an agent that got `right` of 64 problems at both lengths."""
    empty = summarise(Cell("synthetic", 4, "chunks", "agent"), ())
    each = {"problems": 64, "ungraded": seed, "accuracy": Score(right, 0.0, 1.0), "tokens_per_document": 100.0 + seed}
    cell = replace(empty, **each | changes)
    return Results(
        grid=Grid(load_recipe("memagent-quickstart", [f"seed={seed}", "evaluation.sizes=[1, 4]"])),
        trained=4,
        wall_s=60.0,
        cells={name: {1: cell, 4: cell} for name in ("agent_before", "agent")},
        rewards=[0.0, right],
        sizes=[4, 4],
        made=[("command", "palimpsest quickstart memagent --seed 3,7"), ("made with", "palimpsest 0.1.0")],
    )


def test_a_cell_of_several_seeds_is_the_mean_with_students_interval() -> None:
    merged = over_seeds([results(seed, right) for seed, right in enumerate((0.5, 0.6, 0.7))])
    score = merged.cells["agent"][4].accuracy
    half = 4.303 * math.sqrt((0.1**2 + 0.1**2) / 2 / 3)
    assert (score.mean, score.low, score.high) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    assert merged.cells["agent"][4].tokens_per_document == 101
    assert merged.wall_s == 180
    assert merged.rewards == pytest.approx([0, 0.6])
    summary = summary_json(merged)
    assert (summary["seeds"], summary["training_chunks"], summary["planned_chunks"]) == ([0, 1, 2], [4, 4, 4], 4)
    assert summary["accuracy"]["agent"]["4"] == {
        "mean": score.mean, "low": score.low, "high": score.high, "seeds": [0.5, 0.6, 0.7],
    }  # fmt: skip


def test_seeds_that_agree_have_no_interval_and_a_missing_one_leaves_no_mean() -> None:
    assert student([0.5, 0.5]) == Score(0.5, None, None)
    assert student([0.5, None]) == Score(None, None, None)
    assert student([0.0, 1.0]) == Score(0.5, 0.0, 1.0)  # cut to what a share can be


def test_what_a_right_answer_costs_is_the_mean_over_seeds_where_all_have_one() -> None:
    def cost(*each: float | None) -> float | None:
        merged = over_seeds([results(seed, 0.5, tokens_per_correct=tokens) for seed, tokens in enumerate(each)])
        return merged.cells["agent"][1].tokens_per_correct

    assert cost(200.0, 300.0) == 250
    assert cost(200.0, None) is None


def test_the_report_of_several_seeds_shows_means_intervals_and_each_seed(tmp_path: Path) -> None:
    write_report(tmp_path, over_seeds([results(seed, right) for seed, right in ((3, 0.5), (7, 0.75))]))
    page = (tmp_path / "report.html").read_text()
    for said in (
        "2 seeds",
        "Means over seeds 3, 7",
        "62.5%",
        "<small>0.0–100.0%</small>",
        "<small>50.0%, 75.0%</small>",
        "seed-7/report.html",
        "64, 10 ungraded",
        "palimpsest quickstart memagent --seed 3,7",
        "palimpsest 0.1.0",
    ):
        assert said in page, said
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"reward.png", "accuracy.png", "tokens.png"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": (0,)}, r"seeds=\[0\]: use two or more different whole numbers"),
        ({"seeds": 3}, r"seeds=3: pass two or more whole numbers, such as \(0, 1, 2\)"),
        ({"seeds": (1, 1)}, "two or more different"),
        ({"seeds": ("0", "1")}, "two or more different"),
        ({"seeds": (0, 1), "seed": 0}, "seeds takes no seed"),
        ({"seeds": (0, 1), "resume": "runs/first"}, "seeds takes no seed, and resume=True"),
        ({"seeds": (0, 1), "overrides": {"train.stepz": 1}}, "train.stepz"),
    ],
)
def test_what_cannot_be_seeds_is_refused_before_anything_starts(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(palimpsest.PalimpsestError, match=words):
        palimpsest.quickstart("memagent", **options, out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def small_quickstart(model: Path) -> list[str]:
    """Settings of two steps on a tiny model."""
    train = ("max_steps=2", "batch_size=2", "num_minibatches=1", "group_size=2")
    baselines = ("full_window", "last_window", "retrieval")
    budgets = [f"evaluation.baselines.{name}.options.question_tokens=60" for name in baselines]
    policy = ("chunk_size=24", "memory_tokens=8", "question_tokens=60")
    return [
        f"model.path={model}",
        "data.synthetic.starts=null",
        "data.synthetic.chunks=1",
        "data.curriculum.chunks=[1]",
        "evaluation.problems=2",
        "evaluation.sizes=[1]",
        "evaluation.processes=1",
        *(f"train.{each}" for each in train),
        *(f"policy.options.{each}" for each in policy),
        *budgets,
    ]


@pytest.mark.slow
def test_two_seeds_by_the_command_and_again_from_python(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    out = tmp_path / "runs"
    settings = small_quickstart(tiny_model_folder)
    done = palimpsest("quickstart", "memagent", "--seed", "0,1", "--out", str(out), *settings)
    assert done.returncode == 0, done.stderr
    assert "mean of 2 seeds" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    singly = [json.loads((out / f"seed-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert summary["seeds"] == [one["seed"] for one in singly] == [0, 1]
    for name, row in summary["accuracy"].items():
        assert row["1"]["seeds"] == [one["accuracy"][name]["1"] for one in singly]
        assert row["1"]["mean"] == pytest.approx(sum(row["1"]["seeds"]) / 2)
    assert "Means over seeds 0, 1" in (out / "report.html").read_text()
    again = palimpsest("quickstart", "memagent", "--seed", "0,1", "--out", str(out), *settings)
    assert (again.returncode, "--resume" in again.stderr) == (2, True)
    resumed = quickstart_of(out, settings)
    assert (resumed.folder, len(resumed.seeds), resumed.finished) == (out, 2, True)
    assert {**resumed.summary, "wall_s": 0} == {**summary, "wall_s": 0}
    assert "2 seeds" in repr(resumed)


def quickstart_of(out: Path, settings: list[str]) -> palimpsest.Quickstart:
    return palimpsest.quickstart("memagent", settings, seeds=(0, 1), out=out, resume=True, quiet=True)
