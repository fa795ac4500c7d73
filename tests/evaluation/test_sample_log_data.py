"""An evaluation never counts an episode of other data as one of the data it is given."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import SAMPLES

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}
Rows = list[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int = 4) -> Rows:
    return [
        {
            "id": f"p{n}",
            "question": f"What does number {n} sell?",
            "answers": ["tea"],
            "context": f"Number {n} sells tea.",
        }
        for n in range(count)
    ]


def evaluated(model: Path, data: Path, out: Path, limit: int | None = None) -> Evaluation:
    return palimpsest.evaluate(model, data, limit=limit, overrides=BUDGETS, baselines=False, out=out, quiet=True)


def documents(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "context": row["context"].replace("tea", "ale")}


def golds(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "answers": ["ale"]}


def questions(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "question": row["question"].replace("sell", "buy")}


def without_document(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "context": ""}


def documents_and_golds(row: dict[str, Any]) -> dict[str, Any]:
    return documents(golds(row))


@pytest.mark.parametrize(
    ("edit", "played", "told"),
    [
        (documents_and_golds, 2, r"golds of 2, documents of 2 of 2 episodes, first problem: p0"),
        (golds, 2, r"golds of 2 of 2 episodes"),
        (questions, 2, r"questions of 2 of 2 episodes"),
        (documents, 2, r"documents of 2 of 2 episodes"),
        (golds, 4, r"golds of 4 of 4 episodes"),  # after the evaluation had ended
    ],
)
def test_edited_data_is_rejected_and_what_changed_is_counted(
    edit: Callable[[dict[str, Any]], dict[str, Any]], played: int, told: str, tiny_model_folder: Path, tmp_path: Path
) -> None:
    data = write(tmp_path / "d.jsonl", rows())
    out = tmp_path / "e"
    evaluated(tiny_model_folder, data, out, limit=played)
    before = (out / SAMPLES).read_bytes(), (out / "summary.json").read_bytes()
    write(data, [edit(row) for row in rows()])
    with pytest.raises(RunError, match=rf"the data changed after its episodes ran.*{told}"):
        evaluated(tiny_model_folder, data, out)
    assert ((out / SAMPLES).read_bytes(), (out / "summary.json").read_bytes()) == before


def test_documents_that_were_empty_are_counted_as_changed(tiny_model_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", list(map(without_document, rows())))
    evaluated(tiny_model_folder, data, tmp_path / "e")
    write(data, rows())
    with pytest.raises(RunError, match="documents of 4 of 4 episodes"):
        evaluated(tiny_model_folder, data, tmp_path / "e")


def test_a_file_that_grows_and_another_limit_go_on_as_before(tiny_model_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", rows())
    assert len(evaluated(tiny_model_folder, data, tmp_path / "e", limit=3).samples) == 3
    write(data, rows(6))
    grown = evaluated(tiny_model_folder, data, tmp_path / "e")
    assert (len(grown.samples), grown.played) == (6, 3)
    assert len(evaluated(tiny_model_folder, data, tmp_path / "e", limit=1).samples) == 1


def test_an_evaluation_writes_down_the_sha256_of_its_files(tmp_path: Path, tiny_model_folder: Path) -> None:
    data = write(tmp_path / "d.jsonl", rows(1))
    evaluated(tiny_model_folder, data, tmp_path / "e")
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "e" / "summary.json").read_text("utf-8"))["editions"] == {str(data): digest}


MODULE = """
from palimpsest.memory.overwrite import OverwritePolicy

def right(problem, trajectory):
    return 1.0

class Own(OverwritePolicy):
    pass
"""


@pytest.mark.parametrize("what", ["reward", "policy", "model_files"])
def test_a_changed_module_or_template_is_named(
    what: str, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, module, out = tmp_path / "model", tmp_path / f"mine_{what}.py", tmp_path / "e"
    shutil.copytree(tiny_model_folder, model, ignore=shutil.ignore_patterns("manifest.json"))
    module.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    named: dict[str, Any] = {"reward": {"reward": f"{module.stem}:right"}, "policy": {"policy": f"{module.stem}:Own"}}

    def again() -> Evaluation:
        given = {"data": write(tmp_path / "rows.jsonl", rows(1)), "out": out, "overrides": BUDGETS, "baselines": False}
        return palimpsest.evaluate(model, **given, **named.get(what, {}), quiet=True)

    again()
    assert len(again()) == 1
    changed = model / "tokenizer_config.json" if what == "model_files" else module
    changed.write_text(changed.read_text() + "\n")
    sys.modules.pop(module.stem, None)
    key = f"model_files.{changed.name}" if what == "model_files" else f"modules.{module.stem}"
    with pytest.raises(RunError, match=rf"another evaluation \({re.escape(key)} was "):
        again()
