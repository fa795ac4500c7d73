"""The view of a group: rollouts next to each other."""

from __future__ import annotations

from dataclasses import replace

from palimpsest.types import Grade, Group, Problem
from palimpsest.viewer.screens.group_screen import Opened, group_view
from support.views import LETTERS, as_json, reading

ROME = "Ann lives in Rome."


def test_rollouts_of_a_group_share_a_column_until_their_memories_differ() -> None:
    first, second = (
        reading((ROME, ROME), ("Bo ran.", end)).group.trajectories[0] for end in (f"{ROME} Bo ran.", "Bo ran.")
    )
    problem = Problem("p", "Where does Ann live?", ("Rome",), None, {"evidence": [ROME]})
    group = Opened(Group(problem, (first, replace(second, rollout=1)), (Grade(1.0), Grade(0.0))), LETTERS)
    view = as_json(group_view(group))
    assert [part["memories"] for part in view["parts"]] == [1, 2]
    assert view["first_parting"] == 1
    assert [row["advantage"] for row in view["rollouts"]] == [0.5, -0.5]
    assert [[cell["held"] for cell in row["cells"]] for row in view["rollouts"]] == [[[0], [0]], [[0], []]]
    assert view["forest"]["logical_tokens"] > view["forest"]["physical_tokens"]
