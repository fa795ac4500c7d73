"""The command line: help, errors, what is imported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from palimpsest._version import __version__
from palimpsest.retrieval.search import Bm25Index
from support.command import Run

SOURCE = Path(__file__).parents[2] / "src"
COMMANDS = (
    ["quickstart"],
    ["train"],
    ["sft"],
    ["eval"],
    ["check"],
    ["doctor"],
    ["new"],
    ["recipes", "list"],
    ["recipes", "show"],
    ["recipes", "keys"],
    ["recipes", "import"],
    ["data", "inspect"],
    ["data", "download"],
    ["retrieval", "serve"],
    ["retrieval", "index"],
    ["view"],
)
HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "matplotlib",
    "pyarrow",
    "numpy",
    "jinja2",
    "wandb",
    "bm25s",
    "httpx2",
    "starlette",
    "uvicorn",
)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


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
    command = [sys.executable, "-c", code, json.dumps([[], *COMMANDS])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    _, *pages, loaded = done.stdout.split("=====\n")
    assert not set(HEAVY) & set(loaded.split())
    for words, page in zip(COMMANDS, pages, strict=True):
        assert "Example" in page
        assert f"palimpsest {' '.join(words)}" in page


def test_the_version_is_told(palimpsest: Run) -> None:
    assert palimpsest("--version").stdout == f"palimpsest {__version__}\n"


@pytest.mark.parametrize("words", [[], *COMMANDS], ids=" ".join)
def test_help_has_a_short_name_behind_every_command(words: list[str], palimpsest: Run) -> None:
    short, long = palimpsest(*words, "-h"), palimpsest(*words, "--help")
    assert (short.returncode, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage: palimpsest")


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "palimpsest", "--version"], capture_output=True, text=True, env=environment(), timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"palimpsest {__version__}\n")


@pytest.mark.parametrize(
    ("typed", "completed"), [("palimpsest rec", "recipes"), ("palimpsest train --res", "--resume")]
)
def test_a_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    asked = {"_PALIMPSEST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import sys; from palimpsest.cli.main import main; sys.argv = ['palimpsest']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment() | asked, timeout=60
    )
    assert completed in done.stdout.split()


def test_recipes_are_listed_and_shown(palimpsest: Run) -> None:
    listed = palimpsest("recipes", "list").stdout
    assert "memagent-7b" in listed
    assert "# script" in palimpsest("recipes", "show", "memagent-7b").stdout
    shown = palimpsest("recipes", "show", "memagent-7b", "train.max_steps=3").stdout
    assert yaml.safe_load(shown)["train"]["max_steps"] == 3


def test_keys_are_told_with_what_they_take_their_default_and_meaning(palimpsest: Run) -> None:
    every = palimpsest("recipes", "keys").stdout
    assert all(f"{name} " in every for name in ("train.max_steps", "optim.learning_rate", "model.lora.rank"))
    (steps,) = [
        line for line in palimpsest("recipes", "keys", "train").stdout.splitlines() if "train.max_steps " in line
    ]
    assert steps.split() == ["train.max_steps", "integer", "≥", "1", "100", "Rollout", "batches."]
    policy = palimpsest("recipes", "keys", "policy").stdout
    assert "palimpsest recipes keys policy.options.overwrite" in " ".join(policy.split())
    options = palimpsest("recipes", "keys", "policy.options.overwrite").stdout
    assert "policy.options.overwrite.chunk_size" in options
    assert "MemAgent" in options


def test_an_unknown_prefix_of_keys_is_refused_with_the_nearest(refused: Callable[..., str]) -> None:
    assert "did you mean train?" in refused("recipes", "keys", "trian")
    assert "overwrite, recall" in refused("recipes", "keys", "policy.options.memagent")


def test_a_prefix_of_a_name_lists_the_keys_that_begin_so(palimpsest: Run) -> None:
    rows = json.loads(palimpsest("recipes", "keys", "loss.clip", "--json").stdout)
    assert [row["key"] for row in rows] == ["loss.clip_ratio_low", "loss.clip_ratio_high"]


def test_a_recipe_is_explained_key_by_key_with_the_options_of_its_policy(palimpsest: Run) -> None:
    lines = palimpsest("recipes", "show", "memagent-quickstart", "train.max_steps=7", "--explain").stdout.splitlines()
    (steps,) = [line for line in lines if line.startswith("train.max_steps ")]
    assert steps.split()[1:3] == ["7", "100"]
    (layout,) = [line for line in lines if line.startswith("policy.options.layout ")]
    assert layout.split()[1:3] == ["section_first", "memory_first"]
    assert not [line for line in lines if line.startswith("model.lora.rank")]


def test_a_half_written_run_folder_is_not_touched(
    refused: Callable[..., str], tmp_path: Path, tiny_model_folder: Path
) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    settings = (f"model.path={tiny_model_folder}", "data.synthetic.starts=null")
    message = refused("train", "memagent-quickstart", *settings, "--out", str(tmp_path))
    assert "--force" in message
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".")] == ["metrics.jsonl"]


def test_control_characters_of_a_message_do_not_reach_the_terminal(palimpsest: Run) -> None:
    assert "\x1b]0;" not in palimpsest("train", "memagent-quickstart", "a\x1b]0;owned=1").stderr


def hotpot(path: Path) -> Path:
    """Two questions over three titled paragraphs each, in HotpotQA's official layout."""
    rows = [
        {
            "_id": f"q{i}",
            "question": f"What colour is house {i}?",
            "answer": colour,
            "type": "bridge",
            "level": "easy",
            "supporting_facts": [[f"House {i}", 0]],
            "context": [[f"House {i}", [f"House {i} is {colour}. ", "It is old."]]]
            + [[f"Tree {i}{j}", [f"Tree {i}{j} is tall. "]] for j in range(2)],
        }
        for i, colour in enumerate(["red", "blue"])
    ]
    path.write_text(json.dumps(rows))
    return path


def test_an_evaluation_in_which_nothing_could_be_graded_fails_with_the_reason(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = "class Policy:\n    async def run(self, problem, model):\n        raise RuntimeError('no luck')\n"
    (tmp_path / "luckless.py").write_text(policy)
    monkeypatch.chdir(tmp_path)
    model = (str(tiny_model_folder), "--data", str(hotpot(tmp_path / "dev.json")))
    done = palimpsest("eval", "--policy", "luckless:Policy", *model)
    assert done.returncode == 1
    reason = "episode ended as policy_failed (RuntimeError: no luck)"
    assert "nothing could be graded" in done.stderr
    assert reason[:-1] in done.stderr
    assert done.stderr.endswith("luckless.py:3))\n")
    assert "run again" not in done.stdout


def test_eval_runs_on_a_hotpotqa_file_and_continues(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    data, out = hotpot(tmp_path / "dev.json"), tmp_path / "out"
    command = ["eval", "--policy", "overwrite", str(tiny_model_folder), "--data", str(data)]
    command += ["--documents", "5", "--no-baselines", "--out", str(out)]
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert len((out / "samples.jsonl").read_text().splitlines()) == 2
    summary = json.loads((out / "summary.json").read_text())
    assert summary["evaluations"][0]["problems"] == 2
    assert palimpsest(*command).returncode == 0
    assert len((out / "samples.jsonl").read_text().splitlines()) == 2
    other = palimpsest(*command, "--seed", "1")
    assert other.returncode == 2
    assert "contains another evaluation" in other.stderr
    assert palimpsest(*command, "--seed", "1", "--force").returncode == 0


def test_eval_of_an_agent_that_searches_an_index_grades_its_final_answer(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    (tmp_path / "corpus.json").write_text(json.dumps([{"title": "Anna", "text": "Anna likes blue."}]))
    Bm25Index.of_corpus(tmp_path / "corpus.json", tmp_path / "index")
    (tmp_path / "asked.json").write_text(json.dumps([{"question": "What does Anna like?", "answers": ["blue"]}]))
    out = tmp_path / "out"
    done = palimpsest(
        "eval", "--policy", "prune", str(tiny_model_folder), "--data", str(tmp_path / "asked.json"),
        f"tools={{search: {{source: {tmp_path / 'index'}}}}}", "prompts=short",
        "turn_tokens=32", "context_tokens=400", "max_turns=3", "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["reward"] == "final_answer"
    assert summary["evaluations"][0]["graded"] == 1


@pytest.mark.parametrize("policy", ["overwrite", "full_context"])
def test_a_policy_that_reads_documents_is_refused_where_there_are_none(
    policy: str, palimpsest: Run, tiny_model_folder: Path
) -> None:
    command = ["eval", "--policy", policy, str(tiny_model_folder), "--data", "synthetic_search"]
    done = palimpsest(*command, "--limit", "1", "question_tokens=400")
    assert done.returncode == 2
    assert "reads documents and these problems have none" in done.stderr
    assert "choose one of prune, tool_window, summary" in done.stderr


def test_eval_plays_a_policy_from_a_users_own_file(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from palimpsest.memory.policy import Answered\n"
        "@dataclass\n"
        "class Guess:\n"
        "    word: str = 'red'\n"
        "    async def run(self, problem, model):\n"
        "        await model.generate(model.codec.encode(problem.question), name='answer', max_tokens=1)\n"
        "        return Answered('\\\\boxed{%s}' % self.word)\n"
    )
    data = hotpot(tmp_path / "dev.json")
    done = palimpsest(
        "eval", "--policy", "mine:Guess", "word=blue", str(tiny_model_folder),
        "--data", str(data), "--out", "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["evaluations"][0]["accuracy"]["mean"] == 0.5
    for where, noted in (("marked", True), ("found", False)):
        done = palimpsest(
            "eval", "--policy", "mine:Guess", "word=blue", str(tiny_model_folder), "--data", str(data),
            "--no-baselines", "reward.name=final_answer", f"reward.final_answer.where={where}",
        )  # fmt: skip
        assert ("reward.final_answer.where=found" in done.stdout) is noted


@pytest.mark.slow
def test_an_interrupt_leaves_no_traceback_and_a_log_to_continue(tmp_path: Path, tiny_model_folder: Path) -> None:
    command = [sys.executable, "-c", "from palimpsest.cli.main import main; main()", "eval"]
    command += [
        str(tiny_model_folder),
        "--chunks",
        "2,512",
        "--limit",
        "4",
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    log = tmp_path / "out" / "samples.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert log.read_text().endswith("\n")


OF_THE_CALL: dict[str, object] = {"wall_s": 0, "made_with": None}
"""What a resume writes otherwise: its time and its command line."""


@pytest.mark.slow
def test_quickstart_keeps_its_contract(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    out = tmp_path / "run"
    command = ["quickstart", "memagent", "--seed", "5", "--out", str(out), f"model.path={tiny_model_folder}"]
    command += ["data.synthetic.starts=null"]
    command += [
        "train.max_steps=2",
        "train.batch_size=2",
        "train.num_minibatches=1",
        "train.group_size=2",
        "evaluation.problems=3",
    ]
    command += ["evaluation.sizes=[1, 2]", "data.synthetic.chunks=2", "data.curriculum.chunks=[1, 2]"]
    command += ["policy.options.chunk_size=24", "policy.options.memory_tokens=8"]
    command += [
        f"evaluation.baselines.{name}.options.question_tokens=60"
        for name in ("agent_ungrounded", "full_window", "last_window", "retrieval")
    ]
    command += ["policy.options.question_tokens=60"]
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary) == [
        "method", "seed", "training_chunks", "planned_chunks", "wall_s",
        "accuracy", "copy_fidelity", "dropped_share", "tokens_per_document", "made_with",
    ]  # fmt: skip
    assert (summary["method"], summary["seed"], summary["planned_chunks"]) == ("memagent", 5, 2)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert summary["training_chunks"] == max(row["curriculum/chunks"] for row in rows)
    baselines = {"agent_ungrounded", "full_window", "last_window", "retrieval"}
    assert set(summary["accuracy"]) == {"agent_before", "agent", *baselines}
    assert all(set(row) == {"1", "2"} for row in (*summary["accuracy"].values(), summary["tokens_per_document"]))
    assert set(summary["copy_fidelity"]) == {"before", "after"}
    assert (out / "report.html").stat().st_size > 10_000
    assert {path.name for path in (out / "plots").iterdir()} == {"reward.png", "accuracy.png", "tokens.png"}
    assert palimpsest(*command).returncode == 2
    again = palimpsest(*command, "--resume")
    assert again.returncode == 0, again.stderr
    resumed = json.loads((out / "summary.json").read_text())
    assert {**resumed, **OF_THE_CALL} == {**summary, **OF_THE_CALL}


@pytest.mark.slow
def test_quickstart_of_recall_trains_agent_and_rival_and_goes_on_where_it_was(
    palimpsest: Run, tmp_path: Path, tiny_model_folder: Path
) -> None:
    out = tmp_path / "run"
    command = ["quickstart", "rememr1", "--seed", "5", "--out", str(out), f"model.path={tiny_model_folder}"]
    command += ["train.max_steps=2", "train.batch_size=2", "train.num_minibatches=1", "train.group_size=2"]
    command += ["cold_start.max_steps=2", "cold_start.batch_size=4"]
    command += ["evaluation.problems=3", "evaluation.sizes=[1, 2]", "data.curriculum.chunks=[2, 3]"]
    policies = ["policy", "evaluation.trained_baselines.overwrite", "evaluation.baselines.rule_recall"]
    command += [f"{policy}.options.question_tokens=60" for policy in policies]
    command += [f"{policy}.options.memory_tokens=16" for policy in policies]
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["method"], summary["seed"], summary["planned_chunks"]) == ("rememr1", 5, 3)
    assert set(summary["accuracy"]) == {"recall_before", "recall", "overwrite", "rule_recall"}
    assert all(set(row) == {"1", "2"} for row in summary["accuracy"].values())
    assert "recall_hit_rate" in summary
    assert "question as the query" in (out / "report.html").read_text()
    for folder in (out, out / "rivals" / "overwrite"):
        assert (folder / "cold-start" / "checkpoints" / "step-000002").is_dir()
        assert (folder / "checkpoints" / "step-000002").is_dir()
    (out / "summary.json").unlink()
    again = palimpsest(*command, "--resume")
    assert again.returncode == 0, again.stderr
    resumed = json.loads((out / "summary.json").read_text())
    assert {**resumed, **OF_THE_CALL} == {**summary, **OF_THE_CALL}


@pytest.mark.slow
def test_quickstart_of_pruning_keeps_its_contract(palimpsest: Run, tmp_path: Path, tiny_model_folder: Path) -> None:
    out = tmp_path / "run"
    command = ["quickstart", "memact", "--seed", "5", "--out", str(out), f"model.path={tiny_model_folder}"]
    command += ["train.max_steps=2", "train.batch_size=2", "train.num_minibatches=1", "train.group_size=2"]
    command += ["data.search.objectives=[1, 2]", "evaluation.problems=3", "evaluation.sizes=[1, 2]"]
    others = ("no_prune", "full_history", "sliding_window", "summary")
    for policy in ("policy", *(f"evaluation.baselines.{name}" for name in others)):
        command += [f"{policy}.options.context_tokens=500", f"{policy}.options.turn_tokens=60"]
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary) == [
        "method", "seed", "training_objectives", "planned_objectives", "wall_s", "accuracy", "all_right",
        "answers_right",
        "input_tokens_per_episode", "prunes_per_episode", "mean_prunes_per_episode",
        "segments_per_trajectory", "mean_segments_per_trajectory", "made_with",
    ]  # fmt: skip
    assert (summary["method"], summary["seed"], summary["training_objectives"]) == ("memact", 5, 2)
    for key in ("accuracy", "all_right", "answers_right", "input_tokens_per_episode"):
        assert set(summary[key]) == {"prune_before", "prune", *others}
        assert all(set(row) == {"1", "2"} for row in summary[key].values())
    assert min(value for row in summary["input_tokens_per_episode"].values() for value in row.values()) > 0
    assert set(summary["prunes_per_episode"]) == set(summary["segments_per_trajectory"]) == {"1", "2"}
    assert summary["mean_segments_per_trajectory"] >= 1
    figures = {"reward", "prunes", "context", "episode-tokens", "accuracy", "tokens"}
    assert {path.stem for path in (out / "plots").iterdir()} == figures
    report = (out / "report.html").read_text()
    assert "Prunes per sampled episode over training" in report
    shown = report.partition("<summary>Configuration")[0].partition("<h1>")[2]
    assert not re.search(r"chunk|document|copy fidelity", shown)
    (out / "summary.json").unlink()
    again = palimpsest(*command, "--resume")
    assert again.returncode == 0, again.stderr
    assert {**json.loads((out / "summary.json").read_text()), **OF_THE_CALL} == {**summary, **OF_THE_CALL}
