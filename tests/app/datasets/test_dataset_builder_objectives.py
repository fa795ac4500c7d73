"""Problems of several questions, made from files of single questions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.datasets.dataset_builder import make_objectives
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import DataError


def hotpot(path: Path, count: int = 12) -> Path:
    rows = [
        {
            "_id": f"q{i}",
            "question": f"Who is {i}?",
            "answer": f"name {i}",
            "supporting_facts": [[f"T{i} 3", 0], [f"T{i} 0", 0]],
            "context": [[f"T{i} {j}", [f"Text {j} of {i}."]] for j in range(6)],
        }
        for i in range(count)
    ]
    path.write_text(json.dumps(rows))
    return path


def test_problems_to_search_for_repeat_no_question(tmp_path: Path) -> None:
    source = hotpot(tmp_path / "a.json")
    made = make_objectives([source, source], (1, 2, 5), out=tmp_path / "set", seed=1)
    assert made.problems == {"objectives_1.jsonl": 12, "objectives_2.jsonl": 6, "objectives_5.jsonl": 2}
    for size in (2, 5):
        problems = list(read_problems(tmp_path / "set" / f"objectives_{size}.jsonl"))
        texts = [row["question"] for problem in problems for row in problem.metadata["objectives"]]
        assert len(texts) == len(set(texts)) == size * len(problems)
        for problem in problems:
            assert problem.context is None
            golds = json.loads(problem.answers[0])
            for row in problem.metadata["objectives"]:
                number = re.findall(r"\d+", row["question"])[0]
                assert golds[row["name"]] == f"name {number}"
                assert f"{row['name']}: Who is {number}?" in problem.question


def test_one_document_contains_the_gold_of_every_question(tmp_path: Path, palimpsest: Any) -> None:
    source = hotpot(tmp_path / "a.json")
    command = ["data", "combine", str(source), "--objectives", "3", "--documents", "30", "--problems", "4"]
    done = palimpsest(*command, "--out", str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr
    problems = list(read_problems(tmp_path / "set" / "objectives_3.jsonl"))
    assert len(problems) == 4
    for problem in problems:
        texts = re.split(r"(?:^|\n\n)Document \d+:\n", problem.context or "")[1:]
        assert len(set(texts)) == 30
        assert len(problem.questions) == 3
        for question in problem.questions:
            number = re.findall(r"\d+", question.text)[0]
            assert question.answers == (f"name {number}",)
            assert {f"T{number} 3\nText 3 of {number}.", f"T{number} 0\nText 0 of {number}."} <= set(texts)
        assert len(problem.metadata["evidence"]) == 6


def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    source = hotpot(tmp_path / "a.json")
    with pytest.raises(DataError, match=r"12 questions make 4 problems of 3, not 5"):
        make_objectives([source], (3,), out=tmp_path / "set", count=5)
    with pytest.raises(DataError, match="12 questions make 0 problems of 13, not 1"):
        make_objectives([source], (13,), out=tmp_path / "set")
    made = tmp_path / "made"
    make_objectives([source], (2,), out=made)
    with pytest.raises(DataError, match="has several questions"):
        make_objectives([made / "objectives_2.jsonl"], (2,), out=tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_the_published_questions_are_combined(real_data: Path, tmp_path: Path) -> None:
    sources = [real_data / "hotpotqa_dev_50.json", real_data / "2wiki_questions_1000.json"]
    made = [make_objectives(sources, (2, 8), out=tmp_path / name, count=100, seed=3) for name in ("a", "b")]
    assert made[0].problems == {"objectives_2.jsonl": 100, "objectives_8.jsonl": 100}
    assert made[0].edition == made[1].edition
