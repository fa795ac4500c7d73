"""The question alone, the whole document and retrieval, next to every agent and never in its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import palimpsest
from palimpsest.app.evaluate.baselines import with_baselines
from palimpsest.app.evaluate.evaluation_data import part
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.evaluation.sample_log import Cell, read_samples
from palimpsest.memory.registry import build_policy
from palimpsest.text.codec import Codec

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8, "prompts": "short"}


def problem(name: str, document: str | None) -> palimpsest.Problem:
    return palimpsest.Problem(name, "Who likes tea?", ("Bob",), document)


SHORT, LONG = [problem("s", "Bob likes tea.")], [problem("l", "Bob likes tea. " * 150)]


def evaluated(model: Path, problems: list[palimpsest.Problem], **options: Any) -> palimpsest.Evaluation:
    return palimpsest.evaluate(model, problems, overrides=BUDGETS, quiet=True, **options)


def test_baselines_are_played_and_reported_separately(tiny_model_folder: Path, tmp_path: Path) -> None:
    evaluation = evaluated(tiny_model_folder, SHORT + LONG, out=tmp_path)
    closed, complete, retrieval = evaluation.baselines
    (agent,) = evaluation.summaries
    assert agent.cell == Cell("problems", None, None, "overwrite")
    assert (closed.problems, closed.part_problems) == (2, None)
    assert (complete.problems, complete.part_problems) == (1, 2)  # where it fits
    assert (retrieval.problems, retrieval.part_problems, retrieval.turns_per_document) == (2, None, 1.0)
    assert [sample.id for sample in evaluation.baseline_samples] == ["s", "l", "s", "s", "l"]
    assert [(sample.id, sample.baseline) for sample in evaluation] == [("s", False), ("l", False)]
    assert complete.documents_cut == 0
    players = ["closed book", "whole document", "retrieval"]
    assert list(evaluation.rows) == ["problems", *(f"{player}, problems" for player in players)]
    assert (agent.fits_window, agent.measures_reading) == (1, False)
    assert "measures_reading" not in [note.code for note in evaluation.notes]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(item["set"], item["player"], item["baseline"]) for item in summary["evaluations"]] == [
        ("problems", "overwrite", False)
    ]
    assert [(item["player"], item["baseline"]) for item in summary["baselines"]] == [(item, True) for item in players]
    logged = read_samples(tmp_path / "samples.jsonl")[0]
    assert len(logged) == 7
    assert sum(sample.baseline for sample in logged) == 5


def test_a_set_whose_documents_all_fit_is_marked(tiny_model_folder: Path, tmp_path: Path) -> None:
    evaluation = evaluated(tiny_model_folder, SHORT, out=tmp_path)
    assert evaluation["problems"].measures_reading
    (reading,) = [note for note in evaluation.notes if note.code == "measures_reading"]
    assert reading.values == {"names": "problems"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [item.get("measures_reading") for item in summary["evaluations"]] == [True]
    assert [item.get("measures_reading") for item in summary["baselines"]] == [None, None]


def test_baselines_change_nothing_of_the_agents(tiny_model_folder: Path) -> None:
    alone, along = (evaluated(tiny_model_folder, SHORT + LONG, baselines=item) for item in (False, True))
    assert alone.baselines == ()
    assert alone.samples == along.samples
    assert alone.summaries == tuple(replace(item, fits_window=None) for item in along.summaries)
    assert alone.accuracy == along.accuracy


def test_a_log_continues_with_and_without_baselines(tiny_model_folder: Path, tmp_path: Path) -> None:
    played = [evaluated(tiny_model_folder, SHORT, out=tmp_path, baselines=item).played for item in (False, True, True)]
    assert played == [1, 2, 0]


@pytest.mark.parametrize(("policy", "left"), [("full_context", ["closed book"]), ("closed_book", ["whole document"])])
def test_a_requested_policy_is_no_second_baseline(tiny_model_folder: Path, policy: str, left: list[str]) -> None:
    evaluation = palimpsest.evaluate(tiny_model_folder, SHORT, policy=policy, quiet=True)
    assert [item.cell.player for item in evaluation.baselines] == left


def test_problems_without_documents_have_closed_book(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = palimpsest.evaluate(tiny_model_folder, "synthetic_search", policy="prune", limit=1, objectives=2)
    (closed,) = evaluation.baselines
    assert closed.cell == Cell("synthetic_search", 2, "objectives", "closed book", baseline=True)
    assert closed.graded == 1
    assert [item.fits_window for item in evaluation.summaries] == [None]
    assert "baselines: closed book on 1 problem (--no-baselines skips them)" in capsys.readouterr().err


def baselines_of(codec: Codec, config: RunConfig, agent: PolicyConfig, window: int, problems: Any = SHORT) -> list[Any]:
    engine: Any = SimpleNamespace(codec=codec, sampler=SimpleNamespace(max_context=window))
    return with_baselines([], {part("set"): problems}, config, [agent], engine, lambda _: None)


@pytest.mark.parametrize(
    ("reward", "window", "prompts"),
    [("boxed", 8192, "standard"), ("boxed", 512, "short"), ("final_answer", 8192, "final")],
)
def test_baselines_have_the_rewards_prompts(tiny_codec: Codec, reward: str, window: int, prompts: str) -> None:
    config = RunConfig.model_validate({"reward": {"name": reward}})
    agent = PolicyConfig(name="overwrite", options={"answer_tokens": 12})
    policies = [item.policy for item in baselines_of(tiny_codec, config, agent, window)]
    assert [(policy.prompts, policy.answer_tokens) for policy in policies] == [(prompts, 12)] * 2


@pytest.mark.parametrize(("agents", "expected"), [(64, 64), (16, 32)])
def test_baselines_have_the_agents_question_budget(tiny_codec: Codec, agents: int, expected: int) -> None:
    full = {"name": "full_context", "options": {"question_tokens": 32, "prompts": "short"}}
    config = RunConfig.model_validate({"evaluation": {"baselines": {"full_window": full}}})
    agent = PolicyConfig(name="overwrite", options={"question_tokens": agents, "answer_tokens": 12})
    assert baselines_of(tiny_codec, config, agent, 512)[1].policy.question_tokens == expected


def retrieval_of(codec: Codec, agent: PolicyConfig, problems: list[palimpsest.Problem]) -> list[Any]:
    """Entries of retrieval for a window of 512 tokens."""
    entries = baselines_of(codec, RunConfig(), agent, 512, problems)
    return [item for item in entries if item.cell.player == "retrieval"]


def test_retrieval_has_as_many_tokens_as_the_agents_longest_turn_and_its_questions_budget(tiny_codec: Codec) -> None:
    agent = PolicyConfig(name="overwrite", options=BUDGETS)
    (entry,) = retrieval_of(tiny_codec, agent, SHORT + LONG)
    context = build_policy(agent).required_context(tiny_codec)
    assert entry.policy.required_context(tiny_codec) == context < 512
    assert (entry.policy.question_tokens, entry.policy.answer_tokens) == (64, 8)
    assert entry.policy.passage_tokens <= entry.policy.window_tokens // 4
    assert [problem.id for problem in entry.problems] == ["s", "l"]


def test_options_of_retrieval_are_those_of_the_configurations_baseline_with_its_policy(tiny_model_folder: Path) -> None:
    def tokens(**settings: Any) -> int:
        matches = palimpsest.evaluate(
            tiny_model_folder, chunks=4, limit=1, overrides={**BUDGETS, **settings}, quiet=True
        )
        (sample,) = [item for item in matches.baseline_samples if item.player == "retrieval"]
        return sample.prompt_tokens

    added = {"name": "passages", "options": {"window_tokens": 12, "passage_tokens": 9}}
    assert tokens(**{"evaluation.baselines.retrieval": added}) < tokens()


def test_retrieval_is_not_played_where_every_document_fits_the_agents_context(tiny_codec: Codec) -> None:
    agent = PolicyConfig(name="overwrite", options=BUDGETS)
    assert retrieval_of(tiny_codec, agent, SHORT) == []
    assert retrieval_of(tiny_codec, agent, [problem("none", None)]) == []


def test_retrieval_has_the_window_of_the_agent(tiny_codec: Codec) -> None:
    for name in ("full_context", "closed_book"):
        options = {"question_tokens": 64, "answer_tokens": 8, "prompts": "short"}
        (entry,) = retrieval_of(tiny_codec, PolicyConfig(name=name, options=options), LONG)
        assert entry.policy.required_context(tiny_codec) == 512
    assert retrieval_of(tiny_codec, PolicyConfig(name="passages", options=options), LONG) == []


def test_problems_with_a_memory_have_no_baseline(tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = [palimpsest.Problem("m", "Who?", ("Bob",), "Bob likes tea.", memory="Ann.")]
    evaluation = palimpsest.evaluate(tiny_model_folder, started, overrides=BUDGETS)
    assert evaluation.baselines == ()
    assert "no baselines: problems begin with a memory" in capsys.readouterr().err
