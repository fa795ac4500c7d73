"""Leagues with real trainings and evaluations: killed, continued, extended by a file of one's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import palimpsest
from palimpsest.app.league.league_run import LeagueWork, _is_other_run
from palimpsest.config.league import LeagueConfig, load_league
from palimpsest.config.section import with_keys
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.runs.jsonl_rows import read_rows

WAIT_S = 300
POLICY = """
from dataclasses import dataclass
from palimpsest.memory.overwrite import OverwritePolicy

@dataclass(frozen=True, slots=True)
class MyPolicy(OverwritePolicy):
    "Starts with a smaller memory."
    memory_tokens: int = 4
"""
LEAGUE = """
families: [needle, list]
held_out: [count]
chunks: [1, 2]
problems: 2
seeds: [0]
overrides:
  data.curriculum: null
  train: {max_steps: 2, batch_size: 2, group_size: 2, num_minibatches: 1, save_steps: 1}
methods:
  overwrite: {untrained: false}
  mine: {policy: my_policy:MyPolicy, train: false}
  lost: {model: nowhere, train: false}
"""


UNTAUGHT = """
from dataclasses import dataclass
from palimpsest.memory.policy import MemoryPolicy

@dataclass(frozen=True, slots=True)
class Untaught(MemoryPolicy):
    "Answers at once."

    async def run(self, problem, model):
        raise NotImplementedError
"""


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "palimpsest", "league", "mine.yaml", "--out", "out", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A league killed after its first training step and continued."""
    made = tmp_path_factory.mktemp("league")
    (made / "my_policy.py").write_text(POLICY)
    (made / "mine.yaml").write_text(LEAGUE)
    first = subprocess.Popen(command(made), cwd=made, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + WAIT_S
    while not list(made.glob("out/runs/overwrite-0/checkpoints/step-*")):
        assert first.poll() is None, "ended before its first step"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command(made), cwd=made, env=environment(), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1, done.stderr  # `lost` failed
    assert "lost, seed 0" in done.stderr
    return made


def rows(folder: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads((folder / "out" / "league.json").read_text())["rows"]}


def test_a_killed_league_continues_its_training_and_its_log_has_every_step_once(folder: Path) -> None:
    assert [row["step"] for row in read_rows(folder / "out/runs/overwrite-0/metrics.jsonl")] == [1, 2]
    assert rows(folder)["overwrite"]["training_steps"] == 2


@pytest.mark.parametrize("name", ["overwrite", "mine"])
def test_cells_are_the_means_of_the_logs(folder: Path, name: str) -> None:
    row = rows(folder)[name]
    samples, _ = read_samples(folder / "out" / row["evaluations"][0] / "samples.jsonl")
    assert len(row["cells"]) == 6
    for cell in row["cells"]:
        values = [one.metrics["em"] for one in samples if (one.set, one.size) == (cell["family"], cell["size"])]
        assert (cell["n"], cell["accuracy"]) == (2, pytest.approx(fmean(values)))


def test_a_failed_method_has_its_error_in_its_blank_cells(folder: Path) -> None:
    for cell in rows(folder)["lost"]["cells"]:
        assert (cell["accuracy"], cell["n"]) == (None, 0)
        assert "nowhere" in cell["reason"]


def test_a_row_names_its_policy_and_its_memory_budget(folder: Path) -> None:
    found = {name: (row["policy"], row["memory_tokens"], row["trained"]) for name, row in rows(folder).items()}
    assert found["overwrite"] == ("overwrite", 8, True)
    assert found["mine"] == ("my_policy:MyPolicy", 8, False), "the recipe's budget"
    assert rows(folder)["mine"]["difference"]["mean"] == pytest.approx(
        fmean(c["accuracy"] for c in rows(folder)["mine"]["cells"] if c["family"] != "count")
        - fmean(c["accuracy"] for c in rows(folder)["overwrite"]["cells"] if c["family"] != "count")
    )


def test_the_page_links_to_each_evaluation(folder: Path) -> None:
    text = (folder / "out" / "league.html").read_text()
    for row in rows(folder).values():
        for evaluation in row["evaluations"]:
            assert f'href="{evaluation}/report.html"' in text
            assert (folder / "out" / evaluation / "report.html").is_file()


def test_finished_work_is_known_and_changed_work_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    league = load_league(folder / "mine.yaml")

    def done(league: LeagueConfig) -> dict[str, bool]:
        work = LeagueWork(league, folder / "out")
        return {job.name: work.is_done(job) for job in work.jobs()}

    assert done(league) == {"overwrite": True, "mine": True, "lost": False}
    assert not any(done(league.model_copy(update={"problems": 3})).values())
    longer = {**league.overrides, "train.max_steps": 3}
    assert done(league.model_copy(update={"overrides": longer})) == {"overwrite": False, "mine": True, "lost": False}
    smaller = league.methods["mine"].model_copy(update={"options": {"memory_tokens": 6}})
    assert not done(league.model_copy(update={"methods": {**league.methods, "mine": smaller}}))["mine"]


def test_a_run_of_other_keys_or_code_is_not_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    work, run = LeagueWork(load_league(folder / "mine.yaml"), folder / "out"), folder / "out" / "runs" / "overwrite-0"
    config = work.config("overwrite", 0)
    other = work.config("mine", 0).policy
    changed = [{}, {"train.max_steps": 3}, {"train.max_steps": 1}, {"optim.learning_rate": 0.5}, {"policy": other}]
    assert [_is_other_run(run, with_keys(config, keys)) for keys in changed] == [False, False, True, True, True]


def test_a_policy_without_teachable_trains_without_the_leagues_cold_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "untaught.py").write_text(UNTAUGHT)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.yaml").write_text("extends: small\nmethods: {mine: {policy: 'untaught:Untaught'}}")
    work = LeagueWork(load_league(tmp_path / "mine.yaml"), tmp_path / "out")
    starts = {name: work.config(name, 0).cold_start for name in ("overwrite", "mine", "lead")}
    assert {name: start and start.max_steps for name, start in starts.items()} == {
        "overwrite": 100, "mine": None, "lead": None,
    }  # fmt: skip
    assert [note.partition(":")[0] for note in work.notes()] == ["mine"]


def test_a_null_section_empties_the_inherited_one_and_a_later_key_fills_it(tmp_path: Path) -> None:
    emptied = tmp_path / "emptied.yaml"
    emptied.write_text("extends: small\noverrides: {cold_start: null}")
    again = tmp_path / "again.yaml"
    again.write_text("extends: emptied.yaml\noverrides: {cold_start.max_steps: 7}")
    for league, start in ((emptied, None), (again, 7)):
        found = LeagueWork(load_league(league), tmp_path).config("overwrite", 0).cold_start
        assert (found and found.max_steps) == start
    assert LeagueWork(load_league("small", ["cold_start=null"]), tmp_path).config("overwrite", 0).cold_start is None


def test_further_problems_continue_the_logs(folder: Path) -> None:
    words = command(folder, "problems=3", "methods.lost=null", "methods.overwrite=null", "--json")
    again = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S)
    assert again.returncode == 0, again.stderr
    assert [row["name"] for row in json.loads(again.stdout)["rows"]] == ["mine"]
    log = folder / "out" / "evals/mine-untrained-0" / "samples.jsonl"
    samples, unreadable = read_samples(log)
    assert (len(samples), unreadable) == (18, 0)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-4]))
    (folder / "out" / "league.yaml").write_text("{broken")
    assert subprocess.run(words, cwd=folder, env=environment(), capture_output=True, timeout=WAIT_S).returncode == 0
    assert len(read_samples(log)[0]) == 18, "lost episodes are played again"
    changed = [*words, "methods.mine.options={memory_tokens: 6}"]
    assert subprocess.run(changed, cwd=folder, env=environment(), capture_output=True, timeout=WAIT_S).returncode == 0
    summary = json.loads((folder / "out" / "evals/mine-untrained-0" / "summary.json").read_text())
    assert summary["policy"]["options"]["memory_tokens"] == 6
    assert (folder / "out" / "evals/mine-untrained-0.old-1").is_dir()
    (folder / "my_policy.py").write_text(POLICY.replace("= 4", "= 5"))
    assert subprocess.run(words, cwd=folder, env=environment(), capture_output=True, timeout=WAIT_S).returncode == 0
    assert len(list(folder.glob("out/evals/mine-untrained-0.old-*"))) == 2, "the code of its policy changed"
    other = [*words, "methods.mine.model=nowhere"]
    failed = subprocess.run(other, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S)
    (row,) = json.loads(failed.stdout)["rows"]
    assert {(cell["n"], cell["accuracy"]) for cell in row["cells"]} == {(0, None)}, "another model's figures"


def test_mistakes_are_errors_before_anything_is_written(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("methods: {mine: {policy: overwrite, options: {memory: 3}}}")
    with pytest.raises(palimpsest.PalimpsestError, match=r"methods\.mine: policy\.options\.memory"):
        palimpsest.league(wrong, out=tmp_path / "out", quiet=True)
    wrong.write_text("methods: {mine: {policy: overwrite}}\ndata: nowhere.jsonl")
    with pytest.raises(palimpsest.PalimpsestError, match=r"nowhere\.jsonl"):
        palimpsest.league(wrong, out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(palimpsest.PalimpsestError, match="other files"):
        palimpsest.league("small", out=tmp_path, quiet=True)
