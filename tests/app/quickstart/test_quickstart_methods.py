"""Plans, recipes and results of the quickstarts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest.agents.open_agent import fitted
from palimpsest.app.quickstart.quickstart_plan import Grid, resolve_quickstart
from palimpsest.app.quickstart.quickstart_results import Results, lead, summary_json, write_report
from palimpsest.config.load import load_recipe, parse_config, quickstarts, recipe_names
from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import Entry
from palimpsest.evaluation.sample_log import Cell
from palimpsest.evaluation.summary import EvalSummary, score, summarise
from palimpsest.memory.policy_check import check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.reward.grading import check_reward

from support.agents import base_codec  # isort: skip
from support.evaluations import report_tables  # isort: skip

POLICIES = ("prune", "prune_before", "no_prune", "full_history", "sliding_window", "summary")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds_its_policies_and_its_grader(name: str) -> None:
    config = load_recipe(name)
    for policy in (config.policy, *config.evaluation.baselines.values(), *config.evaluation.trained_baselines.values()):
        build_policy(policy)
    check_reward(config.reward)


def grid(method: str, *overrides: str, seed: int | None = None) -> Grid:
    return Grid(resolve_quickstart(method, overrides, seed=seed).config)


@pytest.mark.parametrize("name", sorted(quickstarts()))
def test_every_player_of_a_method_has_a_label(name: str) -> None:
    plan = grid(name, seed=3)
    assert (plan.config.seed, grid(name, "seed=3").config.seed, grid(name).config.seed) == (3, 3, 0)
    assert list(plan.config.evaluation.labels) == list(plan.players)
    assert plan.config.evaluation.note


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        ("memagent", "data={train_files: a.json}", "data.train_files=a.json: .*data.documents.*data.val_files"),
        ("memagent", "data={train_files: synthetic_search}", r"evaluation.sizes=.* from 1 to data.search.people="),
        ("memact", "evaluation.sizes=[2, 25]", r"evaluation.sizes=\[2, 25\].* from 1 to data.search.people=24"),
        ("memact", "evaluation.sizes=[2, 2]", "use each number once"),
        ("memagent", "evaluation.sizes=[0, 1]", r"evaluation.sizes=\[0, 1\]"),
        ("memagent", "evaluation.sizes=[1, 1]", "use each number once"),
        ("rememr1", "evaluation.sizes=[12501]", "at most 100,000 chunks, and training reaches 8 chunks"),
        ("memagent", "data.curriculum.chunks=[4, 100001]", "data.curriculum.chunks.* to 100,000"),
    ],
)
def test_data_that_does_not_grow_and_sizes_beyond_it_are_rejected(method: str, setting: str, message: str) -> None:
    gone = ["data.curriculum=null", "data.search=null", "cold_start=null"] if setting.startswith("data=") else []
    with pytest.raises(ConfigError, match=message):
        resolve_quickstart(method, [*gone, setting])


@pytest.mark.parametrize(
    ("train", "test"), [("seeds", "seeds"), ("games/train.jsonl", "games/test.jsonl"), ("games/train.jsonl", "null")]
)
def test_an_environments_quickstart_needs_a_file_for_each_number_of_moves(train: str, test: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.val_files"):
        resolve_quickstart("textworld", [f"data.train_files={train}", f"data.val_files={test}"])


def test_a_number_of_moves_is_the_one_at_the_end_of_a_files_name(tmp_path: Path) -> None:
    folder = tmp_path / "v1.2"
    folder.mkdir()
    for name in ("train", "test-16"):
        (folder / f"{name}.jsonl").write_text(f'{{"id": "{name}", "question": "Go.", "answers": []}}\n')
    plan = grid("textworld", f"data.train_files={folder}/train.jsonl", f"data.val_files={folder}/test-4.jsonl")
    assert [problem.id for problem in plan.problems(16)] == ["test-16"]


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        ("memact", "baselines.prune={name: tool_window}", "baselines.prune: the agent has this name"),
        ("memact", "trained_baselines.prune_before={name: prune}", "the agent before training has this name"),
        ("rememr1", "baselines.overwrite={name: recall}", "evaluation.trained_baselines.overwrite has this name"),
        ("memagent", "trained_baselines.after={name: overwrite}", "after: can't be the name of its folder"),
        ("memagent", "labels.agent=retrieval by the question", "retrieval by the question is the label of two"),
        ("memagent", 'trained_baselines={"../x": {name: overwrite}}', "can't be the name of its folder"),
    ],
)
def test_names_of_policies_are_unique_and_valid_folders(method: str, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_quickstart(method, [f"evaluation.{setting}"])


def test_the_axis_of_questions_gives_problems_of_every_number() -> None:
    plan = grid("memact", "evaluation.problems=3")
    assert plan.points == (2, 4, 6, 8)
    for point in plan.points:
        assert [len(one.metadata["objectives"]) for one in plan.problems(point)] == [point] * 3
    assert (plan.planned, plan.telling, plan.axis.heading(plan.size(4), 6)) == (8, 8, "4 questions")


def test_the_largest_problems_are_played_first() -> None:
    entries = grid("memact", "evaluation.problems=1", "evaluation.sizes=[2, 8, 4]").entries(["prune"])
    assert [entry.cell.size for entry in sorted(entries, key=Entry.longest_first)] == [8, 4, 2]


def test_other_policies_that_read_have_fewer_problems_beyond_the_smallest_size() -> None:
    plan = grid("memagent", "evaluation.problems=6", "evaluation.sizes=[1, 4]", "evaluation.baseline_problems=3")
    counts = {(entry.cell.player, entry.cell.size): len(entry.problems) for entry in plan.entries(list(plan.players))}
    reading = {"agent_before": 3, "agent_ungrounded": 3}
    assert counts == {
        (name, size): 6 if size == 4 else reading.get(name, 6) for name in plan.players for size in (4, 16)
    }
    first, before = plan.entries(["agent", "agent_before"])[-2:]
    assert before.problems == first.problems[:3]
    assert plan.turns(["agent_before"]) == 6 * (4 + 1) + 3 * (16 + 1)


def test_shards_deal_every_nth_problem() -> None:
    plan = grid("memact", "evaluation.problems=5", "evaluation.sizes=[2]")
    complete = [problem.id for problem in plan.problems(2)]
    assert [[p.id for p in plan.entries(["prune"], at, 2)[0].problems] for at in (0, 1)] == [
        complete[0::2],
        complete[1::2],
    ]
    assert [plan.turns(["prune"], at, 2) for at in (0, 1)] == [9, 6]


@pytest.mark.parametrize(
    ("method", "point", "agent", "part"),
    [
        ("memagent", 16, "agent", ("synthetic", 64, "chunks")),
        ("memact", 6, "prune", ("synthetic_search", 6, "objectives")),
    ],
)
def test_cells_have_problem_sizes_and_one_agent(
    method: str, point: int, agent: str, part: tuple[str, int, str]
) -> None:
    plan = grid(method)
    cells = [plan.cell(name, point) for name in plan.players]
    assert [(cell.set, cell.size, cell.unit) for cell in cells] == [part] * len(cells)
    assert [cell.player for cell in cells if not cell.baseline] == [agent]
    assert len(set(cells)) == len(cells) > 3


def test_the_baselines_have_the_agents_tools_and_limits() -> None:
    config = load_recipe("memact-quickstart")
    added = {
        "no_prune": {"prune"},
        "full_history": {"prune", "context_tokens"},
        "sliding_window": {"window_tokens"},
        "summary": {"summary_tokens"},
    }
    for name, policy in config.evaluation.baselines.items():
        changed = {key for key, value in policy.options.items() if config.policy.options.get(key) != value}
        assert changed == added[name]
        assert set(config.policy.options) <= set(policy.options)


def test_an_override_of_an_alias_changes_one_value() -> None:
    text = "policy: {name: prune, options: &o {tools: {search: {topk: 3}}}}\n"
    text += "evaluation: {baselines: {plain: {name: prune, options: {<<: *o, prune: false}}}}"
    config = parse_config(text, overrides=["policy.options.tools.search.topk=5"])
    assert config.policy.options["tools"]["search"]["topk"] == 5
    assert config.evaluation.baselines["plain"].options == {"tools": {"search": {"topk": 3}}, "prune": False}
    with pytest.raises(ConfigError, match="given twice"):
        parse_config("seed: 1\nseed: 2")


@pytest.mark.parametrize("name", ["prune", "tool_window", "summary"])
def test_policies_with_tools_have_budgets_for_a_small_window_and_keep_the_contract_in_them(name: str) -> None:
    plan = grid("memact", "evaluation.problems=2")
    config, problems = plan.config, plan.problems(8)
    chosen = fitted(PolicyConfig(name=name), problems=problems, codec=base_codec(), max_context=1024)
    assert chosen.options["context_tokens"] == config.policy.options["context_tokens"]
    inputs = PolicyConfig(name=name, options={"context_tokens": 900})
    assert fitted(inputs, problems=problems, codec=base_codec(), max_context=1024).options["context_tokens"] == 900
    published = fitted(PolicyConfig(name=name), problems=problems, codec=base_codec(), max_context=32_768)
    assert published.options == {}
    policy: Any = build_policy(chosen)
    for problem in problems:
        policy.admit(problem, base_codec())
    assert not [one for one in check_policy(policy, base_codec(), 1024) if not one.passed]


def row(value: float, **measures: float) -> EvalSummary:
    return replace(
        summarise(Cell("synthetic_search", 2, "objectives", "prune"), ()),
        accuracy=score([value]),
        measures=measures,
        metrics={"all": value / 2, "each": value},
    )


def results(method: str, two: EvalSummary, last: int, further: EvalSummary) -> Results:
    plan = grid(method, f"evaluation.sizes=[2, {last}]")
    cells = {name: {2: two, last: further} for name in plan.players}
    return Results(
        grid=plan, trained=6, wall_s=60.0, cells=cells,
        rewards=[0.5], sizes=[2],
    )  # fmt: skip


def test_the_figures_of_pruning_are_those_measured_and_nothing_for_what_was_not() -> None:
    two = row(1.0, input_tokens=90.0, prunes=1.0, segments=2.0)
    figures = summary_json(results("memact", two, 8, row(0.5, prunes=4.0, segments=5.0)))
    assert figures["input_tokens_per_episode"] == {name: {"2": 90.0, "8": None} for name in POLICIES}
    assert figures["all_right"]["no_prune"] == {"2": 0.5, "8": 0.25}
    assert figures["answers_right"]["no_prune"] == {"2": 1.0, "8": 0.5}
    assert figures["prunes_per_episode"] == {"2": 1.0, "8": 4.0}
    assert (figures["mean_prunes_per_episode"], figures["mean_segments_per_trajectory"]) == (2.5, 3.5)
    assert summary_json(results("memact", row(0.0), 8, row(0.0)))["mean_prunes_per_episode"] is None


def test_figures_of_reading_are_before_and_after() -> None:
    two, last = row(1.0, copy_fidelity=0.75, recall_rate=1.0, recall_hit_rate=0.5), row(0.0)
    figures = summary_json(results("rememr1", two, 8, last))
    assert (figures["copy_fidelity"], figures["recall_hit_rate"]) == ({"before": 0.75, "after": 0.75}, 0.5)
    assert figures["recall_hit_rates"] == {"2": 0.5, "8": None}
    assert "dropped_share" not in figures
    assert "recall_hit_rate" not in summary_json(results("memagent", last, 8, last))


def test_a_report_of_search_problems_speaks_of_questions(tmp_path: Path) -> None:
    matches = results("memact", row(1.0), 8, row(0.0))
    write_report(tmp_path, matches)
    html = (tmp_path / "report.html").read_text("utf-8")
    assert "memact: an agent trained on up to 6 questions per problem, tested on up to 8 questions" in html
    accuracy = report_tables(html)[0]
    assert (accuracy[0][-1], accuracy[1][0]) == ("8 questions", "prunes, after RL")
    for word in ("chunk", "document", "fidelity"):
        assert word not in html.partition("<body>")[2].partition("<summary>Configuration")[0]
    assert "With 8 questions it is 0.0%" in lead(matches)
    assert "Training ended before its problems reached 8 questions" in lead(matches)


def test_games_of_each_size_are_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, moves in (("train", (4, 8)), ("test-4", (4, 4)), ("test-16", (16, 16))):
        rows = [{"id": f"{name}-{at}", "question": "q", "metadata": {"difficulty": n}} for at, n in enumerate(moves)]
        path = tmp_path / "games" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({**row, "answers": []}) + "\n" for row in rows))
    plan = grid("textworld", "evaluation.sizes=[4,16]")
    assert (plan.planned, plan.points, plan.telling) == (8, (4, 16), 16)
    assert [problem.id for problem in plan.problems(16)] == ["test-16-0", "test-16-1"]
    assert plan.cell("edit", 16).part == "textworld, 16 moves"
    assert len(plan.entries(["edit"])) == 2
    with pytest.raises(ConfigError, match=r"evaluation\.sizes"):
        grid("textworld", "evaluation.sizes=[0]")
