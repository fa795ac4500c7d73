"""`palimpsest probe`, on the model inside the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from palimpsest.app.config_resolution import Agent
from palimpsest.app.evaluate.length_probe import probe
from palimpsest.errors import ConfigError
from palimpsest.progress.reporter import Silent
from support.command import Run


def probed(agent: Agent, *, chunks: int = 4, lengths: Sequence[int] = (4,), limit: int = 6) -> dict[str, Any]:
    return probe(agent, chunks=chunks, lengths=lengths, limit=limit, progress=Silent())


def test_a_probe_counts_every_read_and_has_an_interval_for_every_length() -> None:
    matches = probed(Agent(recipe="memagent-quickstart"), lengths=[64, 4])
    assert sum(row["reads"] for row in matches["states"]) == matches["measured"][0]["reads"] == 24
    assert [row["chunks"] for row in matches["expected"]] == [4, 64]
    assert all(row["accuracy"] is None or 0 <= row["accuracy"] <= 1 for row in matches["expected"])
    assert all(0 <= row["low"] <= row["high"] <= 1 for row in matches["expected"])
    assert json.loads(json.dumps(matches))["measured"][0]["episodes"] == 6


def test_lengths_that_a_probe_does_not_predict_have_an_interval_and_no_accuracy() -> None:
    short, long = probed(Agent(recipe="memagent-quickstart"), lengths=[4, 1024])["expected"]
    assert (long["chunks"], long["accuracy"]) == (1024, None)
    assert 0 <= long["low"] < long["high"] <= 1
    for row in (short, long):
        assert (row["--limit"] is None) == (row["reads needed"] is None)


@pytest.mark.parametrize("policy", ["full_context", "prune", "closed_book"])
def test_what_writes_no_memory_is_refused_with_what_to_probe_instead(policy: str) -> None:
    with pytest.raises(ConfigError, match=rf"{policy}.*overwrite or recall"):
        probed(Agent(policy=policy), chunks=2, limit=2)


@pytest.mark.parametrize("wrong", [{"chunks": 10**9}, {"lengths": [4, 10**9]}])
def test_lengths_that_no_document_has_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--chunks, --predict: 1,000,000,000 is too long"):
        probed(Agent(), **wrong)


def test_the_command_prints_states_predictions_and_what_was_measured(palimpsest: Run) -> None:
    words = ("embedded", "--recipe", "memagent-quickstart", "--chunks", "4", "--limit", "6", "--predict", "4,1024")
    done = palimpsest("probe", *words)
    assert done.returncode == 0, done.stderr
    titles = [line.strip() for line in done.stdout.splitlines() if len(line.split()) == 1]
    assert titles == ["states", "expected", "measured"]
    refused = palimpsest("probe", "embedded", "--predict", "4,-1")
    assert "--predict 4,-1: expected lengths" in refused.stderr
