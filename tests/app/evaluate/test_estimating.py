"""What an evaluation will cost is told before the first request, and is no less than what it then costs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from palimpsest import evaluate
from palimpsest.app.evaluate.evaluation_result import Prices, Row
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.evaluation.summary import summarise
from palimpsest.progress.reporter import Silent
from support.evaluations import sample

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}


class Listening(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def message(self, text: str) -> None:
        self.told.append(text)


def told(model: Path, out: Path, **more: Any) -> list[str]:
    listening = Listening()
    options: dict[str, Any] = {
        "chunks": 2,
        "limit": 4,
        "overrides": BUDGETS | {"eval_sampling.temperature": 1.0},
        "baselines": False,
        "progress": listening,
    }
    evaluate(model, out=out, **{**options, **more})
    return [line for line in listening.told if "at most about" in line]


def test_the_cost_is_told_at_most_as_it_becomes(tiny_model_folder: Path, tmp_path: Path) -> None:
    (line,) = told(tiny_model_folder, tmp_path / "e", prices=Prices(2_000_000, 1_000_000), samples=2)
    found = re.fullmatch(
        r"at most about ([\d,]+) requests, ([\d,]+) prompt tokens and ([\d,]+) sampled ones: ([\d,.]+) at the prices.*",
        line,
    )
    assert found is not None
    requests, read, sampled, cost = (float(each.replace(",", "")) for each in found.groups())
    samples, _ = read_samples(tmp_path / "e" / "samples.jsonl")
    assert len(samples) == 8
    assert requests == sum(sample.turns for sample in samples)
    assert sum(sample.prompt_tokens for sample in samples) <= 1.05 * read  # of two digits
    assert sum(sample.sampled_tokens for sample in samples) <= 1.05 * sampled
    assert cost == pytest.approx(2 * read + sampled, rel=0.05)


def test_what_is_there_already_costs_nothing_more(tiny_model_folder: Path, tmp_path: Path) -> None:
    def requests(lines: list[str]) -> list[str]:
        return [line.split(" requests")[0].removeprefix("at most about ") for line in lines]

    options: dict[str, Any] = {"prices": Prices(1, 1), "chunks": 1}
    all_of_it = requests(told(tiny_model_folder, tmp_path / "e", limit=2, **options))
    assert told(tiny_model_folder, tmp_path / "e", limit=2, **options) == []
    assert requests(told(tiny_model_folder, tmp_path / "e", limit=4, **options)) == all_of_it  # of two more
    assert requests(told(tiny_model_folder, tmp_path / "e", limit=4, force=True, **options)) != all_of_it


def test_a_right_answer_costs_what_all_episodes_cost_over_their_number() -> None:
    samples = [sample("a", 1.0), sample("b", 0.0), sample("c", 1.0), sample("d", None)]  # 90 tokens read, 10 sampled
    row = Row(summarise("dev", samples), "overwrite", "dev", cost=Prices(100_000, 1_000_000).of(samples))
    assert (row.cost, row.cost_per_correct) == (76.0, 38.0)
    assert row.cells()["cost/correct"] == row.to_json()["cost_per_correct"] == 38.0
    assert Row(summarise("dev", samples), "overwrite", "dev").cost_per_correct is None
    assert Row(summarise("dev", samples[1:2]), "overwrite", "dev", cost=1.0).cost_per_correct is None


def test_without_prices_and_with_a_model_of_one_s_own_nothing_is_told(tiny_model_folder: Path, tmp_path: Path) -> None:
    assert not told(tiny_model_folder, tmp_path / "e")
