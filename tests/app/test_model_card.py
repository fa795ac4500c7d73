"""README.md of an export, and what `palimpsest export` prints."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

import palimpsest
from palimpsest.app.model_card import loading, model_card
from palimpsest.app.model_export_job import export
from palimpsest.cli.main import main
from palimpsest.config.load import dump_config
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import trainable
from palimpsest.errors import RunError
from palimpsest.runs.run_folder import open_run
from support.command import Run
from support.small_run import small_evaluation, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path, tiny_tokenizer: Any) -> Path:
    """A run with two checkpoints of other weights, whose newest was evaluated into `RUN/evals/two`."""
    path = tmp_path_factory.mktemp("card") / "run"
    config = palimpsest.load_recipe("memagent-quickstart", small_run(tiny_model_folder))
    model = trainable(config.model)
    learner = ForestLearner(model, optim=config.optim, tokenizer=tiny_tokenizer)

    async def write(folder: Path) -> dict[str, str]:
        return learner.save(folder)

    with open_run(path, config, on_warning=lambda _: None) as folder:
        for step in (1, 2):
            with torch.no_grad():
                model.model.norm.weight.mul_(2)
            asyncio.run(folder.checkpoints.save(step, write, {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["palimpsest", *small_evaluation(path, path / "evals" / "two")])
        with pytest.raises(SystemExit):
            main()
    return path


def card_of(folder: Path) -> Any:
    return ModelCard.load(folder / "README.md")


def test_the_card_has_the_accuracy_of_the_evaluation(run: Path, tmp_path: Path) -> None:
    card = card_of(export(run, tmp_path / "model").path)
    (row,) = json.loads((run / "evals" / "two" / "summary.json").read_text())["evaluations"]
    assert f"| overwrite, 2 chunks | {row['accuracy']['mean']:.1%} | {row['accuracy']['low']:.1%} to " in card.text
    assert "Trained for 2 steps by the recipe memagent-quickstart, reward boxed, seed 0." in card.text
    assert "palimpsest eval model --data FILE --policy overwrite chunk_size=64" in card.text
    assert (card.data.library_name, card.data.base_model, card.data.license) == ("transformers", None, None)
    assert "palimpsest" in card.data.tags
    assert card.content.count("\n") < 50


def test_the_card_names_no_folder_of_the_machine(run: Path, tmp_path: Path, tiny_model_folder: Path) -> None:
    text = (export(run, tmp_path / "model").path / "README.md").read_text()
    assert not [folder for folder in (tmp_path, run.parent, tiny_model_folder) if str(folder) in text]


def test_a_checkpoint_that_was_not_evaluated_has_no_accuracy(run: Path, tmp_path: Path) -> None:
    card = card_of(export(run, tmp_path / "model", step=1).path)
    assert "| overwrite" not in card.text
    assert "These weights were not evaluated" in card.text


def test_an_evaluation_of_other_weights_is_rejected(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    checkpoint = run / "checkpoints" / "step-000001"
    assert palimpsest(*small_evaluation(checkpoint, tmp_path / "eval")).returncode == 0
    done = palimpsest(
        "export", str(run), "--step", "1", "--evaluation", str(tmp_path / "eval"), "--out", str(tmp_path / "model")
    )
    assert done.returncode == 0, done.stderr
    assert card_of(tmp_path / "model").text.count("| overwrite, 2 chunks |") == 1
    with pytest.raises(RunError, match=r"--evaluation .*has other weights than .*step-000002"):
        export(run, tmp_path / "other", evaluations=[tmp_path / "eval"])
    with pytest.raises(RunError, match="pass the --out of palimpsest eval"):
        export(run, tmp_path / "other", evaluations=[run])
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_quickstarts_card_has_accuracies_by_length(tmp_path: Path, tiny_model_folder: Path) -> None:
    settings = {**small_run(tiny_model_folder), "cold_start": None, "evaluation.problems": 2, "evaluation.processes": 1}
    settings["evaluation.sizes"] = [1, 2]
    done = palimpsest.quickstart("memagent", settings, out=tmp_path / "run", quiet=True)
    card = card_of(export(done.folder, tmp_path / "model").path)
    shares = done.summary["accuracy"]["agent"]
    rows = [line for line in card.text.splitlines() if line.startswith("| synthetic")]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| synthetic, 2 chunks (1x)", f"{shares['1']:.1%}"],
        ["| synthetic, 4 chunks (2x)", f"{shares['2']:.1%}"],
    ]


def test_the_card_names_base_model_and_license(run: Path, tmp_path: Path, tiny_model: Any) -> None:
    (run / "config.yaml").rename(tmp_path / "kept.yaml")
    try:
        for named, base, license in (("embedded", None, "apache-2.0"), ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", None)):
            config = palimpsest.load_recipe("memagent-quickstart", [f"model.path={named}"])
            (run / "config.yaml").write_text(dump_config(config))
            card = ModelCard(model_card(str(run), run / "checkpoints" / "step-000002", "x"))
            assert (card.data.to_dict().get("base_model"), card.data.to_dict().get("license")) == (base, license)
    finally:
        (tmp_path / "kept.yaml").rename(run / "config.yaml")
    started = tmp_path / "base"
    tiny_model.save_pretrained(started)
    (started / "README.md").write_text("---\nlicense: mit\nbase_model: someone/something\n---\n# x\n")
    card = ModelCard(model_card(str(started), started, "x"))
    assert (card.data.to_dict().get("base_model"), card.data.to_dict().get("license")) == ("someone/something", "mit")
    assert "Base model: someone/something.\nLicense of the base model: mit." in card.text


def test_names_from_files_are_no_markup(run: Path, tmp_path: Path) -> None:
    location = tmp_path / "eval"
    shutil.copytree(run / "evals" / "two", location)
    result = json.loads((location / "summary.json").read_text())
    result["evaluations"][0] |= {"set": "a|b\n# x <script> [y](z)", "size": None, "graded": 4}
    result["evaluations"][0]["accuracy"] = {"mean": 0.5, "low": 0.2, "high": 0.8}
    (location / "summary.json").write_text(json.dumps(result))
    text = model_card(str(run), run / "checkpoints" / "step-000002", "a|b\n# x", [location])
    assert "\n# x" not in text
    (row,) = [line for line in text.splitlines() if "50.0%" in line]
    assert row == "| overwrite, a\\|b \\# x \\<script\\> \\[y\\](z) | 50.0% | 20.0% to 80.0% | 4 |"


def test_the_command_prints_lines_that_load_it(run: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    to, command = tmp_path / "my agent", request.getfixturevalue("palimpsest")
    done = command("export", str(run), "--out", str(to))
    for path in to.iterdir():
        assert f"{path.stat().st_size:,}  {path.name}\n" in done.stdout
    lines = loading(str(to), palimpsest.Run(run).config)
    assert all(line in done.stdout for line in lines.values())
    (load,) = [line for line in done.stdout.splitlines() if "from_pretrained" in line]
    import transformers

    folder = load.partition("(")[2].removesuffix(")").strip("'")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"
    (line,) = [line for line in done.stdout.splitlines() if "palimpsest eval " in line]
    words = shlex.split(line.rpartition("palimpsest eval ")[2])
    inputs = ["synthetic" if word == "FILE" else word for word in words]
    played = command("eval", *inputs, "--chunks", "1", "--limit", "1", "--no-baselines")
    assert played.returncode == 0, played.stderr


def test_the_lines_give_every_option_that_is_a_number_or_a_name() -> None:
    options = {"chunk_size": 36, "min_similarity": 0.5, "early_exit": False, "layout": "section_first"}
    rest = {"prompts": "mine/my prompts.yaml", "tools": {"search": {"topk": 2}}, "max_chunks": None}
    policy = PolicyConfig(name="recall", options=options | rest)
    line = loading("m", RunConfig(recipe="mine", policy=policy))["palimpsest serve"]
    assert line == (
        "palimpsest serve m --policy recall chunk_size=36 min_similarity=0.5 early_exit=false layout=section_first"
    )
