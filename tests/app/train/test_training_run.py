"""Trainings: damaged checkpoints, held-out problems."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

import palimpsest
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.errors import CheckpointError, ConfigError, ModelError
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.types import Problem, Trajectory
from support.command import Run
from support.small_run import small_run

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("damaged") / "run"
    palimpsest.train("memagent-quickstart", small_run(tiny_model_folder), out=out, quiet=True)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_damaged_checkpoint_is_refused_by_name_in_every_command(run: Path, refused: Refused, tmp_path: Path) -> None:
    newest = run / "checkpoints" / "step-000002"
    flip(newest / "model.safetensors")
    train = ("train", "memagent-quickstart", f"model.path={newest}", "cold_start=null")
    for command in (
        ("eval", str(newest)),
        (*train, "--out", str(tmp_path / "out")),
        ("train", "lead-quickstart", f"roles.reader.model={newest}", "--out", str(tmp_path / "out")),
    ):
        assert "model.safetensors is damaged: its SHA-256" in refused(*command)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match="is damaged"):
        palimpsest.play(model=newest)


def test_the_tokens_of_the_cold_start_count_towards_the_budget(tiny_model_folder: Path, tmp_path: Path) -> None:
    keys = small_run(tiny_model_folder, max_steps=1) | {"cold_start": {"max_steps": 2, "batch_size": 2}}
    palimpsest.train("memagent-quickstart", keys, out=tmp_path / "run", quiet=True)
    lessons = read_rows(tmp_path / "run" / "cold-start" / "metrics.jsonl")
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    spent = sum(one["policy/physical_tokens"] for one in lessons)
    assert spent > 0
    assert row["tokens/computed_total"] == spent + row["tokens/played"] + row.get("policy/physical_tokens", 0)
    with pytest.raises(ConfigError, match=rf"train\.max_tokens={spent:.0f}: the cold start computed {spent:.0f} "):
        palimpsest.train(
            "memagent-quickstart",
            keys | {"train": keys["train"] | {"max_tokens": int(spent)}},
            out=tmp_path / "none",
            quiet=True,
        )


def test_a_run_falls_back_to_its_previous_checkpoint(run: Path, palimpsest: Run) -> None:
    flip(run / "checkpoints" / "step-000002" / "model.safetensors")
    done = palimpsest("eval", str(run), "--limit", "1")
    assert done.returncode == 0, done.stderr
    shown = " ".join((done.stdout + done.stderr).split())
    assert "step-000002/model.safetensors is damaged" in shown.replace("- ", "-")
    assert "using the previous checkpoint" in shown


def test_a_run_as_an_object_falls_back_with_a_warning(run: Path) -> None:
    flip(run / "checkpoints" / "step-000002" / "learner" / "optimizer.safetensors")
    with pytest.warns(UserWarning, match=r"optimizer\.safetensors is damaged.*using the previous"):
        assert palimpsest.Run(run).checkpoint.name == "step-000001"
    for file in run.glob("checkpoints/*/manifest.json"):
        flip(file)
    with pytest.raises(CheckpointError, match="none of 2 checkpoints verifies"):
        palimpsest.evaluate(run, limit=1, quiet=True)


def test_a_model_taken_out_without_its_optimizer_is_opened(run: Path) -> None:
    newest = run / "checkpoints" / "step-000002"
    shutil.rmtree(newest / "learner")
    assert palimpsest.evaluate(newest, limit=1, quiet=True).samples


def test_a_missing_role_model_is_named_first(tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "palimpsest.engines.embedded.engine.EmbeddedEngine", lambda *_, **__: pytest.fail("a model was loaded")
    )
    settings = small_run(tiny_model_folder) | {"roles.critic.model": "./nowhere"}
    for call in (palimpsest.train, lambda recipe, changes: palimpsest.play(recipe=recipe, overrides=changes)):
        with pytest.raises((ModelError, ConfigError), match=r"\./nowhere: no such folder"):
            call("memagent-quickstart", settings)


PROBLEMS, SAMPLES, GROUP = 3, 4, 2


@pytest.mark.parametrize(("temperature", "drawn"), [(1.0, SAMPLES), (0.0, 1)])
def test_held_out_accuracy_is_a_mean(tmp_path: Path, tiny_model_folder: Path, temperature: float, drawn: int) -> None:
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
