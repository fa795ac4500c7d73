"""Evaluation reads documents to their end, and what is cut anywhere is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest.app.config_resolution import Agent
from palimpsest.config.load import load_recipe, recipe_names
from palimpsest.memory.registry import evaluated
from palimpsest.runs.jsonl_rows import read_rows
from support.small_run import small_run

PUBLISHED = [name for name in recipe_names() if "max_chunks" in load_recipe(name, read_files=False).policy.options]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> palimpsest.Run:
    """One step on documents of which training reads one chunk of several; its evaluation reads them all."""
    settings = small_run(tiny_model_folder, max_steps=1, eval_steps=1) | {"evaluation.problems": 2}
    settings["policy.options"] = {**settings["policy.options"], "chunk_size": 16, "max_chunks": 1}
    return palimpsest.train("memagent-quickstart", settings, out=tmp_path_factory.mktemp("run") / "run", quiet=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_recipe_cuts_what_it_evaluates(name: str) -> None:
    config = load_recipe(name, read_files=False)
    assert "max_chunks" not in evaluated(config.policy).options
    assert Agent(recipe=name).config({}).policy.options.get("max_chunks") is None


@pytest.mark.parametrize("told", [{"max_chunks": 3}, {"policy.options.max_chunks": 3}])
def test_a_limit_that_an_evaluation_is_told_holds(told: dict[str, Any]) -> None:
    assert Agent(recipe="memagent-7b", overrides=told).config({}).policy.options["max_chunks"] == 3


def test_training_counts_what_it_cuts_and_its_evaluation_reads_to_the_end(run: palimpsest.Run) -> None:
    (row,) = read_rows(run.folder / "metrics.jsonl")
    episodes = int(2 * row["groups/played"])
    assert (row["episode/documents_cut"], row["episode/turns"], row["eval/documents_cut"]) == (episodes, 2, 0)
    warnings = [event["message"] for event in read_rows(run.folder / "events.jsonl") if event["kind"] == "warning"]
    assert sum(f"step 1: {episodes} episodes omitted a part of their document" in text for text in warnings) == 1


def test_an_evaluation_counts_what_it_was_told_to_cut(run: palimpsest.Run, tmp_path: Path) -> None:
    sizes: Any = {"chunks": 2, "limit": 2, "quiet": True}
    whole = palimpsest.evaluate(run, **sizes)
    assert whole.summaries[0].documents_cut == 0
    cut = palimpsest.evaluate(run, overrides={"max_chunks": 1}, out=tmp_path, baselines=False, **sizes)
    assert (cut.summaries[0].documents_cut, cut.table.column("documents cut")) == (2, [2])
    assert json.loads((tmp_path / "summary.json").read_text())["evaluations"][0]["documents_cut"] == 2
    assert whole.summaries[0].turns_per_document > cut.summaries[0].turns_per_document


def test_an_episode_says_how_much_of_its_document_was_read(run: palimpsest.Run) -> None:
    assert "of the document read" not in repr(run.play(chunks=2))
    assert "16 of " in repr(run.play(chunks=2, overrides={"max_chunks": 1})).partition("\n")[0]
