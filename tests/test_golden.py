"""Tiny runs of the three methods play the recorded episodes again, token by token (`tests/golden`)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from support.command import Run
from support.golden import FAR, ROUNDED, RUNS, differences, episodes_of, golden


@pytest.mark.parametrize("name", ["memagent", "memact", pytest.param("rememr1", marks=pytest.mark.slow)])
def test_a_run_plays_the_recorded_episodes(name: str, palimpsest: Run, tmp_path: Path) -> None:
    done = palimpsest("train", *RUNS[name], "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    fields = differences(golden(name), episodes_of(tmp_path / "run"), ROUNDED.get(name, 0.0))
    assert not fields, "\n".join(fields[:10])


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
def test_a_change_of_any_field_is_a_difference(key: str, value: object) -> None:
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


@pytest.mark.parametrize(("share", "nats", "differs"), [(0.09, 1e-3, 0), (0.11, 1e-3, 0.11), (0.001, FAR, 0.001)])
def test_what_training_amplifies_may_be_off_in_few_log_probabilities_and_by_little(
    share: float, nats: float, differs: float
) -> None:
    recorded = golden("rememr1")
    changed = copy.deepcopy(recorded)
    turns = [turn for episode in changed for turn in episode["turns"]]
    places = [(turn, index) for turn in turns for index in range(len(turn["logprobs"]))]
    for turn, index in places[: round(share * len(places))]:
        turn["logprobs"][index] -= nats
    assert len(differences(recorded, changed, ROUNDED["rememr1"])) == round(differs * len(places))


def test_a_reward_is_never_rounded() -> None:
    recorded = golden("rememr1")
    changed = copy.deepcopy(recorded)
    changed[0]["reward"] += 1e-9
    assert len(differences(recorded, changed, ROUNDED["rememr1"])) == 1
