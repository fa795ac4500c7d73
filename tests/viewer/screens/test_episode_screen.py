"""The view of an episode: its turns, the fate of its evidence, search, for every kind of agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.events import Event, Plain, Replayed, SamplerFailed
from palimpsest.metrics.memory_metrics import evidence_retention
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.types import Completion, Outcome, Problem, StopReason, Trajectory
from palimpsest.viewer.analysis.event_labels import STATES
from palimpsest.viewer.records.recorded_episodes import IdsCodec
from palimpsest.viewer.screens.episode_screen import EvidenceStatus, blame_view, episode_view, fates, search_view
from palimpsest.viewer.screens.group_screen import Opened, group_view
from palimpsest.viewer.screens.turn_screen import token_view, turn_view
from support.views import LETTERS, as_json, episodes, opened, read, reading, texts

NAMES = sorted(episodes())


def everything(group: Opened) -> list[Any]:
    """All values of a group."""
    values = [as_json(group_view(group))]
    for rollout, trajectory in enumerate(group.group.trajectories):
        values.append(as_json(episode_view(group, rollout)))
        for turn in range(len(trajectory.turns)):
            values += [as_json(view(group, rollout, turn)) for view in (turn_view, blame_view, token_view)]
    return values


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_agent_has_turns_with_states_and_pieces(name: str) -> None:
    group = episodes()[name]
    assert everything(group)
    view = episode_view(group, 0)
    assert [row["turn"] for row in view["turns"]] == list(range(len(group.group.trajectories[0].turns)))
    assert all(row["state"] in STATES and row["state"] == row["marks"][0] for row in view["turns"])
    for turn in range(len(view["turns"])):
        assert turn_view(group, 0, turn)["pieces"], "a turn without anything that was read"


ROME, BO = "Ann lives in Rome.", "Bo is old."
IDS: Any = IdsCodec()


@pytest.mark.parametrize("name", NAMES)
def test_a_record_that_is_read_back_has_the_same_views(name: str, tmp_path: Any) -> None:
    group = episodes()[name]
    path = tmp_path / "episodes.jsonl.zst"
    path.write_bytes(encode_groups([group.group]))
    (read_back,) = read_groups(path).groups
    assert everything(Opened(read_back, group.codec)) == everything(Opened(group.group, group.codec))


def test_turns_name_the_evidence_read_gained_held_and_lost() -> None:
    group = reading((f"Fog. {ROME}", ROME), ("It rains.", ROME), ("Bo ran.", "Bo ran."), evidence=[ROME])
    rows = episode_view(group, 0)["turns"]
    assert [(row["seen"], row["gained"], row["held"], row["lost"]) for row in rows] == [
        ([0], [0], [0], []),
        ([], [], [0], []),
        ([], [], [], [0]),
    ]
    assert [row["state"] for row in rows] == ["wrote", "kept", "wrote"]
    assert [row["offset"] for row in rows] == [0, len(f"Fog. {ROME}"), len(f"Fog. {ROME}It rains.")]
    dropped = {"origin": "dropped", "text": ROME, "tokens": [0, len(ROME)], "evidence": [0]}
    assert turn_view(group, 0, 2)["diff"][0] == dropped


def test_failures_truncation_and_invention_are_the_first_marks() -> None:
    turn = read(0, ROME, "none", ROME)
    failed = Event(SamplerFailed(0, "gone"), 1)
    custom = Event(Plain("looked_up", {"pages": 3}), 0)
    view = episode_view(opened(Trajectory("p", "g", 0, (turn,), Outcome.SAMPLER_FAILED, None, (custom, failed))), 0)
    assert view["turns"][0]["marks"] == ["failed", "wrote"]
    assert view["before"] == ["looked_up: pages: 3"]
    turn = replace(turn, completion=Completion((65,), (-0.1,), StopReason.LENGTH))
    view = episode_view(opened(Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED, "x")), 0)
    assert "truncated" in view["turns"][0]["marks"]
    view = episode_view(reading((ROME, f"{ROME} Bo flies."), ("It rains.", ROME)), 0)
    assert [row["state"] for row in view["turns"]] == ["invented", "wrote"]


def test_blame_is_of_the_memory_after_a_turn() -> None:
    group = reading((ROME, ROME), ("It rains.", ROME))
    answer = read(2, "", ROME, "Rome", name="answer")
    trajectory = replace(group.group.trajectories[0], turns=(*group.group.trajectories[0].turns, answer))
    assert blame_view(opened(trajectory), 0, 2)["after"] in (1, 2)
    assert [one["turn"] for one in blame_view(group, 0, 1)["spans"]] == [0]


def test_memories_are_searched_without_case_and_line_breaks() -> None:
    group = reading((ROME, "none"), ("Fog.", "Bo ran.\nAnn  lives."), ("Fog.", "ann LIVES here."))
    assert search_view(group, 0, "Ann\nlives")["turns"] == [1, 2]
    assert search_view(group, 0, " ")["turns"] == []


def test_a_replay_is_labelled_and_its_edited_memory_is_not_invented() -> None:
    original = reading(("Fog.", "Ann flies."), ("It rains.", "Ann flies."))
    (one,) = original.group.trajectories
    event = Event(Replayed("g, rollout 0", 1, "Ann flies."), 1)
    group = replace(original.group, trajectories=(one, replace(one, events=(event,))), grades=original.group.grades * 2)
    both = Opened(group, LETTERS)
    views = [episode_view(both, rollout) for rollout in (0, 1)]
    assert [view["replayed"] for view in views] == [None, "replayed from turn 2 with another memory"]
    assert [row["replayed"] for row in group_view(both)["rollouts"]] == [view["replayed"] for view in views]
    marks = [view["turns"][0]["marks"] for view in views]
    assert ["invented" in item for item in marks] == [True, False]
    assert ["edited" in item for item in marks] == [False, True]


def test_evidence_is_followed_from_the_turn_that_reads_it_to_the_one_that_loses_it() -> None:
    turns = [(ROME, "none"), (f"Fog. {ROME}", ROME), (BO, f"{ROME} {BO}"), ("It rains.", BO), (ROME, f"{BO} {ROME}")]
    (one,) = fates(reading(*turns, evidence=[ROME]).story(0))
    assert (one.seen, one.written, one.survived, one.gained, one.lost) == ((0, 1, 4), 1, 4, (1, 4), (3,))
    assert (one.verdict.value, one.used) == ("held", True)


@pytest.mark.parametrize(
    ("turns", "verdict"),
    [
        ([(BO, BO)], "unseen"),
        ([(ROME, BO)], "not written"),
        ([(ROME, ROME), (BO, BO)], "lost"),
        ([(ROME, ROME)], "held"),
    ],
)
def test_the_verdict_is_the_state_at_the_end(turns: list[tuple[str, str]], verdict: str) -> None:
    (one,) = fates(reading(*turns, evidence=[ROME], answer="Oslo").story(0))
    assert (one.verdict.value, one.used) == (verdict, False)


def test_without_a_tokenizer_the_fate_is_unknown() -> None:
    group = reading((ROME, ROME), evidence=[ROME])
    story = Opened(group.group, IDS).story(0)
    (one,) = fates(story)
    assert (one.verdict, one.seen, one.held, one.lost) == (EvidenceStatus.UNKNOWN, (), (), ())
    assert story.invented(0) is None


def test_a_tool_result_in_the_last_prompt_is_in_sight() -> None:
    problem = Problem("p", "?", ("tea",), None, {"evidence": ["Alice drinks tea."]})
    opened = episodes()["tool_window"]
    story = type(opened.story(0))(problem, episodes()["full_context"].group.trajectories[0], opened.texts)
    assert [one.verdict.value for one in fates(story)] == ["in sight"]


def test_evidence_in_a_recalled_memory_is_in_sight() -> None:
    opened_group = reading((ROME, ROME), (BO, BO), evidence=[ROME])
    answer = read(2, "", BO, "Rome", name="answer", recalled=ROME)
    played = opened_group.group.trajectories[0]
    spans = {name: span for name, span in answer.spans.items() if name != "section"}
    turns = (*played.turns, replace(answer, spans=spans))
    (one,) = fates(opened(replace(played, turns=turns), {"evidence": [ROME]}).story(0))
    assert (one.lost, one.recalled, one.verdict.value) == ((1,), (2,), "in sight")


@given(st.lists(st.tuples(texts(), texts()), min_size=1, max_size=5), st.lists(texts(), max_size=2))
def test_evidence_in_memory_equals_the_measures(turns: list[tuple[str, str]], evidence: list[str]) -> None:
    evidence = [f"{text.replace('.', '')} end." for text in evidence if "\n" not in text]
    opened = reading(*((section, f"{memory} {' '.join(evidence[:1])}") for section, memory in turns), evidence=evidence)
    story = opened.story(0)
    result = [one for one in fates(story) if one.evidence.kind == "evidence"]
    for number, step in enumerate(story.steps):
        held = [one for one in result if number in one.held]
        if result:
            assert evidence_retention(story.problem, step.after.text) == pytest.approx(len(held) / len(result))


@pytest.mark.parametrize("name", sorted(episodes()))
def test_fates_of_every_policy_equal_its_measures(name: str) -> None:
    story = episodes()[name].story(0)
    result = fates(story)
    for step in story.steps:
        held = [one for one in result if one.evidence.in_text(step.after)]
        retention = evidence_retention(story.problem, step.after.text)
        assert retention is None or retention == pytest.approx(len(held) / len(result))
