"""Where the words of a memory first came from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.memory_diff import WordOrigin
from palimpsest.viewer.analysis.word_origins import blame
from palimpsest.viewer.screens.group_screen import Opened
from support.views import LETTERS, episodes, reading, texts

ROME, BO, TEA = "Ann lives in Rome.", "Bo is old.", "Cy drinks tea."


def told(story: Story, number: int) -> list[tuple[str, int, int, str, int | None]]:
    return [(one.text.strip(), one.turn, one.age, one.origin.value, one.offset) for one in blame(story, number)]


def test_a_kept_sentence_is_from_the_turn_that_took_it_in_with_its_place_in_the_document() -> None:
    fog = "Fog. "
    story = reading((f"{fog}{ROME}", ROME), (BO, f"{ROME} {BO}"), ("It rains.", f"{ROME} {BO}")).story(0)
    before = len(f"{fog}{ROME}")
    assert told(story, 2) == [(ROME, 0, 2, "section", len("Fog.")), (BO, 1, 1, "section", before)]


def test_what_moved_within_the_memory_keeps_its_origin() -> None:
    story = reading((ROME, ROME), (BO, f"{ROME} {BO}"), ("It rains.", f"{BO} {ROME}")).story(0)
    assert {(one.turn, one.origin) for one in blame(story, 2)} == {(0, WordOrigin.SECTION), (1, WordOrigin.SECTION)}


def test_an_invented_word_stays_invented_however_old_it_is() -> None:
    story = reading((ROME, "Ann lives in Oslo."), (BO, f"Ann lives in Oslo. {BO}")).story(0)
    assert told(story, 1)[:2] == [("Ann lives in", 0, 1, "section", 0), ("Oslo.", 0, 1, "nowhere", None)]


def test_what_was_held_before_the_first_turn_is_from_no_turn() -> None:
    group = reading(("It rains.", "none")).group
    story = Opened(replace(group, problem=replace(group.problem, memory="none")), LETTERS).story(0)
    assert told(story, 0) == [("none", -1, 0, "memory", None)]


@given(st.lists(st.tuples(texts(), texts()), min_size=1, max_size=5))
def test_every_id_has_one_origin_and_it_is_the_step_that_brought_the_word(turns: list[tuple[str, str]]) -> None:
    story = reading(*turns).story(0)
    for number, step in enumerate(story.steps):
        found = blame(story, number)
        assert [place for one in found for place in range(*one.tokens)] == list(range(len(step.after.ids)))
        for one in found:
            source = None if one.source is None else story.words(dict(story.sight(one.turn))[one.source.name])
            keys = story.words(step.after).keys[slice(*one.words)]
            assert source is None or source.keys[slice(*(one.source or one).words)] == keys
            assert one.age == number - max(one.turn, 0)


@pytest.mark.parametrize("name", sorted(episodes()))
def test_memories_of_every_policy_can_be_blamed(name: str) -> None:
    story = episodes()[name].story(0)
    for number, step in enumerate(story.steps):
        size = len(story.words(step.after).ids)
        assert [place for one in blame(story, number) for place in range(*one.tokens)] == list(range(size))
