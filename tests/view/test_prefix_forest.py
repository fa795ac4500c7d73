"""The prefix forest of a group, beside a count of distinct prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from palimpsest.rollout.segments import segments_of
from palimpsest.types import Completion, Outcome, StopReason, Trajectory, Turn
from palimpsest.view.prefix_forest import common_length, prefix_forest
from support.views import episodes

IDS = st.lists(st.integers(1, 2), max_size=5)


def trajectory(prompts: Sequence[Sequence[int]]) -> Trajectory:
    turns = (
        Turn(tuple(prompt), Completion((7,), (-0.5,), StopReason.STOP), step, "act")
        for step, prompt in enumerate(prompts)
    )
    return Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED)


def test_what_rows_share_is_one_node() -> None:
    forest = prefix_forest([trajectory([(1, 2, 3)]), trajectory([(1, 2, 4)])])
    assert [(forest.tokens(node), node.rows, node.parent) for node in forest.nodes] == [
        ((1, 2), (0, 2), None),
        ((3, 7), (0, 1), 0),
        ((4, 7), (1, 2), 0),
    ]
    assert [node.trained for node in forest.nodes] == [0, 1, 1]
    assert (forest.logical_tokens, forest.physical_tokens) == (8, 6)


@given(st.lists(st.lists(IDS, min_size=1, max_size=3), max_size=4))
def test_each_distinct_prefix_is_in_one_node(group: list[list[list[int]]]) -> None:
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


def test_every_kind_of_agent_has_one() -> None:
    for opened in episodes().values():
        forest = prefix_forest(opened.group.trajectories)
        assert sum(node.trained for node in forest.nodes) <= forest.physical_tokens <= forest.logical_tokens
