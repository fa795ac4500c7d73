"""Several episodes per held-out problem, whose mean an evaluation during training reports."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

import palimpsest
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.types import Problem, Trajectory
from support.small_run import small_run

PROBLEMS, SAMPLES, GROUP = 3, 4, 2


@pytest.mark.parametrize(("temperature", "drawn"), [(1.0, SAMPLES), (0.0, 1)])
def test_each_held_out_problem_is_played_as_often_as_asked_and_the_mean_is_reported(
    tmp_path: Path, tiny_model_folder: Path, temperature: float, drawn: int
) -> None:
    graded: list[tuple[str, float]] = []

    def reward(problem: Problem, trajectory: Trajectory) -> float:
        graded.append((problem.id, float(len(graded) % 3 == 0)))
        return graded[-1][1]

    run = palimpsest.train(
        "memagent-quickstart",
        small_run(tiny_model_folder, max_steps=1, eval_steps=1, eval_samples=SAMPLES, group_size=GROUP)
        | {"cold_start": None, "evaluation.problems": PROBLEMS, "eval_sampling.temperature": temperature},
        reward=reward,
        out=tmp_path / "run",
        quiet=True,
    )
    held_out = graded[GROUP:]  # the step's own group comes first
    assert sorted(Counter(name for name, _ in held_out).values()) == [drawn] * PROBLEMS
    (row,) = run.metrics.rows
    assert row["eval/accuracy"] == pytest.approx(fmean(value for _, value in held_out))


def test_published_recipes_draw_as_many_as_their_scripts() -> None:
    assert RunConfig().train.eval_samples == 1
    for name in ("memagent-7b", "memagent-14b", "memagent-14b-stage2", "rememr1-3b", "rememr1-7b", "rememr1-code"):
        config = load_recipe(name)
        assert config.train.eval_samples == 4
        assert (config.eval_sampling.temperature, config.eval_sampling.top_p) == (1.0, 0.7)
