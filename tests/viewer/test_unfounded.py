"""What was invented stays marked for as long as a memory holds it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from palimpsest.viewer.analysis.memory_diff import WordOrigin
from palimpsest.viewer.analysis.word_origins import blame
from palimpsest.viewer.screens.episode_screen import episode_view
from palimpsest.viewer.screens.group_screen import Opened
from palimpsest.viewer.screens.turn_screen import turn_view
from support.views import reading, texts

ROME, OSLO, BO = "Ann lives in Rome.", "Ann lives in Oslo.", "Bo is old."


def parts(opened: Opened, turn: int) -> list[tuple[str, str, int | None]]:
    told = turn_view(opened, 0, turn)["diff"]
    return [(part["origin"], part["text"].strip(), part.get("since")) for part in told if part["origin"] != "dropped"]


def test_an_invented_word_is_marked_at_every_turn_that_keeps_it() -> None:
    opened = reading((ROME, OSLO), (BO, f"{OSLO} {BO}"), ("Fog.", f"{OSLO} {BO}"), ("Fog.", f"{BO} {OSLO}"))
    assert parts(opened, 0) == [("section", "Ann lives in", None), ("nowhere", "Oslo.", None)]
    assert parts(opened, 1) == [("kept", "Ann lives in", None), ("unfounded", "Oslo.", 0), ("section", BO, None)]
    assert ("unfounded", "Oslo.", 0) in parts(opened, 2)
    assert ("unfounded", "Oslo.", 0) in parts(opened, 3)  # moved
    assert turn_view(opened, 0, 2)["counts"]["unfounded"] == 1


def test_an_invented_sentence_is_named_for_as_long_as_it_is_held() -> None:
    opened = reading((ROME, OSLO), (BO, f"{OSLO} {BO}"), ("Fog.", BO))
    assert [one["text"] for one in turn_view(opened, 0, 0)["invented"]] == [OSLO]
    assert turn_view(opened, 0, 0)["unfounded"] == []
    (held,) = turn_view(opened, 0, 1)["unfounded"]
    assert (held["text"], held["turn"], held["characters"]) == (OSLO, 0, [0, len(OSLO)])
    assert turn_view(opened, 0, 2)["unfounded"] == []
    assert [row["unfounded"] for row in episode_view(opened, 0)["turns"]] == [0, 1, 0]


def test_what_was_read_is_never_marked() -> None:
    opened = reading((ROME, ROME), (BO, f"{ROME} {BO}"), ("Fog.", f"{ROME} {BO}"))
    assert all(origin != "unfounded" for turn in range(3) for origin, _, _ in parts(opened, turn))


@given(st.lists(st.tuples(texts(), texts()), min_size=1, max_size=5))
def test_it_is_what_blame_says_of_each_word(turns: list[tuple[str, str]]) -> None:
    opened = reading(*turns)
    story: Any = opened.story(0)
    for number, step in enumerate(story.steps):
        blamed = {
            word: one.turn
            for one in blame(story, number)
            if one.origin is WordOrigin.NOWHERE
            for word in range(*one.words)
        }
        assert dict(opened.unfounded(0).words(number)) == blamed
        diff, since = opened.unfounded(0).marked(number)
        assert diff.applied(step.before.ids) == step.after.ids
        marked = {
            word
            for piece, turn in zip(diff.pieces, since, strict=True)
            if turn is not None
            for word in range(*piece.words)
        }
        assert marked <= {word for word, turn in blamed.items() if turn < step.turn}
