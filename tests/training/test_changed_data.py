"""A run goes on with the data it started with, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.errors import RunError
from palimpsest.provenance import PARTS, Contents, changed
from palimpsest.types import Problem
from support.fakes import small_config
from support.small_run import small_run
from support.training import train


def write(path: Path, answer: str, count: int = 4) -> Path:
    rows = [
        {
            "id": f"p{n}",
            "question": f"What does number {n} sell?",
            "answers": [answer],
            "context": f"{n} sells {answer}.",
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def whole(folder: Path) -> dict[str, bytes]:
    kept = [file for file in folder.rglob("*") if file.is_file() and file.name not in ("events.jsonl", ".lock")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in kept}


def settings(model: Path, data: Path, steps: int) -> dict[str, Any]:
    shared = small_run(model, max_steps=steps)
    return {key: value for key, value in shared.items() if ".synthetic" not in key} | {"data.train_files": str(data)}


def test_a_resume_on_other_contents_of_the_file_is_rejected_and_changes_nothing(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    data, out = write(tmp_path / "d.jsonl", "tea"), tmp_path / "run"
    palimpsest.train("memagent-quickstart", settings(tiny_model_folder, data, 2), out=out, quiet=True)
    before = whole(out)
    write(data, "ale")
    again = {"out": out, "resume": True, "quiet": True}
    with pytest.raises(
        RunError, match=r"differs from the data at the start of the run \(golds and documents changed\)"
    ):
        palimpsest.train("memagent-quickstart", settings(tiny_model_folder, data, 2), **again)
    write(data, "tea", count=5)
    with pytest.raises(RunError, match=r"\(4 problems then, 5 now\): restore the file, or start a new run"):
        palimpsest.train("memagent-quickstart", settings(tiny_model_folder, data, 2), **again)
    assert whole(out) == before
    write(data, "tea")
    assert palimpsest.train("memagent-quickstart", settings(tiny_model_folder, data, 2), **again).steps == 2


def test_a_checkpoint_without_digests_is_resumed_and_other_held_out_problems_are_a_warning(tmp_path: Path) -> None:
    one, two = ({"problems": 1, **dict.fromkeys(PARTS, digest)} for digest in "ab")
    train(tmp_path, small_config(max_steps=2))  # as earlier versions left it
    _, warnings = train(tmp_path, small_config(max_steps=4), resume=True, contents={"train": one, "held_out": one})
    assert not [line for line in warnings if "held-out" in line]
    trainer, warnings = train(
        tmp_path, small_config(max_steps=6), resume=True, contents={"train": one, "held_out": two}
    )
    assert trainer.finished.step == 6
    assert [line for line in warnings if "held-out problems differ from those of earlier evaluations" in line]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Problem("p", "Who?", ("Bob",), "A text.", {"hops": 1}), "golds changed"),
        (Problem("p", "Where?", ("Ann",), "A text.", {"hops": 1}), "questions changed"),
        (Problem("p", "Who?", ("Ann",), "Another text.", {"hops": 1}), "documents changed"),
        (Problem("p", "Who?", ("Ann",), "A text.", {"hops": 2}), "metadata changed"),
        (Problem("p", "Who?", ("Bob",), "B.", {"hops": 1}), "golds and documents changed"),
    ],
)
def test_each_part_of_a_problem_has_its_own_digest(other: Problem, told: str) -> None:
    one = Problem("p", "Who?", ("Ann",), "A text.", {"hops": 1})
    assert changed(Contents([one]).to_json(), Contents([other]).to_json()) == told
