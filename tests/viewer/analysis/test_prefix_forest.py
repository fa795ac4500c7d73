"""The prefix forest of a group, compared with a count of distinct prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import palimpsest
from palimpsest.config.schema import CreditConfig
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.token_costs import common_length
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from palimpsest.viewer.analysis.prefix_forest import Computed, prefix_forest
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens.group_screen import Opened
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.small_run import small_run
from support.views import LETTERS, episodes

IDS = st.lists(st.integers(1, 2), max_size=5)


def trajectory(prompts: Sequence[Sequence[int]]) -> Trajectory:
    turns = (
        Turn(tuple(prompt), Completion((7,), (-0.5,), StopReason.STOP), step, "act")
        for step, prompt in enumerate(prompts)
    )
    return Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED)


def test_a_shared_prefix_is_one_node() -> None:
    forest = prefix_forest([trajectory([(1, 2, 3)]), trajectory([(1, 2, 4)])])
    assert [(forest.tokens(node), node.rows, node.parent) for node in forest.nodes] == [
        ((1, 2), (0, 2), None),
        ((3, 7), (0, 1), 0),
        ((4, 7), (1, 2), 0),
    ]
    assert [node.trained for node in forest.nodes] == [0, 1, 1]
    assert (forest.logical_tokens, forest.physical_tokens) == (8, 6)


@given(st.lists(st.lists(IDS, min_size=1, max_size=3), max_size=4))
def test_every_distinct_prefix_is_in_one_node(group: list[list[list[int]]]) -> None:
    trajectories = [trajectory(prompts) for prompts in group]
    forest = prefix_forest(trajectories)
    rows = [segment.token_ids for one in trajectories for segment in segments_of(one)]
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert forest.physical_tokens == len(prefixes)
    assert sorted(row.tokens for row in forest.rows) == sorted(rows)
    for node in forest.nodes:
        assert node.parent is None or forest.nodes[node.parent].end == node.start
        assert len({row.tokens[: node.end] for row in forest.rows[slice(*node.rows)]}) == 1
        assert node.end > node.start


def test_long_sequences_are_compared_in_blocks() -> None:
    assert common_length((1,) * 700, (1,) * 600) == 600
    assert common_length((1,) * 700 + (2,), (1,) * 700 + (3,)) == 700


@pytest.mark.parametrize("group_size", [2, 4])
def test_token_counts_of_a_group_are_those_of_training_metrics(
    group_size: int, tmp_path: Path, tiny_model_folder: Path
) -> None:
    signal = {"reward.name": "support.rewards:every_second", "reward.unsupported_penalty": 0.0, "credit.overlong": None}
    settings = {**small_run(tiny_model_folder), **signal, "train.group_size": group_size}
    palimpsest.train("memagent-quickstart", settings, seed=1, out=tmp_path / "run", quiet=True)
    answers = ViewerApi(Library([tmp_path / "run"]))
    for row in map(orjson.loads, (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()):
        forest = answers.get(f"/api/runs/run/steps/{row['step']}/groups/0")["forest"]
        of = forest["computed"]
        assert of["logical_tokens"] == row["policy/logical_tokens"] < forest["logical_tokens"]
        assert of["physical_tokens"] == row["policy/physical_tokens"]


def test_nothing_is_computed_of_a_group_without_a_signal() -> None:
    played = [trajectory([(1, 2, 3)]), trajectory([(1, 2, 4)])]
    problem, credit = Problem("p", "?", ("a",)), CreditConfig()
    equal = Opened(Group(problem, tuple(played), (Grade(1.0), Grade(1.0))), LETTERS, credit)
    other = Opened(Group(problem, tuple(played), (Grade(1.0), Grade(0.0))), LETTERS, credit)
    assert equal.computed == Computed(0, 0, 0)
    assert other.computed == Computed(2, 6, 4)
    assert Opened(equal.group, LETTERS).computed is None
    drawn = credit.model_copy(update={"segments_per_group": {}})
    assert Opened(equal.group, LETTERS, drawn).computed is None


def test_every_kind_of_agent_has_a_forest() -> None:
    for opened in episodes().values():
        forest = prefix_forest(opened.group.trajectories)
        assert sum(node.trained for node in forest.nodes) <= forest.physical_tokens <= forest.logical_tokens
