"""The fate of what an answer needs, beside what the measures say of the same episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.metrics.memory_metrics import evidence_retention, memory_steps, unsupported
from palimpsest.types import Problem, Question
from palimpsest.viewer.analysis.episode_timeline import evidence_of, span_of
from palimpsest.viewer.records.recorded_episodes import IdsCodec
from palimpsest.viewer.screens.episode_screen import EvidenceStatus, fates
from palimpsest.viewer.screens.group_screen import Opened
from support.views import LETTERS, episodes, opened, read, reading, texts

IDS: Any = IdsCodec()
ROME, BO = "Ann lives in Rome.", "Bo is old."


def test_a_sentence_is_followed_from_where_it_was_seen_to_where_it_was_lost() -> None:
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
def test_the_verdict_says_how_it_ended(turns: list[tuple[str, str]], verdict: str) -> None:
    (one,) = fates(reading(*turns, evidence=[ROME], answer="Oslo").story(0))
    assert (one.verdict.value, one.used) == (verdict, False)


def test_without_a_tokenizer_no_fate_is_known() -> None:
    known = reading((ROME, ROME), evidence=[ROME])
    story = Opened(known.group, IDS).story(0)
    (one,) = fates(story)
    assert (one.verdict, one.seen, one.held, one.lost) == (EvidenceStatus.UNKNOWN, (), (), ())
    assert story.invented(0) is None


def test_what_a_tool_brought_and_the_last_prompt_shows_is_in_sight() -> None:
    problem = Problem("p", "?", ("tea",), None, {"evidence": ["Alice drinks tea."]})
    opened = episodes()["tool_window"]
    story = type(opened.story(0))(problem, episodes()["full_context"].group.trajectories[0], opened.texts)
    assert [one.verdict.value for one in fates(story)] == ["in sight"]


def test_a_memory_that_is_recalled_for_the_answer_brings_it_back() -> None:
    opened_group = reading((ROME, ROME), (BO, BO), evidence=[ROME])
    answer = read(2, "", BO, "Rome", name="answer", recalled=ROME)
    played = opened_group.group.trajectories[0]
    spans = {name: span for name, span in answer.spans.items() if name != "section"}
    turns = (*played.turns, replace(answer, spans=spans))
    (one,) = fates(opened(replace(played, turns=turns), {"evidence": [ROME]}).story(0))
    assert (one.lost, one.recalled, one.verdict.value) == ((1,), (2,), "in sight")


def test_paragraphs_and_missing_evidence_are_looked_for_by_the_gold_answers() -> None:
    paragraph = {"evidence": ["Rome\nRome is old. It lies in Italy."]}
    assert [one.forms for one in evidence_of(Problem("p", "?", ("Italy", "Italia"), None, paragraph))] == [
        ("italy", "italia")
    ]
    assert [one.kind for one in evidence_of(Problem("p", "?", ("Italy",)))] == ["answer"]
    assert evidence_of(Problem("p", "?", ("yes",))) == ()
    asked = Problem.asking("p", (Question("Who?", ("Bo",)), Question("Old?", ("yes",))))
    assert [one.text for one in evidence_of(asked)] == ["Bo"]


@given(st.lists(st.tuples(texts(), texts()), min_size=1, max_size=5), st.lists(texts(), max_size=2))
def test_what_is_held_is_what_the_measures_say(turns: list[tuple[str, str]], evidence: list[str]) -> None:
    evidence = [f"{text.replace('.', '')} end." for text in evidence if "\n" not in text]
    opened = reading(*((section, f"{memory} {' '.join(evidence[:1])}") for section, memory in turns), evidence=evidence)
    story = opened.story(0)
    found = [one for one in fates(story) if one.evidence.kind == "evidence"]
    measured = memory_steps(story.problem, story.trajectory, LETTERS)
    for number, step in enumerate(measured):
        held = tuple(at for at, one in enumerate(found) if number in one.held)
        assert held == step.held
        if found:
            assert step.retention == pytest.approx(len(held) / len(found))
        assert story.invented(number) == step.unsupported


@pytest.mark.parametrize("name", sorted(episodes()))
def test_every_policy_is_told_as_it_is_measured(name: str) -> None:
    story = episodes()[name].story(0)
    found = fates(story)
    for step in story.steps:
        held = [one for one in found if one.evidence.in_text(step.after)]
        retention = evidence_retention(story.problem, step.after.text)
        assert retention is None or retention == pytest.approx(len(held) / len(found))
    for number, step in enumerate(story.steps):
        assert step.reading is None or story.invented(number) == unsupported(step.reading)


def test_a_place_is_found_across_white_space_and_case_between_words() -> None:
    text = "Joann lives. ANN\n  lives in Rome."
    assert span_of("ann lives in rome.", text) == (13, len(text))
    assert span_of("ann lived", text) is None
