"""The model card of an export, what `palimpsest export` prints, and uploads to a hub on loopback."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, constants

import palimpsest
from palimpsest.app.model_card import Card, CardFacts, CardRow, card_facts, loading, render
from palimpsest.app.model_export_job import export
from palimpsest.cli.main import main
from palimpsest.config.load import dump_config
from palimpsest.config.schema import PolicyConfig
from palimpsest.engines.embedded.learner import ForestLearner
from palimpsest.engines.embedded.model_loading import trainable
from palimpsest.errors import RunError
from palimpsest.evaluation.summary import Score
from palimpsest.runs.run_folder import open_run
from support.command import Run
from support.hub import TOKEN, Hub, hub_server
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
    """As the hub's own reader reads it."""
    return ModelCard.load(folder / "README.md")


def parsed(text: str) -> Any:
    return ModelCard(text)


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())["evaluations"][0]
    return found


def test_the_card_holds_the_accuracy_of_the_evaluation_in_the_run(run: Path, tmp_path: Path) -> None:
    card, row = card_of(export(run, tmp_path / "model").path), figures(run / "evals" / "two")
    (result,) = card.data.eval_results
    assert result.metric_type == "accuracy"
    assert result.metric_value == round(row["accuracy"]["mean"], 4)
    assert result.dataset_name == "synthetic, 2 chunks"
    assert f"| {row['accuracy']['mean']:.1%} | {row['accuracy']['low']:.1%} to " in card.text
    assert "palimpsest eval --model model --data FILE --policy overwrite --set chunk_size=64" in card.text
    assert (card.data.library_name, card.data.base_model, card.data.license) == ("transformers", None, None)
    assert "overwrite" in card.data.tags


def test_a_checkpoint_that_was_not_evaluated_has_no_accuracy(run: Path, tmp_path: Path) -> None:
    card = card_of(export(run, tmp_path / "model", step=1).path)
    assert card.data.eval_results is None
    assert "These weights were not evaluated" in card.text


def test_an_evaluation_elsewhere_is_named_and_one_of_other_weights_is_rejected(
    run: Path, tmp_path: Path, palimpsest: Run
) -> None:
    checkpoint = run / "checkpoints" / "step-000001"
    assert palimpsest(*small_evaluation(checkpoint, tmp_path / "eval")).returncode == 0
    done = palimpsest(
        "export", str(run), "--step", "1", "--evaluation", str(tmp_path / "eval"), "--to", str(tmp_path / "model")
    )
    assert done.returncode == 0, done.stderr
    assert len(card_of(tmp_path / "model").data.eval_results) == 1
    with pytest.raises(RunError, match=r"--evaluation .*evaluated other weights than those of .*step-000002"):
        export(run, tmp_path / "other", card=Card("other", (tmp_path / "eval",)))
    with pytest.raises(RunError, match="give the --out of palimpsest eval"):
        export(run, tmp_path / "other", card=Card("other", (run,)))
    assert not (tmp_path / "other").exists()


def test_a_quickstarts_card_has_each_length_and_what_it_is_compared_with(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    settings = {**small_run(tiny_model_folder), "cold_start": None, "evaluation.problems": 2, "evaluation.processes": 1}
    settings["evaluation.multiples"] = [1, 2]
    done = palimpsest.quickstart("memagent", settings, out=tmp_path / "run", quiet=True)
    card = card_of(export(done.folder, tmp_path / "model").path)
    shares = done.summary["accuracy"]["agent"]
    assert [result.metric_value for result in card.data.eval_results] == [shares["1"], shares["2"]]
    assert [result.dataset_name for result in card.data.eval_results] == [
        "synthetic, 2 chunks (1x)",
        "synthetic, 4 chunks (2x)",
    ]
    assert "same model before RL: synthetic, 2 chunks" in card.text
    assert "last window only" in card.text


def test_a_converted_export_says_so_beside_the_accuracy(run: Path, tmp_path: Path) -> None:
    card = card_of(export(run, tmp_path / "model", dtype="bfloat16").path)
    assert "The evaluation played the checkpoint; this export is in bfloat16." in card.text


def test_base_model_and_license_are_named_where_they_are_known(run: Path, tmp_path: Path, tiny_model: Any) -> None:
    (run / "config.yaml").rename(tmp_path / "kept.yaml")
    try:
        for named, base, known in (("embedded", None, "apache-2.0"), ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", None)):
            config = palimpsest.load_recipe("memagent-quickstart", [f"model.path={named}"])
            (run / "config.yaml").write_text(dump_config(config))
            card = parsed(render(facts(run)))
            assert (card.data.base_model, card.data.license) == (base, known)
    finally:
        (tmp_path / "kept.yaml").rename(run / "config.yaml")
    started = tmp_path / "base"
    tiny_model.save_pretrained(started)
    (started / "README.md").write_text("---\nlicense: mit\nbase_model: someone/something\n---\n# x\n")
    card = parsed(render(card_facts(str(started), started, Card("x"), step=None, adapter=False, changed=None)))
    assert (card.data.base_model, card.data.license) == ("someone/something", "mit")


def facts(run: Path) -> CardFacts:
    folder = run / "checkpoints" / "step-000002"
    return card_facts(str(run), folder, Card("x"), step=2, adapter=False, changed=None)


def test_the_card_names_no_folder_of_the_machine(run: Path, tmp_path: Path, tiny_model_folder: Path) -> None:
    text = (export(run, tmp_path / "model").path / "README.md").read_text()
    assert str(tmp_path) not in text
    assert str(run.parent) not in text
    assert str(tiny_model_folder) not in text


def test_names_from_files_are_no_markup() -> None:
    hostile = "a|b\n# x <script> [y](z)"
    row = CardRow(hostile, hostile, Score(0.5, 0.2, 0.8), 4, True)
    card = parsed(render(CardFacts(hostile, False, None, None, None, None, {}, (row,), None)))
    assert card.data.eval_results[0].dataset_name == hostile
    assert "\n# x" not in card.text
    rows = [line for line in card.text.splitlines() if line.startswith("| ") and "50.0%" in line]
    assert rows == ["| a\\|b \\# x \\<script\\> \\[y\\](z) | 50.0% | 20.0% to 80.0% | 4 |"]


def test_the_command_prints_folder_files_and_lines_that_load_it(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    to = tmp_path / "my agent"
    done = palimpsest("export", str(run), "--to", str(to))
    for path in to.iterdir():
        assert f"{path.stat().st_size:,}  {path.name}\n" in done.stdout
    lines = loading(str(to), palimpsest_config(run).policy)
    assert all(line in done.stdout for line in lines.values())
    (load,) = [line for line in done.stdout.splitlines() if "from_pretrained" in line]
    import transformers

    folder = load.partition("(")[2].removesuffix(")").strip("'")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"
    (words,) = [shlex.split(line) for line in done.stdout.splitlines() if "palimpsest eval --model" in line]
    given = ["synthetic" if word == "FILE" else word for word in words[words.index("--model") :]]
    played = palimpsest("eval", *given, "--chunks", "1", "--limit", "1", "--no-baselines")
    assert played.returncode == 0, played.stderr


def palimpsest_config(run: Path) -> Any:
    return palimpsest.Run(run).config


def test_the_lines_give_every_option_that_is_a_number_or_a_name() -> None:
    options = {"chunk_size": 36, "min_similarity": 0.5, "early_exit": False, "layout": "section_first"}
    others = {"prompts": "mine/my prompts.yaml", "tools": {"search": {"topk": 2}}, "max_chunks": None}
    line = loading("m", PolicyConfig(name="recall", options=options | others))["palimpsest serve"]
    assert line == (
        "palimpsest serve m --policy recall --set chunk_size=36 --set min_similarity=0.5 --set early_exit=false "
        "--set layout=section_first"
    )


# ---- the hub -------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub_server() as served:
        monkeypatch.setenv("HF_ENDPOINT", f"{served.url}/")
        yield served


def push(palimpsest: Run, run: Path, to: Path, *words: str) -> Any:
    return palimpsest("export", str(run), "--to", str(to), "--push-to-hub", *words)


def test_an_export_is_pushed_to_a_new_private_repository(run: Path, tmp_path: Path, hub: Hub, palimpsest: Run) -> None:
    done = push(palimpsest, run, tmp_path / "model", "me/my-agent")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{hub.url}/me/my-agent"
    assert hub.private == {"me/my-agent": True}
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert hub.files["me/my-agent"] == files
    assert "vllm serve me/my-agent\n" in files["README.md"].decode()
    assert push(palimpsest, run, tmp_path / "again", "me/my-agent").returncode == 0  # it may be updated


def test_what_is_public_is_pushed_to_only_on_request(run: Path, tmp_path: Path, hub: Hub, palimpsest: Run) -> None:
    assert push(palimpsest, run, tmp_path / "model", "me/open", "--public").returncode == 0
    assert hub.private == {"me/open": False}
    refused = push(palimpsest, run, tmp_path / "other", "me/open")
    assert (refused.returncode, "is there and public; add --public" in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "other").exists()


def test_no_token_and_no_hub_are_said_before_anything_is_exported(
    run: Path, tmp_path: Path, hub: Hub, palimpsest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(repo: str = "me/my-agent") -> str:
        done = push(palimpsest, run, tmp_path / "model", repo)
        assert done.returncode == 2
        assert not (tmp_path / "model").exists()
        return str(done.stderr)

    assert "has its owner's in front" in said("my-agent")
    assert "no name of a repository" in said("me/my agent")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    assert "the token is not valid (status 401); nothing was exported" in said()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "the hub can't be reached" in said()
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "no token of the hub here; set HF_TOKEN, or log in with `hf auth login`" in said()


def test_a_commit_that_fails_leaves_the_folder_and_says_how_to_upload_it(
    run: Path, tmp_path: Path, hub: Hub, palimpsest: Run
) -> None:
    hub.broken = True
    done = push(palimpsest, run, tmp_path / "model", "me/my-agent")
    assert done.returncode == 2
    assert (
        f"the token may not write there (status 403); {tmp_path}/model is there: hf upload me/my-agent" in done.stderr
    )
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_public_without_a_repository_is_rejected(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    done = palimpsest("export", str(run), "--to", str(tmp_path / "model"), "--public")
    assert (done.returncode, "give --push-to-hub OWNER/NAME too" in done.stderr) == (2, True)
