"""A run resumes only with the data it started with."""

from __future__ import annotations

import json
from functools import partial
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
        {"id": f"p{n}", "question": f"What does {n} sell?", "answers": [answer], "context": f"{n} sells {answer}."}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in ("events.jsonl", ".lock")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_resume_with_changed_data_is_rejected_and_changes_nothing(tiny_model_folder: Path, tmp_path: Path) -> None:
    data, out = write(tmp_path / "d.jsonl", "tea"), tmp_path / "run"
    settings = {key: value for key, value in small_run(tiny_model_folder).items() if ".synthetic" not in key}
    settings["data.train_files"] = str(data)
    run = partial(palimpsest.train, "memagent-quickstart", settings, out=out, quiet=True)
    run()
    before = contents(out)
    write(data, "ale")
    with pytest.raises(RunError, match=r"the data at the start of the run \(golds and documents changed\)"):
        run(resume=True)
    write(data, "tea", count=5)
    with pytest.raises(RunError, match=r"\(4 problems then, 5 now\): restore the file, or start a new run"):
        run(resume=True)
    assert contents(out) == before
    write(data, "tea")
    assert run(resume=True).steps == 2


def test_other_held_out_problems_cause_a_warning_and_a_checkpoint_without_digests_none(tmp_path: Path) -> None:
    one, two = ({"problems": 1, **dict.fromkeys(PARTS, digest)} for digest in "ab")
    train(tmp_path, small_config(max_steps=2))  # as earlier versions left it
    warnings: dict[int, list[str]] = {}
    for steps, held_out in ((4, one), (6, two)):
        given: Any = {"train": one, "held_out": held_out}
        trainer, warnings[steps] = train(tmp_path, small_config(max_steps=steps), resume=True, contents=given)
        assert trainer.finished.step == steps
    assert not [line for line in warnings[4] if "held-out" in line]
    assert [line for line in warnings[6] if "held-out problems differ from those of earlier evaluations" in line]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Problem("p", "Who?", ("Bob",), "A text.", {"hops": 1}), "golds changed"),
        (Problem("p", "Where?", ("Ann",), "A text.", {"hops": 1}), "questions changed"),
        (Problem("p", "Who?", ("Ann",), "Another text.", {"hops": 1}), "documents changed"),
        (Problem("p", "Who?", ("Ann",), "A text.", {"hops": 2}), "metadata changed"),
        (Problem("p", "Who?", ("Bob",), "B.", {"hops": 1}), "golds and documents changed"),
    ],
)
def test_parts_of_a_problem_have_separate_digests(other: Problem, message: str) -> None:
    one = Problem("p", "Who?", ("Ann",), "A text.", {"hops": 1})
    assert changed(Contents([one]).to_json(), Contents([other]).to_json()) == message
