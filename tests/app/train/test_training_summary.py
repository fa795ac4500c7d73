"""The end of a training: gain and its noise, episodes, next steps."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

import palimpsest
from palimpsest.app.train.training_summary import ENDS, gained, next_steps, report_training, training_results, welch
from palimpsest.cli.main import app
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.statistics import student
from palimpsest.runs.jsonl_rows import append_row
from palimpsest.runs.run_folder import load_config, open_run
from support.command import Run
from support.fakes import small_config
from support.small_run import small_run
from support.view_folders import group, run_folder


def rows(*rewards: float, **more: Any) -> list[dict[str, Any]]:
    return [{"step": step, "reward/mean": reward, **more} for step, reward in enumerate(rewards, 1)]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            rows(*[0.2, 0.3] * 10, *[0.8, 0.7] * 10),
            ["in steps 1 to 10, 0.75", "in steps 31 to 40", "a gain beyond noise"],
        ),
        (rows(*[0.7, 0.8] * 10, *[0.2, 0.3] * 10), ["a loss beyond noise"]),
        (rows(0.5, 0.5, 0.75, 0.75), ["Reward 0.50 in step 1, 0.75 in step 4: too few steps"]),
        (rows(*[0.25] * 4, *[0.75] * 5), ["too few steps"]),
        (rows(*[0.25] * 5, *[0.75] * 5), ["0.75 in steps 6 to 10, a difference of 0.50 [0.50, 0.50]: a gain"]),
        (rows(0.2, 0.5, 0.5), ["Reward 0.20 in step 1, 0.50 in step 3: too few steps"]),
        ([{"step": 1}], ["No step has a reward."]),
        (
            [
                *rows(*[0.8, 0.9] * 10, **{"curriculum/chunks": 1}),
                *rows(*[0.1, 0.2] * 5, *[0.5, 0.6] * 5, **{"curriculum/chunks": 4}),
            ],
            ["Reward at 4 chunks, after 1, 0.15 in steps", "0.55 in steps", "a gain beyond noise"],
        ),
        (
            [*rows(*[0.8] * 10, **{"curriculum/chunks": 1}), *rows(0.1, 0.2, **{"curriculum/chunks": 4})],
            ["Reward at 4 chunks, after 1, 0.10 in step", "too few steps"],
        ),
        (
            [{"step": 20, "eval/accuracy": 0.25}, {"step": 40, "eval/accuracy": 0.75}],
            [
                "Held-out accuracy 0.25 [0.16, 0.37] after step 20, 0.75 [0.63, 0.84] after step 40",
                "a gain beyond noise",
            ],
        ),
        (
            [{"step": 20, "eval/accuracy": -3.0}, {"step": 40, "eval/accuracy": 7.0}],
            ["Held-out reward -3.00 after step 20, 7.00 after step 40: beyond 0 to 1, so its noise is unknown."],
        ),
        ([{"step": 20, "eval/accuracy": 0.5}, {"step": 40, "eval/accuracy": 0.55}], ["no change beyond noise"]),
        (
            [{"step": step, "eval/accuracy": right / 12, "eval/problems": 12} for step, right in ((20, 6), (40, 10))],
            ["0.50 [0.25, 0.75] after step 20, 0.83 [0.55, 0.95] after step 40", "no change beyond noise"],
        ),
    ],
)
def test_a_gain_has_its_noise(result: list[dict[str, Any]], words: list[str]) -> None:
    sentence = gained(result, RunConfig())
    for item in words:
        assert item in sentence


@pytest.mark.parametrize("value", [None, "x", [1], True])
def test_a_metric_that_is_no_number_is_left_out_of_the_report(tmp_path: Path, value: Any) -> None:
    numbers = {"curriculum/chunks": 2, "tool/prunes": 1.0, "eval/accuracy": 0.5, "eval/ungraded": 0}
    strange = dict.fromkeys(numbers, value)
    open_run(tmp_path, small_config(), on_warning=print).close()
    result = [
        *rows(0.25, **numbers),
        {"step": 2, "reward/mean": value, **numbers},
        {"step": 3, "reward/mean": 0.5, **strange},
        {"step": 4, "reward/mean": 0.5, **numbers, "eval/ungraded": value},
    ]
    for row in result:
        append_row(tmp_path / "metrics.jsonl", row)
    results = report_training(tmp_path, load_config(tmp_path))
    assert [row["step"] for row in results.rows] == [1, 3, 4]
    assert "Held-out accuracy" in results.gain
    assert "after step 1" in results.gain
    assert "0.500 at last" in repr(palimpsest.Run(tmp_path))
    assert gained([{"step": 1, "reward/mean": value}], RunConfig()) == "No step has a reward."


@pytest.mark.parametrize(
    ("before", "after", "low", "high"),
    [
        ([1, 2, 3, 4, 5], [3, 4, 5, 6, 7], 2 - 2.306, 2 + 2.306),  # 8 degrees of freedom, standard error 1
        ([1, 1, 1, 1, 1], [1, 2, 3, 4, 5], 2 - 2.776 * 0.5**0.5, 2 + 2.776 * 0.5**0.5),  # 4, as of one sample
        ([0, 1] * 5, [2, 3] * 5, 2 - 2.101 / 18**0.5, 2 + 2.101 / 18**0.5),  # 18
        ([0, 0, 0, 0, 1e-200], [1, 1, 1, 1, 1], 1, 1),
    ],
)
def test_the_interval_is_welchs(before: list[float], after: list[float], low: float, high: float) -> None:
    assert welch(before, after) == pytest.approx((low, high), abs=1e-3)


@pytest.mark.parametrize("freedom", range(1, 2 * ENDS - 1))
def test_the_quantiles_of_students_t_leave_a_fortieth_above(freedom: int) -> None:
    width = student(freedom) / 1000
    density = [(1 + (width * (at + 0.5)) ** 2 / freedom) ** (-(freedom + 1) / 2) for at in range(1000)]
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    assert 0.5 + scale * width * sum(density) == pytest.approx(0.975, abs=4e-5)


def test_ungraded_episodes_are_counted(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_graded.py").write_text(
        "def reward(problem, trajectory): return 1.0 if trajectory.rollout else float('nan')\n"
    )
    settings = {**small_run(tiny_model_folder), "reward.name": "half_graded:reward"}
    run = palimpsest.train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    ending = "4 of 8 episodes had no grade and are in no figure."
    assert training_results(run.folder, run.config).gain.endswith(ending)
    assert ending in run.report.read_text("utf-8")
    assert "step 1: 2 of 4 episodes have no grade" in (run.folder / "events.jsonl").read_text("utf-8")


def test_the_next_steps_are_commands_that_there_are() -> None:
    for done in (3, 100):
        for line in next_steps(Path("runs/first"), RunConfig(), done):
            command: Any = typer.main.get_command(app)
            _, name, *words = shlex.split(line, comments=True)
            command.commands[name].make_context("palimpsest", words)


def test_a_closing_episode_has_its_answer_without_the_box_and_each_memory_once(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    played = group("p", turns=4)
    trajectories = tuple(replace(item, answer=r"So \boxed{\text{Rome}}.") for item in played.trajectories)
    records = {1: [replace(played, trajectories=trajectories)]}
    run_folder(tmp_path / "run", records=records, config=f"model:\n  path: {tiny_model_folder}\n")
    episodes = training_results(tmp_path / "run", load_config(tmp_path / "run")).episodes
    assert {(episode.answer, episode.gold) for episode in episodes} == {(r"\text{Rome}", "gold")}
    assert {len(episode.memories) for episode in episodes} == {1}


def test_a_training_ends_with_a_report(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    settings = [f"{key}={json.dumps(value)}" for key, value in small_run(tiny_model_folder).items()]
    run = tmp_path / "run"
    done = palimpsest("train", "memagent-quickstart", *settings, "--out", str(run))
    assert done.returncode == 0, done.stderr
    report = (run / "report.html").read_text("utf-8")
    results = training_results(run, load_config(run))
    for text in (results.gain, "question  ", "answer    ", "next:"):
        assert text in done.stdout
    assert f"palimpsest train --resume {run} train.max_steps=4" in done.stdout
    assert (run / "plots" / "reward.png").is_file()
    assert 0 < len(results.episodes) <= 3
    assert results.stories[0].question in report.replace("&#39;", "'")
    assert "default-src 'none'" in report
    (run / "report.html").unlink()
    palimpsest("train", "--resume", str(run))
    assert "Next steps" in (run / "report.html").read_text("utf-8")
