"""Episodes of other data never count as episodes of the evaluation's data."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
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


def rows(count: int = 4, thing: str = "tea", verb: str = "sell", gold: str = "tea", context: str | None = None) -> Rows:
    texts = [f"Number {n} sells {thing}." if context is None else context for n in range(count)]
    questions = [f"What does number {n} {verb}?" for n in range(count)]
    pairs = enumerate(zip(questions, texts, strict=True))
    return [{"id": f"p{n}", "question": q, "answers": [gold], "context": text} for n, (q, text) in pairs]


def evaluated(model: Path, data: Path, out: Path, limit: int | None = None) -> Evaluation:
    return palimpsest.evaluate(model, data, limit=limit, overrides=BUDGETS, baselines=False, out=out, quiet=True)


@pytest.mark.parametrize(
    ("before", "after", "played", "counts"),
    [
        ({}, {"thing": "ale", "gold": "ale"}, 2, r"golds of 2, documents of 2 of 2 episodes, first problem: p0"),
        ({}, {"gold": "ale"}, 2, r"golds of 2 of 2 episodes"),
        ({}, {"verb": "buy"}, 2, r"questions of 2 of 2 episodes"),
        ({}, {"thing": "ale"}, 2, r"documents of 2 of 2 episodes"),
        ({}, {"gold": "ale"}, 4, r"golds of 4 of 4 episodes"),  # after the evaluation had ended
        ({"context": ""}, {}, 4, r"documents of 4 of 4 episodes"),
    ],
)
def test_edited_data_is_rejected_and_changes_are_counted(
    before: dict[str, str], after: dict[str, str], played: int, counts: str, tiny_model_folder: Path, tmp_path: Path
) -> None:
    data, out = write(tmp_path / "d.jsonl", rows(4, **before)), tmp_path / "e"
    evaluated(tiny_model_folder, data, out, limit=played)
    files = (out / SAMPLES).read_bytes(), (out / "summary.json").read_bytes()
    write(data, rows(4, **after))
    with pytest.raises(RunError, match=rf"the data changed after its episodes ran.*{counts}"):
        evaluated(tiny_model_folder, data, out)
    assert ((out / SAMPLES).read_bytes(), (out / "summary.json").read_bytes()) == files


def test_a_file_that_grows_and_another_limit_continue_the_log(tiny_model_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", rows())
    assert len(evaluated(tiny_model_folder, data, tmp_path / "e", limit=3).samples) == 3
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "e" / "summary.json").read_text("utf-8"))["editions"] == {str(data): digest}
    write(data, rows(6))
    grown = evaluated(tiny_model_folder, data, tmp_path / "e")
    assert (len(grown.samples), grown.played) == (6, 3)
    assert len(evaluated(tiny_model_folder, data, tmp_path / "e", limit=1).samples) == 1


MODULE = """
from palimpsest.memory.overwrite import OverwritePolicy
def right(problem, trajectory): return 1.0
class Custom(OverwritePolicy): pass
"""


@pytest.mark.parametrize("changed_part", ["reward", "policy", "model_files"])
def test_a_changed_module_or_template_is_named(
    changed_part: str, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, module, out = tmp_path / "model", tmp_path / f"mine_{changed_part}.py", tmp_path / "e"
    shutil.copytree(tiny_model_folder, model, ignore=shutil.ignore_patterns("manifest.json"))
    module.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    custom: dict[str, Any] = {
        "reward": {"reward": f"{module.stem}:right"},
        "policy": {"policy": f"{module.stem}:Custom"},
    }

    def again() -> Evaluation:
        options = {
            "data": write(tmp_path / "rows.jsonl", rows(1)),
            "out": out,
            "overrides": BUDGETS,
            "baselines": False,
        }
        return palimpsest.evaluate(model, **options, **custom.get(changed_part, {}), quiet=True)

    again()
    assert len(again()) == 1
    changed = model / "tokenizer_config.json" if changed_part == "model_files" else module
    changed.write_text(changed.read_text() + "\n")
    sys.modules.pop(module.stem, None)
    key = f"model_files.{changed.name}" if changed_part == "model_files" else f"modules.{module.stem}"
    with pytest.raises(RunError, match=rf"another evaluation \({re.escape(key)} was "):
        again()
