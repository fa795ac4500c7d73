"""Evaluations against the real vLLM, from the Python that $PALIMPSEST_VLLM_PYTHON names: a protocol on published
questions, killed and continued, and a judge that answers rubbish."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import palimpsest as library
from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
from palimpsest.app.datasets.question_splits import read_splits
from palimpsest.evaluation.sample_log import read_samples
from support.command import Run
from support.evaluations import sample, write_evaluation
from support.interrupting import killed_at
from support.vllm_server import NEEDS_VLLM, served_model

pytestmark = NEEDS_VLLM
WINDOW = 2048
PROBLEMS = 64


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    with served_model(tmp_path_factory.mktemp("served"), WINDOW) as model_and_url:
        yield model_and_url


def test_a_killed_ruler_hqa_resumes(real_data: Path, served: tuple[Path, str], palimpsest: Run, tmp_path: Path) -> None:
    """64 questions among 50 documents of HotpotQA, sampled as the protocol says."""
    model, url = served
    contexts = Contexts((50,), splits=read_splits(f"eval={PROBLEMS}"))
    build_contexts([real_data / "hotpotqa_train_100.json"], contexts, out=tmp_path / "set")
    budgets = ("chunk_size=1200", "memory_tokens=16", "answer_tokens=16")

    def words(out: Path) -> list[str]:
        sets = list(budgets)
        request_words = ("--recipe", "eval/ruler-hqa", "--data", str(tmp_path / "set"), "--base-url", url, str(model))
        return ["eval", *request_words, *sets, "--out", str(out)]

    complete, out = tmp_path / "whole", tmp_path / "out"
    done = palimpsest(*words(complete))
    assert done.returncode == 0, done.stderr
    for episodes in (8, 40, 80):
        killed_at(words(out), out, episodes)
    done = palimpsest(*words(out))
    assert done.returncode == 0, done.stderr
    assert " episodes exist already" in done.stderr
    lines = [sorted((folder / "samples.jsonl").read_bytes().splitlines()) for folder in (complete, out)]
    assert lines[0] == lines[1]
    samples, _ = read_samples(out / "samples.jsonl")
    assert len([item for item in samples if not item.baseline]) == PROBLEMS
    assert min(item.turns for item in samples if not item.baseline) > 3
    of_the_last_call: dict[str, Any] = {"seconds": 0.0, "episodes_played": 0, "made_with": {}}
    figures = [json.loads((folder / "summary.json").read_text()) | of_the_last_call for folder in (complete, out)]
    assert figures[0] == figures[1]


def test_a_judge_that_answers_rubbish_grades_nothing(served: tuple[Path, str], tmp_path: Path) -> None:
    model, url = served
    rows = [sample(f"p{n}", 1.0, answer=f"FINAL_ANSWER: {text}") for n, text in enumerate(("Rome", "Oslo", ""))]
    folder = write_evaluation(tmp_path / "e", rows)
    judge = {"url": url, "model": str(model), "max_tokens": 48}
    settings: dict[str, Any] = {"reward.name": "final_answer", "reward.final_answer.match": "judge"}
    settings |= {f"reward.judge.{key}": value for key, value in judge.items()}
    done = library.evaluate(regrade=folder, overrides=settings, quiet=True)
    (summary,) = done.summaries
    assert (summary.problems, summary.ungraded, summary.graded) == (3, 2, 1), "nobody has to judge an empty answer"
    assert all("judge: " in reason for reason in summary.ungraded_reasons)
