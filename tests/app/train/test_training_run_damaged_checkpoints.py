"""A checkpoint with a flipped bit is refused by its name, and skipped in a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import palimpsest
from palimpsest.errors import CheckpointError, ConfigError, ModelError
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
        ("train", "memagent-quickstart", f"roles.critic.model={newest}", "--out", str(tmp_path / "out")),
    ):
        assert "model.safetensors is damaged: its SHA-256" in refused(*command)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match="is damaged"):
        palimpsest.play(model=newest)


def test_where_a_run_is_named_the_checkpoint_before_is_taken_and_said(run: Path, palimpsest: Run) -> None:
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


def test_a_missing_model_of_a_role_is_named_before_anything_is_loaded(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "palimpsest.engines.embedded.engine.EmbeddedEngine", lambda *_, **__: pytest.fail("a model was loaded")
    )
    settings = small_run(tiny_model_folder) | {"roles.critic.model": "./nowhere"}
    for call in (palimpsest.train, lambda recipe, changes: palimpsest.play(recipe=recipe, overrides=changes)):
        with pytest.raises((ModelError, ConfigError), match=r"\./nowhere: no such folder"):
            call("memagent-quickstart", settings)
