"""Whatever is made says with what: versions, commit, machine, command line; and no secret."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest import provenance
from palimpsest.models.checkpoint_manifest import read_manifest
from palimpsest.provenance import commit_of
from palimpsest.runs.jsonl_rows import read_rows
from support.command import Run
from support.fakes import small_config
from support.small_run import small_evaluation, small_run
from support.training import train


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", str(folder), *settings, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check(made: dict[str, Any]) -> None:
    assert made["versions"]["palimpsest"] == palimpsest._version.__version__
    assert made["versions"]["torch"] == version("torch")
    assert made["versions"]["transformers"] == version("transformers")
    assert made["versions"]["python"] == platform.python_version()
    assert made["machine"]["processor"]


def test_a_run_its_checkpoints_and_its_report_say_with_what_they_were_made(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    run = palimpsest.train("memagent-quickstart", small_run(tiny_model_folder), out=tmp_path / "run", quiet=True)
    started = read_rows(run.folder / "events.jsonl")[0]
    check(started["made_with"])
    assert started["made_with"]["command"]
    manifest = read_manifest(run.checkpoint / "manifest.json")
    check(manifest["made_with"])
    assert "command" not in manifest["made_with"]  # a resumed run's checkpoints are the same bytes
    assert f"torch {version('torch')}" in run.report.read_text()


def test_an_evaluation_says_with_what_it_was_made(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    command = small_evaluation(tiny_model_folder, tmp_path / "e")
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    for name in ("evaluation.json", "summary.json"):
        made = json.loads((tmp_path / "e" / name).read_text())["made_with"]
        check(made)
        assert "palimpsest eval " in made["command"]
    report = (tmp_path / "e" / "report.html").read_text()
    assert "<dt>command</dt>" in report
    assert f"torch {version('torch')}" in report
    again = palimpsest(*command)
    assert "4 of 4 episodes exist already" in again.stderr
    assert "with other versions" not in again.stderr


def test_a_resume_under_other_versions_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, small_config(max_steps=2))
    _, warnings = train(tmp_path, small_config(max_steps=4), resume=True)
    assert not [line for line in warnings if "other versions" in line]
    now = dict(provenance.environment())
    changed = {**now, "versions": {**now["versions"], "torch": "0.0.1"}}
    monkeypatch.setattr(provenance, "environment", lambda: changed)
    _, warnings = train(tmp_path, small_config(max_steps=6), resume=True)
    told = f"resumed with other versions or on another machine (torch {version('torch')} -> 0.0.1)"
    assert [line for line in warnings if line.startswith(told)]
    assert read_rows(tmp_path / "events.jsonl")[-1]["kind"] == "finished"


def test_a_run_of_an_earlier_version_resumes_without_a_warning_of_versions(tmp_path: Path) -> None:
    train(tmp_path, small_config(max_steps=2))
    events = tmp_path / "events.jsonl"
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    bare = [{key: value for key, value in row.items() if key != "made_with"} for row in rows]
    events.write_text("".join(json.dumps(row) + "\n" for row in bare if row["kind"] != "continued"))
    _, warnings = train(tmp_path, small_config(max_steps=4), resume=True)
    assert not [line for line in warnings if "other versions" in line]


def test_the_commit_is_that_of_git_in_a_checkout_a_worktree_and_with_packed_refs(tmp_path: Path) -> None:
    checkout, tree = tmp_path / "checkout", tmp_path / "tree"
    checkout.mkdir()
    assert commit_of(checkout) is None
    git(checkout, "init", "-q")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "one")
    git(checkout, "worktree", "add", "-q", str(tree))
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    for folder in (checkout, tree):
        assert commit_of(folder) == git(folder, "rev-parse", "HEAD")
    git(checkout, "pack-refs", "--all")
    for folder in (checkout, tree):
        assert commit_of(folder) == git(folder, "rev-parse", "HEAD")
    git(checkout, "checkout", "-q", "--detach")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")
