"""Several questions on one reading, from a file of JSON lines to the record, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import palimpsest
from palimpsest.cli.main import app
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.types import Problem, Question

SMALL = (
    "train={max_steps: 2, batch_size: 2, group_size: 3, save_steps: 1, eval_steps: null, num_minibatches: 1}",
    "policy.options={prompts: short, question_tokens: 100, chunk_size: 64, memory_tokens: 16, answer_tokens: 8}",
    "credit.dynamic_sampling=null", "data.curriculum=null", "cold_start=null", "logging.report_to=[jsonl]",
)  # fmt: skip

BUDGETS = {"prompts": "short", "question_tokens": 64, "chunk_size": 64, "memory_tokens": 8, "answer_tokens": 8}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three documents with two questions, one with one."""
    facts = [{"question": "What does Ann drink?", "answers": ["tea"]}]
    facts += [{"question": "Where does Ann live?", "answers": ["Rome"]}]
    context = "Ann drinks tea. Ann lives in Rome."
    rows = [{"id": f"d{n}", "context": context, "questions": facts[: 1 if n == 3 else 2]} for n in range(4)]
    path = tmp_path / "several.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_agent_trains_on_a_file_of_several_questions(data: Path, tiny_model_folder: Path, tmp_path: Path) -> None:
    words = [f"model.path={tiny_model_folder}", f"data.train_files={data}", *SMALL, "--out", str(tmp_path / "run")]
    app(["train", "memagent-quickstart", *words], standalone_mode=False)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    played = [
        group
        for step in (1, 2)
        for group in read_groups(tmp_path / "run" / "trajectories" / f"step-{step:06d}.jsonl.zst").groups
    ]
    assert sorted(group.problem.id for group in played) == ["d0", "d1", "d2", "d3"]  # each once an epoch
    for group in played:
        asked = len(group.problem.by_question)
        for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
            assert sum(turn.name == "answer" for turn in trajectory.turns) == asked
            assert len(trajectory.answers) == (asked if asked > 1 else 0)
            values = [grade.breakdown[f"question_{n}"] for n in range(1, asked + 1)] if asked > 1 else [grade.value]
            assert grade.value is not None
            assert grade.breakdown["boxed"] == pytest.approx(sum(v or 0 for v in values) / asked)


def test_samples_hold_every_question_and_what_its_answer_is_worth(
    data: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    words = [str(tiny_model_folder), "--data", str(data), "--out", str(tmp_path / "out")]
    app(["eval", "--policy", "overwrite", *words, "answer_tokens=8"], standalone_mode=False)
    samples, unreadable = read_samples(tmp_path / "out" / "samples.jsonl")
    assert unreadable == 0
    by_id = {sample.id: sample for sample in samples}
    assert by_id["d3"].questions == []
    assert [each["answers"] for each in by_id["d0"].questions] == [["tea"], ["Rome"]]
    assert by_id["d0"].value == sum(each["value"] for each in by_id["d0"].questions) / 2
    assert all(isinstance(each["answer"], str) for each in by_id["d0"].questions)


def test_a_policy_that_answers_one_question_is_refused_before_anything_is_played(
    data: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(palimpsest.PalimpsestError, match="retrieval answers one question and problem d0 has 2"):
        palimpsest.evaluate(str(tiny_model_folder), data, policy="retrieval", overrides=BUDGETS, quiet=True)


def test_an_episode_shows_the_answer_to_each_question(tiny_model_folder: Path) -> None:
    asked = [Question("What does Ann drink?", ("tea",)), Question("Where does Ann live?", ("Rome",))]
    problem = Problem.asking("p", asked, "Ann drinks tea. Ann lives in Rome.")
    options = {"answer_tokens": 8, "memory_tokens": 16, "prompts": "short"}
    episode = palimpsest.play(problem, model=tiny_model_folder, policy="overwrite", overrides=options)
    assert len(episode.answers) == 2
    assert episode.answers == episode.trajectory.answers
    assert repr(episode).count("\n  > ") == 2
    assert episode.grade is not None
    assert {"question_1", "question_2"} <= set(episode.grade.breakdown)
