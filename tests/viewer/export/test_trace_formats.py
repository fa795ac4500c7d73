"""Steps of ATIF and branches of verifiers are the segments, with the ids and log-probabilities that were sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.events import EnvironmentFailed, Event
from palimpsest.memory.edit import EditPolicy
from palimpsest.rollout.segments import segments_of
from palimpsest.types import Grade, Group, Outcome, Trajectory
from palimpsest.viewer.export.trace_formats import TRACES, VERSION, atif, verifiers_episode
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


# ---- Traces of verifiers -------------------------------------------------------------------------------------


def episode(edits: bool, grade: Grade) -> tuple[Any, dict[str, Any]]:
    edit = [call("drop", blocks=["a"])] if edits else []
    trajectory, _ = played(EditPolicy(**SMALL), [search("Alice"), search("Bob"), *edit, "FINAL_ANSWER: tea"])
    group = Group(world(), (trajectory,), (grade,))
    return trajectory, json.loads(json.dumps(verifiers_episode(group, 0, base_codec(), "a model")))


def paths(nodes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Nodes from a root to each leaf."""
    leaves = set(range(len(nodes))) - {node["parent"] for node in nodes}
    found = list[list[dict[str, Any]]]()
    for leaf in sorted(leaves):
        at, path = leaf, list[dict[str, Any]]()
        while at is not None:
            path.insert(0, nodes[at])
            at = nodes[at]["parent"]
        found.append(path)
    return found


@pytest.mark.parametrize("edits", [False, True])
def test_branches_are_the_segments_of_an_episode(edits: bool) -> None:
    trajectory, made = episode(edits, Grade(0.5, breakdown={"em": 1.0}))
    (trace,) = made["traces"]
    branches, segments = paths(trace["nodes"]), segments_of(trajectory)
    assert len(branches) == len(segments) == 1 + edits
    for path, segment in zip(branches, segments, strict=True):
        assert [token for node in path for token in node["token_ids"]] == list(segment.token_ids)
        assert [sampled for node in path for sampled in node["mask"]] == list(segment.loss_mask)
    assert len(trace["calls"]) == len(trajectory.turns)
    assert (trace["rewards"], trace["metrics"], trace["ok"]) == ({"reward": {"score": 0.5}}, {"em": 1.0}, True)


def test_an_ungraded_episode_has_no_reward() -> None:
    (trace,) = episode(False, Grade(None, reason="no gold"))[1]["traces"]
    assert (trace["rewards"], trace["ok"], trace["info"]["reason"]) == ({}, False, "no gold")


def test_verifiers_reads_it(tmp_path: Path) -> None:
    store = pytest.importorskip("verifiers.v1.utils.trace_store")
    from verifiers.v1.trace import WireTrace

    trajectory, made = episode(True, Grade(0.5))
    (tmp_path / TRACES).write_text(json.dumps(made) + "\n")
    (read,) = store.read_episodes(tmp_path, WireTrace)
    branches = read.traces[0].branches
    for branch, segment in zip(branches, segments_of(trajectory), strict=True):
        assert (branch.token_ids, branch.sampled_mask) == (list(segment.token_ids), list(segment.loss_mask))
    assert read.traces[0].reward == 0.5
