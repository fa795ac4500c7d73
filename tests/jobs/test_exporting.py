"""`palimpsest export`: the model of a checkpoint in a folder of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palimpsest.config.schema import OptimConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.errors import CheckpointError, RunError
from palimpsest.jobs.exporting import export
from palimpsest.runs.checkpoint import Checkpoints
from support.command import Run


@pytest.fixture
def run(tmp_path: Path, tiny_model: Any, tiny_tokenizer: Any) -> Path:
    """A run folder with two checkpoints, whose weights differ."""
    learner = ForestLearner(tiny_model, optim=OptimConfig(), tokenizer=tiny_tokenizer)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", identity="x")
    (tmp_path / "run").mkdir()

    async def write(folder: Path) -> dict[str, str]:
        return learner.save(folder)

    for step in (1, 2):
        with torch.no_grad():
            tiny_model.model.norm.weight.add_(1)
        asyncio.run(checkpoints.save(step, write, {}))
    return tmp_path / "run"


def test_the_newest_model_is_copied_byte_for_byte_and_loads(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "model")
    source = run / "checkpoints" / "step-000002"
    names = {path.name for path in done.path.iterdir()}
    assert names == {path.name for path in source.iterdir()} - {"manifest.json", "learner"}
    assert all((done.path / name).read_bytes() == (source / name).read_bytes() for name in names)
    assert AutoModelForCausalLM.from_pretrained(done.path).model.norm.weight.mean().item() == 3.0


def test_an_older_one_is_named_by_its_step_and_rounded(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "model", step=1, dtype="bfloat16")
    exact = load_file(run / "checkpoints" / "step-000001" / "model.safetensors")
    rounded = load_file(done.path / "model.safetensors")
    assert all(torch.equal(rounded[name], weight.to(torch.bfloat16)) for name, weight in exact.items())
    assert json.loads((done.path / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(done.path, dtype="auto").dtype == torch.bfloat16


def test_a_flipped_bit_is_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    weights = run / "checkpoints" / "step-000001" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="is damaged"):
        export(run, tmp_path / "model", step=1)
    assert not (tmp_path / "model").exists()


def test_nothing_is_exported_that_the_manifest_does_not_name(run: Path, tmp_path: Path) -> None:
    newest = run / "checkpoints" / "step-000002"
    (newest / "modeling_evil.py").write_text("")
    (newest / "model-extra.safetensors").symlink_to("/etc/hostname")
    names = {path.name for path in export(run, tmp_path / "model").path.iterdir()}
    assert names == {
        path.name for path in newest.iterdir() if not path.name.startswith(("manifest", "learner", "model"))
    } | {"model.safetensors"}


def test_a_link_in_the_place_of_a_file_is_refused(run: Path, tmp_path: Path) -> None:
    file = run / "checkpoints" / "step-000001" / "config.json"
    file.symlink_to(file.rename(tmp_path / "elsewhere.json"))
    with pytest.raises(CheckpointError, match=r"config\.json is a link"):
        export(run, tmp_path / "model", step=1)
    assert not (tmp_path / "model").exists()


def test_rounded_weights_can_be_read_by_whom_the_others_can(run: Path, tmp_path: Path) -> None:
    folder = export(run, tmp_path / "model", dtype="bfloat16").path
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_what_cannot_be_exported_is_said_in_a_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is inside the run"):
        export(run, run / "checkpoints" / "step-000009")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(RunError, match="is there already"):
        export(run, tmp_path / "dangling")
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; it has those of 1, 2"):
        export(run, tmp_path / "model", step=7)
    with pytest.raises(RunError, match="has no checkpoint"):
        export(tmp_path / "nothing", tmp_path / "model")
    with pytest.raises(RunError, match="is there already"):
        export(run, run)
    with pytest.raises(RunError, match="choose one of float32, bfloat16"):
        export(run, tmp_path / "model", dtype="int4")


def test_the_command_says_what_it_wrote(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    done = palimpsest("export", str(run), "--step", "1", "--to", str(tmp_path / "model"))
    assert (done.returncode, done.stdout.startswith(f"{tmp_path}/model: the model after step 1, ")) == (0, True)
