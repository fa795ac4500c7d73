"""Agents of three methods on the same sets, in one report: what docs/how-to/evaluate.md says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from palimpsest.app.evaluate.comparison_report import names_of
from palimpsest.config.load import dump_config, load_recipe
from palimpsest.errors import ConfigError
from support.command import Run

READS = ("question_tokens=200", "chunk_size=128")
METHODS = {"memagent": READS, "rememr1": READS, "memact": ("policy.options.tools.search.source=document",)}


def run_of(method: str, model: Path, folder: Path) -> str:
    """The weights of a run of a quickstart, as evaluation finds them."""
    weights = folder / "checkpoints" / "weights"
    shutil.copytree(model, weights)
    (folder / "config.yaml").write_text(dump_config(load_recipe(f"{method}-quickstart")))
    return str(weights)


def test_one_command_compares_several_agents(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    made = ("--tokenizer", "embedded", "--problems", "1", "--tasks", "niah_multikey_2", "--lengths", "300")
    palimpsest("data", "ruler", *made, "--out", str(tmp_path / "sets"))
    models = [run_of(method, tiny_model_folder, tmp_path / method) for method in METHODS]
    settings = [word for words in METHODS.values() for word in words]
    words = ["eval", *models, "--data", str(tmp_path / "sets"), *settings, "--out", str(tmp_path / "out")]
    refused = palimpsest(*words)
    assert refused.returncode == 2
    assert "different rewards (boxed, final_answer)" in refused.stderr
    assert "such an option" in palimpsest(*words, "chunk_sise=3").stderr
    assert "need --out DIR" in palimpsest(*words[:-2]).stderr
    done = palimpsest(*words, "reward.name=fraction")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "compare.json").read_text())
    sides = [f"{method}-checkpoints-weights" for method in METHODS]
    assert [side["name"] for side in result["sides"]] == sides
    cells = {(cell["set"], cell["player"]): list(cell["sides"]) for cell in result["cells"]}
    assert cells["niah_multikey_2_300", "agent"] == sides
    assert cells["niah_multikey_2_300", "closed book"] == sides
    page = (tmp_path / "out" / "compare.html").read_text()
    assert all(name in page for name in (*sides, "closed book"))
    assert "1 of 1 episodes" in palimpsest(*words, "reward.name=fraction", "--no-baselines").stderr


def test_every_model_has_a_folder_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert names_of([".", "runs/a", "../b"]) == ["here", "a", "b"]
    with pytest.raises(ConfigError, match="runs/a appears twice"):
        names_of(["runs/a", "b", "runs/a"])
