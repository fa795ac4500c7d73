"""Evaluation before training, and the checkpoint that did best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError
from palimpsest.runs.checkpoint import verify
from palimpsest.runs.jsonl_rows import read_rows
from support.fakes import HashLearner, SeedSampler, small_config
from support.training import train

SCORES = {0: 0.1, 1: 0.2, 2: 0.7, 3: 0.4, 4: 0.7, 5: 0.3, 6: 0.5}
"""By step; the second 0.7 is no better than the first."""


class Killed(BaseException):
    """The process is gone."""


async def scores(step: int) -> Mapping[str, float]:
    return {"accuracy": SCORES[step], "ungraded": 0.0}


def config(**train: Any) -> RunConfig:
    return small_config(eval_steps=1, **train)


def best(run: Path) -> tuple[int, bytes]:
    folder = run / "checkpoints" / "best"
    return verify(folder).step, (folder / "model.safetensors").read_bytes()


def test_the_best_checkpoint_is_kept_and_a_resume_keeps_the_same(tmp_path: Path) -> None:
    settings = config(metric_for_best_model="accuracy", save_total_limit=1)
    train(tmp_path / "whole", settings, evaluate=scores)
    at_two, _ = train(tmp_path / "two", small_config(max_steps=2))
    assert best(tmp_path / "whole") == (2, at_two.learner.weights.encode())
    assert [path.name for path in (tmp_path / "whole" / "checkpoints").iterdir() if path.name != "best"] == [
        "step-000006"
    ]
    said = [row for row in read_rows(tmp_path / "whole" / "events.jsonl") if row["kind"] == "best"]
    assert [(row["step"], row["metric"], row["value"]) for row in said] == [(1, "accuracy", 0.2), (2, "accuracy", 0.7)]

    class Dies(SeedSampler):
        async def generate(self, prompt_ids: Any, params: Any, **options: Any) -> Any:
            if len(self.calls) == 60:  # in step 4
                raise Killed
            return await super().generate(prompt_ids, params, **options)

    learner = HashLearner()
    with pytest.raises(Killed):
        train(tmp_path / "cut", settings, evaluate=scores, sampler=Dies(learner=learner), learner=learner)
    train(tmp_path / "cut", settings, evaluate=scores, resume=True)
    assert best(tmp_path / "cut") == best(tmp_path / "whole")
    metrics = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("cut", "whole")]
    assert metrics[0] == metrics[1]


def test_what_did_best_before_training_is_kept_too(tmp_path: Path) -> None:
    async def worse(step: int) -> Mapping[str, float]:
        return {"accuracy": -float(step)}

    settings = config(metric_for_best_model="accuracy", eval_on_start=True)
    train(tmp_path / "run", settings, evaluate=worse)
    assert best(tmp_path / "run") == (0, b"")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(7))
    assert rows[0]["eval/accuracy"] == 0
    assert "reward/mean" not in rows[0]
    train(
        tmp_path / "run",
        config(metric_for_best_model="accuracy", eval_on_start=True, max_steps=7),
        evaluate=worse,
        resume=True,
    )
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == list(range(8))


def test_a_metric_that_is_not_measured_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"train\.metric_for_best_model=f2: unknown evaluation metric; choose one of accuracy"
    ):
        train(tmp_path / "run", config(metric_for_best_model="f2"), evaluate=scores)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*")), "what was learnt until then is kept"


@pytest.mark.parametrize("name", ["ungraded", "documents_cut"])
def test_the_most_of_what_is_bad_is_not_best(name: str) -> None:
    with pytest.raises(ValueError, match=f"metric_for_best_model={name} would keep the worst"):
        config(metric_for_best_model=name)


@pytest.mark.parametrize("setting", [{"metric_for_best_model": "accuracy"}, {"eval_on_start": True}])
def test_without_evaluations_there_is_nothing_to_look_at(setting: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"needs evaluations: set train\.eval_steps"):
        small_config(**setting)
