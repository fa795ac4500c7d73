"""What the API says of episodes, turns and groups of every kind of agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from palimpsest.events import Event, Plain, Replayed, SamplerFailed
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory
from palimpsest.viewer.analysis.event_labels import STATES
from palimpsest.viewer.screens.episode_screen import blame_view, episode_view, search_view
from palimpsest.viewer.screens.group_screen import Opened, group_view
from palimpsest.viewer.screens.turn_screen import token_view, turn_view
from support.views import LETTERS, as_json, episodes, opened, read, reading

NAMES = sorted(episodes())
ROME = "Ann lives in Rome."


def everything(group: Opened) -> list[Any]:
    """All values of a group."""
    values = [as_json(group_view(group))]
    for rollout, trajectory in enumerate(group.group.trajectories):
        values.append(as_json(episode_view(group, rollout)))
        for turn in range(len(trajectory.turns)):
            values += [as_json(view(group, rollout, turn)) for view in (turn_view, blame_view, token_view)]
    return values


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_agent_has_something_to_show(name: str) -> None:
    group = episodes()[name]
    assert everything(group)
    view = episode_view(group, 0)
    assert [row["turn"] for row in view["turns"]] == list(range(len(group.group.trajectories[0].turns)))
    assert all(row["state"] in STATES and row["state"] == row["marks"][0] for row in view["turns"])
    for turn in range(len(view["turns"])):
        assert turn_view(group, 0, turn)["pieces"], "a turn without anything that was read"


@pytest.mark.parametrize("name", ["overwrite", "recall", "retrieval"])
def test_the_memory_that_an_episode_begins_with_is_empty(name: str) -> None:
    group = episodes()[name]
    assert group.story(0).trajectory.turns[0].piece("memory"), "the policy's words for it"
    view = turn_view(group, 0, 0)
    assert (view["memory"]["before"], view["memory"]["before_tokens"], view["counts"]["dropped"]) == ("", 0, 0)
    assert not [part for part in view["diff"] if part["origin"] == "dropped"]


def test_a_memory_that_says_no_more_than_the_policys_words_for_an_empty_one_is_empty() -> None:
    view = turn_view(reading(("It rains.", "none"), ("It snows.", ROME), ("It is dry.", "none of it")), 0, 0)
    assert (view["memory"]["before"], view["memory"]["after"], view["diff"]) == ("", "", [])


def test_a_memory_that_the_problem_brings_is_one() -> None:
    group = reading((ROME, f"none {ROME}")).group
    brought = Opened(replace(group, problem=replace(group.problem, memory="none")), LETTERS)
    assert turn_view(brought, 0, 0)["memory"]["before"] == "none"


@pytest.mark.parametrize("name", NAMES)
def test_a_record_read_back_shows_the_same(name: str, tmp_path: Any) -> None:
    group = episodes()[name]
    path = tmp_path / "episodes.jsonl.zst"
    path.write_bytes(encode_groups([group.group]))
    (read_back,) = read_groups(path).groups
    assert everything(Opened(read_back, group.codec)) == everything(Opened(group.group, group.codec))


def test_the_pieces_of_a_turn_read_as_its_memories() -> None:
    for group in episodes().values():
        for step in group.story(0).steps:
            view = turn_view(group, 0, step.turn)
            after = "".join(part["text"] for part in view["diff"] if part["origin"] != "dropped")
            assert after == view["memory"]["after"]
            sources = {piece["name"]: piece["text"] for piece in view["pieces"]} | {"memory": view["memory"]["before"]}
            for part in view["diff"]:
                if part.get("source"):
                    start, end = part["source"]["characters"]
                    assert sources[part["source"]["name"]][start:end].strip()


def test_the_strip_tells_where_evidence_was_seen_gained_and_lost() -> None:
    group = reading((f"Fog. {ROME}", ROME), ("It rains.", ROME), ("Bo ran.", "Bo ran."), evidence=[ROME])
    rows = episode_view(group, 0)["turns"]
    assert [(row["seen"], row["gained"], row["held"], row["lost"]) for row in rows] == [
        ([0], [0], [0], []),
        ([], [], [0], []),
        ([], [], [], [0]),
    ]
    assert [row["state"] for row in rows] == ["wrote", "kept", "wrote"]
    assert [row["offset"] for row in rows] == [0, len(f"Fog. {ROME}"), len(f"Fog. {ROME}It rains.")]
    assert turn_view(group, 0, 2)["diff"][0] == {
        "origin": "dropped",
        "text": ROME,
        "tokens": [0, len(ROME)],
        "evidence": [0],
    }


def test_an_invented_sentence_is_told_in_strip_and_turn() -> None:
    group = reading((ROME, f"{ROME} Bo flies."), ("It rains.", ROME))
    assert [row["state"] for row in episode_view(group, 0)["turns"]] == ["invented", "wrote"]
    view = turn_view(group, 0, 0)
    (one,) = view["invented"]
    assert view["memory"]["after"][slice(*one["characters"])] == one["text"] == "Bo flies."
    assert view["counts"]["nowhere"] == 2


def test_sentences_made_of_words_in_sight_are_invented_without_an_invented_word() -> None:
    view = turn_view(
        reading(
            ("Ann lives here. Bo sings.", "Ann sings."),
        ),
        0,
        0,
    )
    assert [one["text"] for one in view["invented"]] == ["Ann sings."]
    assert view["counts"]["nowhere"] == 0


def test_what_failed_is_told_first() -> None:
    turn = read(0, ROME, "none", ROME)
    failed = Event(SamplerFailed(0, "gone"), 1)
    own = Event(Plain("looked_up", {"pages": 3}), 0)
    view = episode_view(opened(Trajectory("p", "g", 0, (turn,), Outcome.SAMPLER_FAILED, None, (own, failed))), 0)
    assert view["turns"][0]["marks"] == ["failed", "wrote"]
    assert view["before"] == ["looked_up: pages: 3"]


def test_blame_is_of_the_memory_held_after_a_turn() -> None:
    group = reading((ROME, ROME), ("It rains.", ROME))
    answer = read(2, "", ROME, "Rome", name="answer")
    trajectory = replace(group.group.trajectories[0], turns=(*group.group.trajectories[0].turns, answer))
    assert blame_view(opened(trajectory), 0, 2)["after"] in (1, 2)
    assert [one["turn"] for one in blame_view(group, 0, 1)["spans"]] == [0]


def test_memories_are_searched_without_case_and_line_breaks() -> None:
    group = reading((ROME, "none"), ("Fog.", "Bo ran.\nAnn  lives."), ("Fog.", "ann LIVES here."))
    assert search_view(group, 0, "Ann\nlives")["turns"] == [1, 2]
    assert search_view(group, 0, " ")["turns"] == []


def test_rollouts_of_a_group_stand_side_by_side_until_their_memories_part() -> None:
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


def test_a_prompt_without_named_pieces_is_shown_whole() -> None:
    (piece,) = turn_view(episodes()["nothing named"], 0, 0)["pieces"]
    assert (piece["name"], piece["text"], piece["whole"]) == ("prompt", "ABC", True)


def test_a_reply_that_was_cut_is_told() -> None:
    turn = replace(read(0, ROME, "none", ROME), completion=Completion((65,), (-0.1,), StopReason.LENGTH))
    view = episode_view(opened(Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, "x")), 0)
    assert "truncated" in view["turns"][0]["marks"]


@pytest.mark.parametrize("view", [turn_view, blame_view, token_view])
def test_a_turn_that_is_not_there_is_an_index_error(view: Any) -> None:
    for rollout, turn, says in ((0, 99, "turn 99"), (7, 0, "rollout 7"), (0, -1, "turn -1")):
        with pytest.raises(IndexError, match=says):
            view(episodes()["overwrite"], rollout, turn)


def test_a_replay_is_told_apart_and_its_edited_memory_was_not_invented_by_the_agent() -> None:
    known = reading(("Fog.", "Ann flies."), ("It rains.", "Ann flies."))
    (one,) = known.group.trajectories
    event = Event(Replayed("g, rollout 0", 1, "Ann flies."), 1)
    group = replace(known.group, trajectories=(one, replace(one, events=(event,))), grades=known.group.grades * 2)
    both = Opened(group, LETTERS)
    views = [episode_view(both, rollout) for rollout in (0, 1)]
    assert [view["replayed"] for view in views] == [None, "replayed from turn 2 with another memory"]
    assert [row["replayed"] for row in group_view(both)["rollouts"]] == [view["replayed"] for view in views]
    marks = [view["turns"][0]["marks"] for view in views]
    assert ["invented" in each for each in marks] == [True, False]
    assert ["edited" in each for each in marks] == [False, True]
