"""The command line: help, imports, recipes, evaluations, quickstarts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from palimpsest._version import __version__
from palimpsest.retrieval.search import Bm25Index
from support.command import Run
from support.records import HOTPOT_ROW

SOURCE = Path(__file__).parents[2] / "src"
COMMANDS = [
    words.split()
    for words in (
        "quickstart", "train", "sft", "eval", "check", "doctor", "new", "recipes list", "recipes show", "recipes keys",
        "recipes import", "data inspect", "data download", "retrieval serve", "retrieval index", "view",
    )
]  # fmt: skip
HEAVY = {
    "torch", "transformers", "tokenizers", "matplotlib", "pyarrow", "numpy", "jinja2", "wandb", "bm25s", "httpx2",
    "starlette", "uvicorn",
}  # fmt: skip


def python(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env, timeout=60)


def test_help_has_examples_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, json\n"
        "from palimpsest.cli.main import app\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    try: app([*command, '--help'])\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "    print('=====')\n"
        "print(*sys.modules)"
    )
    done = python("-c", code, json.dumps([[], *COMMANDS]))
    _, *pages, loaded = done.stdout.split("=====\n")
    assert not HEAVY & set(loaded.split())
    for words, page in zip(COMMANDS, pages, strict=True):
        assert "Example" in page
        assert f"palimpsest {' '.join(words)}" in page


@pytest.mark.parametrize("words", [[], ["train"], ["recipes", "list"]], ids=" ".join)
def test_help_has_a_short_name(words: list[str], palimpsest: Run) -> None:
    short, long = palimpsest(*words, "-h"), palimpsest(*words, "--help")
    assert (short.returncode, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage: palimpsest")


def test_the_module_is_the_command() -> None:
    done = python("-m", "palimpsest", "--version")
    assert (done.returncode, done.stdout) == (0, f"palimpsest {__version__}\n")


@pytest.mark.parametrize(
    ("typed", "completed"), [("palimpsest rec", "recipes"), ("palimpsest train --res", "--resume")]
)
def test_a_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    words = {"_PALIMPSEST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import sys; from palimpsest.cli.main import main; sys.argv = ['palimpsest']; main()"
    assert completed in python("-c", code, **words).stdout.split()


def test_recipes_are_listed_and_shown(palimpsest: Run) -> None:
    listed = palimpsest("recipes", "list").stdout
    assert "memagent-7b" in listed
    assert "# script" in palimpsest("recipes", "show", "memagent-7b").stdout
    shown = palimpsest("recipes", "show", "memagent-7b", "train.max_steps=3").stdout
    assert yaml.safe_load(shown)["train"]["max_steps"] == 3


def test_keys_are_listed_with_type_default_and_meaning(palimpsest: Run) -> None:
    def keys(*prefix: str) -> str:
        return palimpsest("recipes", "keys", *prefix).stdout

    assert all(f"{name} " in keys() for name in ("train.max_steps", "optim.learning_rate", "model.lora.rank"))
    (steps,) = [line for line in keys("train").splitlines() if "train.max_steps " in line]
    assert steps.split() == ["train.max_steps", "integer", "≥", "1", "100", "Rollout", "batches."]
    assert "palimpsest recipes keys policy.options.overwrite" in " ".join(keys("policy").split())
    options = keys("policy.options.overwrite")
    assert "policy.options.overwrite.chunk_size" in options
    assert "MemAgent" in options
    rows = json.loads(keys("loss.clip", "--json"))
    assert [row["key"] for row in rows] == ["loss.clip_ratio_low", "loss.clip_ratio_high"]


def test_an_unknown_prefix_of_keys_names_the_nearest(refused: Callable[..., str]) -> None:
    assert "did you mean train?" in refused("recipes", "keys", "trian")
    assert "overwrite, recall" in refused("recipes", "keys", "policy.options.memagent")


def test_a_recipe_is_explained_key_by_key_with_the_options_of_its_policy(palimpsest: Run) -> None:
    lines = palimpsest("recipes", "show", "memagent-quickstart", "train.max_steps=7", "--explain").stdout.splitlines()
    (steps,) = [line for line in lines if line.startswith("train.max_steps ")]
    assert steps.split()[1:3] == ["7", "100"]
    (layout,) = [line for line in lines if line.startswith("policy.options.layout ")]
    assert layout.split()[1:3] == ["section_first", "memory_first"]
    assert not [line for line in lines if line.startswith("model.lora.rank")]


def test_control_characters_of_a_message_do_not_reach_the_terminal(palimpsest: Run) -> None:
    assert "\x1b]0;" not in palimpsest("train", "memagent-quickstart", "a\x1b]0;owned=1").stderr


GUESS = """
from dataclasses import dataclass
from palimpsest.memory.policy import Answered
@dataclass
class Guess:
    word: str = "red"
    async def run(self, problem, model):
        await model.generate(model.codec.encode(problem.question), name="answer", max_tokens=1)
        return Answered("\\\\boxed{%s}" % self.word)
"""


def hotpot(path: Path) -> Path:
    rows = [{**HOTPOT_ROW, "_id": f"q{i}", "answer": colour} for i, colour in enumerate(["red", "blue"])]
    path.write_text(json.dumps(rows))
    return path


def test_an_evaluation_in_which_no_episode_could_be_graded_fails_with_the_reason(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = "class Policy:\n    async def run(self, problem, model):\n        raise RuntimeError('no luck')\n"
    (tmp_path / "luckless.py").write_text(policy)
    monkeypatch.chdir(tmp_path)
    model = (str(tiny_model_folder), "--data", str(hotpot(tmp_path / "dev.json")))
    done = palimpsest("eval", "--policy", "luckless:Policy", *model)
    assert done.returncode == 1
    assert "nothing could be graded" in done.stderr
    assert "episode ended as policy_failed (RuntimeError: no luck" in done.stderr
    assert done.stderr.endswith("luckless.py:3))\n")
    (tmp_path / "other").symlink_to(tiny_model_folder)
    for form in ((), ("--json",)):
        words = (*model, str(tmp_path / "other"), "--policy", "luckless:Policy", "--out", f"out{len(form)}")
        several = palimpsest("eval", *words, *form)
        assert several.returncode == 1
        assert len(list(Path(f"out{len(form)}").rglob("summary.json"))) == 2, "the second model plays too"
    assert "run again" not in done.stdout


def test_eval_runs_on_a_hotpotqa_file_and_continues(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    out, data = tmp_path / "out", str(hotpot(tmp_path / "dev.json"))
    command = ["eval", str(tiny_model_folder), "--data", data, "--documents", "2", "--no-baselines", "--out", str(out)]
    for _ in range(2):
        done = palimpsest(*command)
        assert (done.returncode, "accuracy" in done.stdout) == (0, True)
        assert len((out / "samples.jsonl").read_text().splitlines()) == 2
    assert json.loads((out / "summary.json").read_text())["evaluations"][0]["problems"] == 2
    other = palimpsest(*command, "--seed", "1")
    assert (other.returncode, "contains another evaluation" in other.stderr) == (2, True)
    assert palimpsest(*command, "--seed", "1", "--force").returncode == 0


def test_eval_of_an_agent_that_searches_an_index_grades_its_final_answer(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    (tmp_path / "corpus.json").write_text(json.dumps([{"title": "Anna", "text": "Anna likes blue."}]))
    Bm25Index.of_corpus(tmp_path / "corpus.json", tmp_path / "index")
    (tmp_path / "problems.json").write_text(json.dumps([{"question": "What does Anna like?", "answers": ["blue"]}]))
    out = tmp_path / "out"
    done = palimpsest(
        "eval", "--policy", "prune", str(tiny_model_folder), "--data", str(tmp_path / "problems.json"),
        f"tools={{search: {{source: {tmp_path / 'index'}}}}}", "prompts=short",
        "turn_tokens=32", "context_tokens=400", "max_turns=3", "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["reward"] == "final_answer"
    assert summary["evaluations"][0]["graded"] == 1


def test_a_policy_that_reads_documents_is_rejected_without_documents(palimpsest: Run, tiny_model_folder: Path) -> None:
    command = ["eval", "--policy", "full_context", str(tiny_model_folder), "--data", "synthetic_search", "--limit", "1"]
    done = palimpsest(*command, "question_tokens=400")
    assert done.returncode == 2
    assert "reads documents and these problems have none" in done.stderr
    assert "choose one of edit, prune, tool_window, compaction, summary" in done.stderr


def test_eval_plays_a_policy_from_a_users_file(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(GUESS)
    command = ["eval", "--policy", "mine:Guess", "word=blue", str(tiny_model_folder), "--no-baselines"]
    command += ["--data", str(hotpot(tmp_path / "dev.json"))]
    done = palimpsest(*command, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["evaluations"][0]["accuracy"]["mean"] == 0.5
    for where, has_note in (("marked", True), ("found", False)):
        done = palimpsest(*command, "reward.name=final_answer", f"reward.final_answer.where={where}")
        assert ("reward.final_answer.where=found" in done.stdout) is has_note


class Quickstart:
    """A small quickstart: its summary, and whether a resume writes the same one."""

    def __init__(self, palimpsest: Run, method: str, model: Path, out: Path, *settings: str) -> None:
        self.palimpsest, self.out = palimpsest, out
        self.command = ["quickstart", method, "--seed", "5", "--out", str(out), f"model.path={model}"]
        self.command += ["train.max_steps=2", "train.batch_size=2", "train.num_minibatches=1", "train.group_size=2"]
        self.command += ["evaluation.problems=3", "evaluation.sizes=[1, 2]", *settings]
        done = palimpsest(*self.command)
        assert done.returncode == 0, done.stderr
        self.summary = self.read()

    def read(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return summary

    def resume(self) -> None:
        (self.out / "summary.json").unlink()
        done = self.palimpsest(*self.command, "--resume")
        assert done.returncode == 0, done.stderr
        of_the_call = {"wall_s": 0, "made_with": None}
        assert {**self.read(), **of_the_call} == {**self.summary, **of_the_call}


@pytest.mark.slow
def test_quickstart_of_overwriting_writes_its_results(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    out, baselines = tmp_path / "run", ("agent_ungrounded", "full_window", "last_window", "retrieval")
    policies = ["policy", *(f"evaluation.baselines.{name}" for name in baselines)]
    run = Quickstart(
        palimpsest, "memagent", tiny_model_folder, out,
        "data.synthetic.starts=null", "data.synthetic.chunks=2", "data.curriculum.chunks=[1, 2]",
        "policy.options.chunk_size=24", "policy.options.memory_tokens=8",
        *(f"{policy}.options.question_tokens=60" for policy in policies),
    )  # fmt: skip
    summary = run.summary
    assert list(summary) == [
        "method", "seed", "training_chunks", "planned_chunks", "wall_s",
        "accuracy", "copy_fidelity", "dropped_share", "tokens_per_document", "made_with",
    ]  # fmt: skip
    assert (summary["method"], summary["seed"], summary["planned_chunks"]) == ("memagent", 5, 2)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert summary["training_chunks"] == max(row["curriculum/chunks"] for row in rows)
    assert set(summary["accuracy"]) == {"agent_before", "agent", *baselines}
    assert all(set(row) == {"1", "2"} for row in (*summary["accuracy"].values(), summary["tokens_per_document"]))
    assert set(summary["copy_fidelity"]) == {"before", "after"}
    assert (out / "report.html").stat().st_size > 10_000
    assert {path.name for path in (out / "plots").iterdir()} == {"reward.png", "accuracy.png", "tokens.png"}
    assert palimpsest(*run.command).returncode == 2
    run.resume()


@pytest.mark.slow
def test_quickstart_of_recall_trains_agent_and_rival(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    out = tmp_path / "run"
    policies = ["policy", "evaluation.trained_baselines.overwrite", "evaluation.baselines.rule_recall"]
    budgets = {"question_tokens": 60, "memory_tokens": 16}
    run = Quickstart(
        palimpsest, "rememr1", tiny_model_folder, out,
        "cold_start.max_steps=2", "cold_start.batch_size=4", "data.curriculum.chunks=[2, 3]",
        "train.max_steps=9", "train.max_tokens=6000",
        *(f"{policy}.options.{key}={tokens}" for policy in policies for key, tokens in budgets.items()),
    )  # fmt: skip
    summary = run.summary
    assert (summary["method"], summary["seed"], summary["planned_chunks"]) == ("rememr1", 5, 3)
    assert set(summary["accuracy"]) == {"recall_before", "recall", "overwrite", "rule_recall"}
    assert all(set(row) == {"1", "2"} for row in summary["accuracy"].values())
    assert "recall_hit_rate" in summary
    assert "question as the query" in (out / "report.html").read_text()
    for folder in (out, out / "rivals" / "overwrite"):
        assert (folder / "cold-start" / "checkpoints" / "step-000002").is_dir()
        ends = [int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir()]
        assert 1 <= max(ends) < 9, "the budget of tokens ended it"
    run.resume()


@pytest.mark.slow
def test_quickstart_of_pruning_writes_its_results(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    out, baselines = tmp_path / "run", ("no_prune", "full_history", "sliding_window", "summary")
    policies = ["policy", *(f"evaluation.baselines.{name}" for name in baselines)]
    budgets = {"context_tokens": 500, "turn_tokens": 60}
    run = Quickstart(
        palimpsest, "memact", tiny_model_folder, out, "data.search.objectives=[1, 2]",
        *(f"{policy}.options.{key}={tokens}" for policy in policies for key, tokens in budgets.items()),
    )  # fmt: skip
    summary = run.summary
    assert list(summary) == [
        "method", "seed", "training_objectives", "planned_objectives", "wall_s", "accuracy", "all_right",
        "answers_right", "input_tokens_per_episode", "prunes_per_episode", "mean_prunes_per_episode",
        "segments_per_trajectory", "mean_segments_per_trajectory", "made_with",
    ]  # fmt: skip
    assert (summary["method"], summary["seed"], summary["training_objectives"]) == ("memact", 5, 2)
    for key in ("accuracy", "all_right", "answers_right", "input_tokens_per_episode"):
        assert set(summary[key]) == {"prune_before", "prune", *baselines}
        assert all(set(row) == {"1", "2"} for row in summary[key].values())
    assert min(value for row in summary["input_tokens_per_episode"].values() for value in row.values()) > 0
    assert set(summary["prunes_per_episode"]) == set(summary["segments_per_trajectory"]) == {"1", "2"}
    assert summary["mean_segments_per_trajectory"] >= 1
    figures = {"reward", "prunes", "context", "episode-tokens", "accuracy", "tokens"}
    assert {path.stem for path in (out / "plots").iterdir()} == figures
    report = (out / "report.html").read_text()
    assert "Prunes per sampled episode over training" in report
    visible = report.partition("<summary>Configuration")[0].partition("<h1>")[2]
    assert not re.search(r"chunk|document|copy fidelity", visible)
    run.resume()
