"""`palimpsest data build --drop-answered`: questions that a model answers without the document are omitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.data.set_manifest import MANIFEST
from palimpsest.errors import DataError
from support.command import Run
from support.endpoint_server import Server, endpoint_server
from support.evaluations import sample, write_evaluation

CLOSED: dict[str, Any] = {"policies": {"closed_book": {"name": "closed_book"}}}


def questions(path: Path, count: int = 6) -> Path:
    rows = [
        {
            "_id": f"q{i}",
            "question": f"Where is q{i}?",
            "answer": "Rome",
            "supporting_facts": [["T", 0]],
            "context": [["T", [f"Text of {i}."]], ["U", ["Other."]]],
        }
        for i in range(count)
    ]
    path.write_text(json.dumps(rows))
    return path


def test_answered_questions_are_omitted_and_counted(tmp_path: Path) -> None:
    """One right reply of several is enough; ungraded and unplayed questions stay."""
    source = questions(tmp_path / "a.json")
    samples = [
        sample("q0", 1.0),
        sample("q1", 0.0),
        sample("q1", 1.0, draw=1),
        sample("q2", 0.5),
        sample("q3", None),
        sample("other", 1.0, question="where is Q4"),
    ]
    folder = write_evaluation(tmp_path / "closed", samples, CLOSED)
    built = build_contexts([source], Contexts((2,)), answered=[folder], out=tmp_path / "set")
    assert built.left_out == {"answered without the document": 3}
    assert {problem.id for problem in read_problems(tmp_path / "set" / "eval_2.jsonl")} == {"q2", "q3", "q5"}
    manifest = json.loads((tmp_path / "set" / MANIFEST).read_text())
    assert [(row["file"], row["role"]) for row in manifest["sources"]] == [
        ("samples.jsonl", "answered"),
        ("a.json", "source"),
    ]


def test_the_closed_book_baseline_of_an_evaluation_counts(tmp_path: Path) -> None:
    baselines = [("q1", "closed book"), ("q2", "retrieval")]
    samples = [sample("q0", 1.0), *(sample(name, 1.0, player=player, baseline=True) for name, player in baselines)]
    folder = write_evaluation(tmp_path / "eval", samples, {"policies": {"overwrite": {"name": "overwrite"}}})
    build_contexts([questions(tmp_path / "a.json", 3)], Contexts(), answered=[folder], out=tmp_path / "set")
    assert {problem.id for problem in read_problems(tmp_path / "set" / "eval.jsonl")} == {"q0", "q2"}


def test_a_folder_without_closed_book_episodes_is_refused(tmp_path: Path) -> None:
    source = questions(tmp_path / "a.json")
    agent = write_evaluation(tmp_path / "agent", [sample("q0", 1.0)], {"policies": {"o": {"name": "overwrite"}}})
    for folder, message in ((tmp_path, "no finished evaluation"), (agent, "has no closed-book episodes")):
        with pytest.raises(DataError, match=rf"--drop-answered .*: {message}.*palimpsest eval --policy closed_book"):
            build_contexts([source], Contexts((2,)), answered=[folder], out=tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_the_commands_filter_a_file(palimpsest: Run, tiny_model_folder: Path, tmp_path: Path) -> None:
    source, out = questions(tmp_path / "a.json", 4), tmp_path / "closed"

    def knows_q1(request: dict[str, Any]) -> str:
        return "\\boxed{Rome}" if "Where is q1?" in json.dumps(request) else "\\boxed{nowhere}"

    with endpoint_server(Server(takes="chat", speak=knows_q1)) as server:
        endpoint = ("--base-url", server.url, "served", "--tokenizer", str(tiny_model_folder))
        done = palimpsest("eval", "--policy", "closed_book", *endpoint, "--data", str(source), "--out", str(out))
    assert done.returncode == 0, done.stderr
    options = (str(source), "--documents", "2", "--drop-answered", str(out))
    done = palimpsest("data", "build", *options, "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    assert "omitted, answered without the document: 1" in done.stdout
    assert "eval_2.jsonl: 3 problems" in done.stdout
