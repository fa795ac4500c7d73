"""`palimpsest plan` and `train --gpus`: exit codes, JSON, a run against its plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import palimpsest as library
from support.command import Run
from support.small_run import small_run


def test_a_plan_that_fits_has_its_command_and_its_overrides(palimpsest: Run) -> None:
    done = palimpsest("plan", "memagent-7b", "train.max_steps=10", "--gpus", "8", "--nodes", "2", "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["fits"], plan["steps"], plan["missing"]) == (0, True, 10, ["cluster.address"])
    assert plan["command"] == "palimpsest train memagent-7b train.max_steps=10 --gpus 8 --nodes 2"
    priced = ("plan", "memagent-7b", "--gpus", "8", "--price", "1.25")
    plan, text = json.loads(palimpsest(*priced, "--json").stdout), palimpsest(*priced).stdout
    assert plan["cost"] == pytest.approx(plan["gpu_hours"] * 1.25)
    assert all(f"{row['key']}={row['value']}" in text and row["reason"] for row in plan["overrides"])
    assert re.search(r"^cost +[\d,.]+ US dollars$", text, re.MULTILINE)


def test_a_plan_that_does_not_fit_exits_with_3_and_names_what_fits(palimpsest: Run) -> None:
    done = palimpsest("plan", "memagent-7b", "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["fits"]) == (3, False)
    assert plan["nearest"] == ["model.lora.rank=16", "cluster.cpu_offload=true", "--gpus 4 --nodes 1"]
    text = palimpsest("plan", "memagent-7b", "--gpus", "1")
    assert (text.returncode, "model.lora.rank=16" in text.stdout) == (3, True)
    assert palimpsest("plan", "memagent-7b", "model.lora.rank=16").returncode == 0


def test_a_plan_for_this_machine_needs_no_gpus_and_no_overrides(palimpsest: Run) -> None:
    here, default, gpu = (
        json.loads(palimpsest("plan", "memagent-quickstart", *words, "--json").stdout)
        for words in (["--here"], [], ["--gpus", "1"])
    )
    assert here == default
    assert (here["device"], here["overrides"], here["gpu_hours"], here["fits"]) == ("cpu", [], 0, True)
    assert (gpu["device"], gpu["gpu_hours"] > 0) == ("h100", True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "a recipe, or --check RUN"),
        (["memagent-7b", "--check", "runs/first"], "a recipe, or --check RUN"),
        (["memagent-7b", "--here", "--gpus", "2"], "omit --gpus"),
        (["memagent-7b", "--gpu", "b200"], "--gpus N; add it"),
        (["memagent-7b", "--gpus", "64", "--nodes", "128"], "at most 1024 GPUs"),
        (["memagent-7b", "--gpus", "8", "--gpu", "tpu"], "no data sheet; choose one of h100"),
        (["memagent-7b", "model.path=nobody/no-such-model", "--gpus", "8"], "download it"),
        (["memagent-7b", "engine.name=my_module:MyEngine"], "plans only embedded and ray"),
        (["--check", "no-such-run"], "no such folder"),
    ],
)
def test_an_invalid_plan_is_one_line(words: list[str], reason: str, refused: Callable[..., str]) -> None:
    assert reason in refused("plan", *words)


def test_a_run_is_compared_with_its_plan_and_its_code_is_not_imported(
    palimpsest: Run, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = small_run(Path("embedded"), batch_size=2, group_size=4) | {"credit.dynamic_sampling": None}
    library.train("memagent-quickstart", changes, out=tmp_path / "run", quiet=True)
    figures = json.loads(palimpsest("plan", "--check", str(tmp_path / "run"), "--json").stdout)
    assert figures["episodes"] == {"predicted": 8, "measured": 8, "ratio": 1}
    assert 0.7 < figures["prompt tokens"]["ratio"] < 1.3
    assert {"seconds of sampling", "row tokens computed"} <= set(figures)
    assert "seconds of sampling" in palimpsest("plan", "--check", str(tmp_path / "run")).stdout
    (tmp_path / "evil.py").write_text("open('imported', 'w').close()")
    monkeypatch.chdir(tmp_path)
    config = (tmp_path / "run" / "config.yaml").read_text()
    for custom in ("name: evil:Evil", "name: evil.py:Evil"):
        (tmp_path / "run" / "config.yaml").write_text(config.replace("name: overwrite", custom))
        assert "evil" in refused("plan", "--check", "run")
    assert not (tmp_path / "imported").exists()
    (tmp_path / "run" / "config.yaml").write_text(config)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "policy/loss": 0.5}\n')
    assert "supervised" in refused("plan", "--check", "run")


def test_training_on_more_gpus_than_there_are_is_an_error_before_anything_starts(
    palimpsest: Run, refused: Callable[..., str], tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    assert "--gpus 64: this machine has" in refused("train", "memagent-quickstart", "--gpus", "64", "--out", out)
    assert not (tmp_path / "run").exists()
    done = palimpsest("train", "memagent-quickstart", "--gpus", "64", "--dry-run", "--out", out)
    assert done.returncode == 0
    assert "sampler.servers=" in done.stdout


def test_a_dry_run_for_other_gpus_names_the_recipes_files_that_are_missing_here(
    palimpsest: Run, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = palimpsest("train", "memact-7b", "--gpus", "8", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "sampler.servers=" in done.stdout
    *_, missing, last = done.stdout.splitlines()
    assert missing.startswith("missing    wiki_train_multi_object_2_3.parquet, wiki_val_multi_object_2_3.parquet (")
    assert "palimpsest data download --for memact-7b" in missing
    assert last == "checked, except for what is missing; nothing was started or written"
    assert "typo.parquet: no such file" in refused(
        "train", "memact-7b", "data.train_files=typo.parquet", "--gpus", "8", "--dry-run"
    )
    here = refused("train", "memact-7b", "--dry-run")
    assert "no such file; get it with: palimpsest data download memact-train" in here


def test_a_resumed_run_has_its_earlier_layout(refused: Callable[..., str], tmp_path: Path) -> None:
    library.train("memagent-quickstart", small_run(Path("embedded"), max_steps=1), out=tmp_path / "run", quiet=True)
    assert "omit --gpus" in refused("train", "--resume", str(tmp_path / "run"), "--gpus", "1", "--dry-run")
