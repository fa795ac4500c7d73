"""ATIF: the texts of a segment's steps are its tokens, and ids and log-probabilities are those of the turns."""

from __future__ import annotations

import json

import pytest

from palimpsest.events import EnvironmentFailed, Event
from palimpsest.memory.edit import EditPolicy
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Grade, Group, Outcome, Trajectory
from palimpsest.viewer.export.atif import VERSION, atif
from support.agents import SMALL, base_codec, call, played, search, world


@pytest.mark.parametrize("edits", [False, True])
def test_steps_are_the_segments_of_an_episode(edits: bool) -> None:
    edit = [call("drop", blocks=["a"])] if edits else []
    trajectory, _ = played(EditPolicy(**SMALL), [search("Alice"), search("Bob"), *edit, "FINAL_ANSWER: tea"])
    codec = base_codec()
    made = atif(Group(world(), (trajectory,), (Grade(1.0),)), 0, codec, "a model")
    assert json.dumps(made)
    assert (made["schema_version"], made["extra"]["reward"]) == (VERSION, 1.0)
    assert [step["step_id"] for step in made["steps"]] == list(range(1, len(made["steps"]) + 1))
    agents = [step for step in made["steps"] if step["source"] == "agent"]
    for turn, step in zip(trajectory.turns, agents, strict=True):
        assert step["metrics"]["prompt_token_ids"] == list(turn.prompt_ids)
        assert step["metrics"]["completion_token_ids"] == list(turn.completion.token_ids)
        assert step["metrics"]["logprobs"] == list(turn.completion.logprobs)
        assert step["message"] == codec.decode(turn.completion.token_ids, control=False)
    segments = segments_of(trajectory)
    assert {step["extra"]["segment"] for step in made["steps"] if step["source"] == "user"} == set(range(len(segments)))
    assert len(segments) == 1 + edits
    first = [step for step in made["steps"] if step["source"] == "user" and step["extra"]["segment"] == 0]
    shown = "".join(step["message"] for step in first)
    assert shown.startswith(codec.decode(trajectory.turns[0].prompt_ids))
    assert "Alice drinks tea" in shown


def test_events_before_the_first_reply_are_at_the_root() -> None:
    failed = Event(EnvironmentFailed("no game"), 0)
    trajectory = Trajectory("p", "g", 0, (), Outcome.ENVIRONMENT_FAILED, "", (failed,))
    made = atif(Group(world(), (trajectory,), (Grade(None, reason="lost"),)), 0, base_codec(), "a model")
    assert made["extra"]["events"] == [{"kind": "environment_error", "message": "no game", "where": ""}]
