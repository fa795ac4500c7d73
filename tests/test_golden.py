"""Tiny runs of the three methods play the recorded episodes again, token by token (`tests/golden`)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from support.command import Run
from support.golden import RUNS, differences, episodes_of, golden


@pytest.mark.parametrize("name", ["memagent", "memact", pytest.param("rememr1", marks=pytest.mark.slow)])
def test_a_run_plays_the_recorded_episodes(name: str, palimpsest: Run, tmp_path: Path) -> None:
    done = palimpsest("train", *RUNS[name], "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    found = differences(golden(name), episodes_of(tmp_path / "run"))
    assert not found, "\n".join(found[:10])


@pytest.mark.parametrize("name", RUNS)
def test_the_records_hold_what_the_methods_do(name: str) -> None:
    """A record of failures alone would hold nothing."""
    episodes = golden(name)
    assert len(episodes) >= 24
    assert "answered" in {episode["outcome"] for episode in episodes}
    assert len({episode["reward"] for episode in episodes}) > 1 or name == "rememr1"  # turn rewards vary there
    kinds = {kind for episode in episodes for kind in episode["events"]}
    assert kinds >= {"memagent": set(), "rememr1": {"memory", "recall"}, "memact": {"tool_call", "prune"}}[name]


@pytest.mark.parametrize(
    ("key", "value"), [("sampled", [1]), ("prompt", [1]), ("logprobs", [-9.0]), ("stop", "lost"), ("name", "other")]
)
def test_a_change_of_any_part_is_seen(key: str, value: object) -> None:
    recorded = golden("memagent")
    changed = copy.deepcopy(recorded)
    changed[3]["turns"][0][key] = value
    assert len(differences(recorded, changed)) == 1
    assert differences(recorded, copy.deepcopy(recorded)) == []


def test_the_last_bits_of_a_log_probability_are_the_machines() -> None:
    recorded = golden("memagent")
    changed = copy.deepcopy(recorded)
    changed[0]["turns"][0]["logprobs"][0] += 1e-5
    assert differences(recorded, changed) == []
