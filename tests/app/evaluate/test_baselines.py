"""The question alone, the whole document and retrieval, next to every agent and never in its figures."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import palimpsest
from palimpsest.app.evaluate.baselines import READING, plan_baselines
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.memory.registry import build_policy
from palimpsest.text.codec import Codec
from support.command import Run

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8, "prompts": "short"}


def problem(name: str, document: str | None) -> palimpsest.Problem:
    return palimpsest.Problem(name, "Who likes tea?", ("Bob",), document)


SHORT, LONG = [problem("s", "Bob likes tea.")], [problem("l", "Bob likes tea. " * 900)]


def evaluated(model: Path, problems: list[palimpsest.Problem], **options: Any) -> palimpsest.Evaluation:
    return palimpsest.evaluate(model, problems, overrides=BUDGETS, quiet=True, **options)


def test_all_are_played_beside_the_agent_and_kept_apart(tiny_model_folder: Path, tmp_path: Path) -> None:
    evaluation = evaluated(tiny_model_folder, SHORT + LONG, out=tmp_path)
    closed, whole, retrieval = evaluation.baselines
    assert [summary.name for summary in evaluation.summaries] == ["problems"]
    assert (closed.name, closed.problems) == ("problems, closed book", 2)
    assert (whole.name, whole.problems) == ("problems, whole document", 1)  # where it fits
    assert (retrieval.name, retrieval.problems, retrieval.turns_per_document) == ("problems, retrieval", 2, 1.0)
    assert [sample.id for sample in evaluation.baseline_samples] == ["s", "l", "s", "s", "l"]
    assert [(sample.id, sample.baseline) for sample in evaluation] == [("s", None), ("l", None)]
    assert whole.documents_cut == 0
    (row,) = evaluation.rows
    assert (row.fits_window, row.measures_reading, evaluation.measures_reading) == (1, False, ())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [each["name"] for each in summary["evaluations"]] == ["problems"]
    assert [each["baseline"] for each in summary["baselines"]] == ["closed book", "whole document", "retrieval"]
    logged = read_samples(tmp_path / "samples.jsonl")[0]
    assert len(logged) == 7
    assert sum(sample.baseline is not None for sample in logged) == 5


def test_a_set_whose_documents_all_fit_is_marked(tiny_model_folder: Path, tmp_path: Path) -> None:
    evaluation = evaluated(tiny_model_folder, SHORT, out=tmp_path)
    assert evaluation.measures_reading == ("problems",)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [each.get("note") for each in summary["evaluations"]] == [READING]
    assert [each.get("note") for each in summary["baselines"]] == [None, None]


def test_baselines_change_nothing_of_the_agents(tiny_model_folder: Path) -> None:
    alone, beside = (evaluated(tiny_model_folder, SHORT + LONG, baselines=each) for each in (False, True))
    assert alone.baselines == ()
    assert (alone.samples, alone.summaries) == (beside.samples, beside.summaries)
    assert alone.accuracy == beside.accuracy


def test_a_log_goes_on_with_and_without_them(tiny_model_folder: Path, tmp_path: Path) -> None:
    evaluated(tiny_model_folder, SHORT, out=tmp_path, baselines=False)
    assert len(read_samples(tmp_path / "samples.jsonl")[0]) == 1
    assert evaluated(tiny_model_folder, SHORT, out=tmp_path).played == 2
    assert evaluated(tiny_model_folder, SHORT, out=tmp_path).played == 0


@pytest.mark.parametrize(("policy", "left"), [("full_context", ["closed book"]), ("closed_book", ["whole document"])])
def test_what_is_asked_for_itself_is_not_played_twice(tiny_model_folder: Path, policy: str, left: list[str]) -> None:
    evaluation = palimpsest.evaluate(tiny_model_folder, SHORT, policy=policy, quiet=True)
    assert [row.baseline for row in evaluation.baseline_rows] == left


def test_problems_without_a_document_have_a_closed_book_alone_which_the_reward_can_read(
    palimpsest: Run, tiny_model_folder: Path, tmp_path: Path
) -> None:
    words = ("--policy", "prune", "--model", str(tiny_model_folder), "--data", "synthetic_search")
    done = palimpsest("eval", *words, "--limit", "1", "--objectives", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "baseline: 2 objectives, closed book" in done.stdout
    assert "beside it, baselines: closed book on 1 problems (--no-baselines leaves them out)" in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [each["baseline"] for each in summary["baselines"]] == ["closed book"]


@pytest.mark.parametrize(
    ("reward", "window", "prompts"),
    [("boxed", 8192, "standard"), ("boxed", 512, "short"), ("final_answer", 8192, "final")],
)
def test_they_ask_for_what_the_reward_reads_with_the_agents_budget(
    tiny_codec: Codec, reward: str, window: int, prompts: str
) -> None:
    config = RunConfig.model_validate({"reward": {"name": reward}})
    engine: Any = SimpleNamespace(codec=tiny_codec, sampler=SimpleNamespace(max_context=window))
    agent = PolicyConfig(name="overwrite", options={"answer_tokens": 12})
    baselines = plan_baselines({"set": SHORT}, config, [agent], engine, lambda _: None)
    policies: list[Any] = [each.episodes.policy for each in baselines.planned]
    assert [policy.prompts for policy in policies] == [prompts] * 2
    assert [policy.answer_tokens for policy in policies] == [12] * 2


@pytest.mark.parametrize(("agents", "expected"), [(64, 64), (16, 32)])
def test_a_budget_that_was_raised_for_the_agents_questions_holds_for_the_recipes_baseline(
    tiny_codec: Codec, agents: int, expected: int
) -> None:
    own = {"full_window": {"name": "full_context", "options": {"question_tokens": 32, "prompts": "short"}}}
    config = RunConfig.model_validate({"evaluation": {"baselines": own}})
    engine: Any = SimpleNamespace(codec=tiny_codec, sampler=SimpleNamespace(max_context=512))
    agent = PolicyConfig(name="overwrite", options={"question_tokens": agents, "answer_tokens": 12})
    baselines = plan_baselines({"set": SHORT}, config, [agent], engine, lambda _: None)
    policies: list[Any] = [each.episodes.policy for each in baselines.planned]
    assert policies[1].question_tokens == expected


def planned(codec: Codec, agent: PolicyConfig, window: int, problems: list[palimpsest.Problem]) -> list[Any]:
    """Retrieval's sets, next to `agent`."""
    engine: Any = SimpleNamespace(codec=codec, sampler=SimpleNamespace(max_context=window))
    found = plan_baselines({"set": problems}, RunConfig(), [agent], engine, lambda _: None)
    return [each.episodes for each in found.planned if each.episodes.baseline == "retrieval"]


def test_retrieval_has_as_many_tokens_as_the_agents_longest_turn_and_its_questions_budget(tiny_codec: Codec) -> None:
    agent = PolicyConfig(name="overwrite", options=BUDGETS)
    (episodes,) = planned(tiny_codec, agent, 512, SHORT + LONG)
    context = build_policy(agent).required_context(tiny_codec)
    assert episodes.policy.required_context(tiny_codec) == context < 512
    assert (episodes.policy.question_tokens, episodes.policy.answer_tokens) == (64, 8)
    assert episodes.policy.passage_tokens <= episodes.policy.window_tokens // 4
    assert [problem.id for problem in episodes.problems] == ["s", "l"]


def test_options_of_retrieval_are_those_of_the_configurations_baseline_with_its_policy(
    palimpsest: Run, tiny_model_folder: Path, tmp_path: Path
) -> None:
    def tokens(out: Path, *settings: str) -> int:
        budgets = [f"{name}={value}" for name, value in BUDGETS.items()]
        words = [word for setting in (*budgets, *settings) for word in ("--set", setting)]
        data = ("--chunks", "4", "--limit", "1", "--out", str(out))
        done = palimpsest("eval", "--model", str(tiny_model_folder), *data, *words)
        assert "baseline: 4 chunks, retrieval" in done.stdout, done.stderr
        (sample,) = [each for each in read_samples(out / "samples.jsonl")[0] if each.baseline == "retrieval"]
        return sample.prompt_tokens

    own = "evaluation.baselines.retrieval={name: passages, options: {window_tokens: 12, passage_tokens: 9}}"
    assert tokens(tmp_path / "narrow", own) < tokens(tmp_path / "wide")


def test_retrieval_is_not_played_where_every_document_fits_the_agents_context(tiny_codec: Codec) -> None:
    agent = PolicyConfig(name="overwrite", options=BUDGETS)
    assert planned(tiny_codec, agent, 512, SHORT) == []
    assert planned(tiny_codec, agent, 512, [problem("none", None)]) == []


def test_retrieval_beside_what_takes_the_window_has_the_window(tiny_codec: Codec) -> None:
    for name in ("full_context", "closed_book"):
        options = {"question_tokens": 64, "answer_tokens": 8, "prompts": "short"}
        (episodes,) = planned(tiny_codec, PolicyConfig(name=name, options=options), 512, LONG)
        assert episodes.policy.required_context(tiny_codec) == 512
    assert planned(tiny_codec, PolicyConfig(name="passages", options=options), 512, LONG) == []


def test_problems_that_begin_with_a_memory_have_none_and_it_is_said(
    tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = [palimpsest.Problem("m", "Who?", ("Bob",), "Bob likes tea.", memory="Ann.")]
    evaluation = palimpsest.evaluate(tiny_model_folder, begun, overrides=BUDGETS)
    assert evaluation.baselines == ()
    assert "no baselines: problems begin with a memory" in capsys.readouterr().err
