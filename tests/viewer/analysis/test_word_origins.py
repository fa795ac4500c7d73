"""The origin of each word of a memory; invented words are marked while a memory has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.events import Event, MemoryWritten
from palimpsest.types import Outcome, Trajectory
from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.memory_diff import WordOrigin
from palimpsest.viewer.analysis.word_origins import blame
from palimpsest.viewer.screens.episode_screen import episode_view
from palimpsest.viewer.screens.group_screen import Opened
from palimpsest.viewer.screens.turn_screen import turn_view
from support.views import LETTERS, applied, episodes, opened, read, reading, texts

ROME, BO, TEA = "Ann lives in Rome.", "Bo is old.", "Cy drinks tea."
OSLO = "Ann lives in Oslo."


def origins(story: Story, number: int) -> list[tuple[str, int, int, str, int | None]]:
    return [(one.text.strip(), one.turn, one.age, one.origin.value, one.offset) for one in blame(story, number)]


def test_a_sentence_is_from_the_turn_that_read_it_with_its_position_in_the_document() -> None:
    fog = "Fog. "
    story = reading((f"{fog}{ROME}", ROME), (BO, f"{ROME} {BO}"), ("It rains.", f"{ROME} {BO}")).story(0)
    before = len(f"{fog}{ROME}")
    assert origins(story, 2) == [(ROME, 0, 2, "section", len("Fog.")), (BO, 1, 1, "section", before)]


def test_moved_sentences_have_the_same_origin() -> None:
    story = reading((ROME, ROME), (BO, f"{ROME} {BO}"), ("It rains.", f"{BO} {ROME}")).story(0)
    assert {(one.turn, one.origin) for one in blame(story, 2)} == {(0, WordOrigin.SECTION), (1, WordOrigin.SECTION)}


def test_an_old_invented_word_is_still_invented() -> None:
    story = reading((ROME, "Ann lives in Oslo."), (BO, f"Ann lives in Oslo. {BO}")).story(0)
    assert origins(story, 1)[:2] == [("Ann lives in", 0, 1, "section", 0), ("Oslo.", 0, 1, "nowhere", None)]


def test_a_word_is_from_the_sections_of_the_turns_that_the_memory_names() -> None:
    text = f"{ROME} Bo sings."
    replies = ((f"{BO}\n", "Bo sings."), (ROME, ROME), (f"Bo sings.{ROME}", text))
    turns = tuple(read(step, section, "none", reply, name="look") for step, (section, reply) in enumerate(replies))
    written = MemoryWritten(tuple(LETTERS.encode(text)), text, changed=True, sources=(0, 1))
    story = opened(Trajectory("p", "g", 0, turns, Outcome.ANSWERED, "Rome", (Event(written, 3),))).story(0)
    assert [step.turn for step in story.steps] == [2]
    found = [(one.text.strip(), one.origin.value, one.offset) for one in blame(story, 0)]
    assert found == [(ROME, "section", len(BO)), ("Bo", "section", 0), ("sings.", "nowhere", None)]
    assert story.invented(0) == ("Bo sings.",)


def test_the_memory_of_the_problem_is_from_no_turn() -> None:
    group = reading(("It rains.", "none")).group
    story = Opened(replace(group, problem=replace(group.problem, memory="none")), LETTERS).story(0)
    assert origins(story, 0) == [("none", -1, 0, "memory", None)]


@given(st.lists(st.tuples(texts(), texts()), min_size=1, max_size=5))
def test_every_id_has_one_origin_and_it_is_the_step_that_brought_the_word(turns: list[tuple[str, str]]) -> None:
    story = reading(*turns).story(0)
    for number, step in enumerate(story.steps):
        spans = blame(story, number)
        assert [position for one in spans for position in range(*one.tokens)] == list(range(len(step.after.ids)))
        for one in spans:
            source = None if one.source is None else story.words(dict(story.sight(one.turn))[one.source.name])
            keys = story.words(step.after).keys[slice(*one.words)]
            assert source is None or source.keys[slice(*(one.source or one).words)] == keys
            assert one.age == number - max(one.turn, 0)


@pytest.mark.parametrize("name", sorted(episodes()))
def test_memories_of_every_policy_have_origins(name: str) -> None:
    story = episodes()[name].story(0)
    for number, step in enumerate(story.steps):
        size = len(story.words(step.after).ids)
        assert [position for one in blame(story, number) for position in range(*one.tokens)] == list(range(size))


def pieces(opened: Opened, turn: int) -> list[tuple[str, str, int | None]]:
    diff = turn_view(opened, 0, turn)["diff"]
    return [(part["origin"], part["text"].strip(), part.get("since")) for part in diff if part["origin"] != "dropped"]


def test_an_invented_word_is_marked_at_every_turn_that_keeps_it() -> None:
    opened = reading((ROME, OSLO), (BO, f"{OSLO} {BO}"), ("Fog.", f"{OSLO} {BO}"), ("Fog.", f"{BO} {OSLO}"))
    assert pieces(opened, 0) == [("section", "Ann lives in", None), ("nowhere", "Oslo.", None)]
    assert pieces(opened, 1) == [("kept", "Ann lives in", None), ("unfounded", "Oslo.", 0), ("section", BO, None)]
    assert ("unfounded", "Oslo.", 0) in pieces(opened, 2)
    assert ("unfounded", "Oslo.", 0) in pieces(opened, 3)  # moved
    assert turn_view(opened, 0, 2)["counts"]["unfounded"] == 1


def test_an_invented_sentence_is_listed_while_the_memory_has_it() -> None:
    opened = reading((ROME, OSLO), (BO, f"{OSLO} {BO}"), ("Fog.", BO))
    assert [one["text"] for one in turn_view(opened, 0, 0)["invented"]] == [OSLO]
    assert turn_view(opened, 0, 0)["unfounded"] == []
    (line,) = turn_view(opened, 0, 1)["unfounded"]
    assert (line["text"], line["turn"], line["characters"]) == (OSLO, 0, [0, len(OSLO)])
    assert turn_view(opened, 0, 2)["unfounded"] == []
    assert [row["unfounded"] for row in episode_view(opened, 0)["turns"]] == [0, 1, 0]


def test_words_that_were_read_are_never_marked() -> None:
    opened = reading((ROME, ROME), (BO, f"{ROME} {BO}"), ("Fog.", f"{ROME} {BO}"))
    assert all(origin != "unfounded" for turn in range(3) for origin, _, _ in pieces(opened, turn))


@given(st.lists(st.tuples(texts(), texts()), min_size=1, max_size=5))
def test_unfounded_words_are_those_whose_origin_is_nowhere(turns: list[tuple[str, str]]) -> None:
    opened = reading(*turns)
    story: Any = opened.story(0)
    for number, step in enumerate(story.steps):
        invented = [one for one in blame(story, number) if one.origin is WordOrigin.NOWHERE]
        blamed = {word: one.turn for one in invented for word in range(*one.words)}
        assert dict(opened.unfounded(0).words(number)) == blamed
        diff, since = opened.unfounded(0).marked(number)
        assert applied(diff, step.before.ids) == step.after.ids
        marked = [piece for piece, turn in zip(diff.pieces, since, strict=True) if turn is not None]
        earlier = {word for word, turn in blamed.items() if turn < step.turn}
        assert {word for piece in marked for word in range(*piece.words)} <= earlier
