"""The difference of two memories: it gives the later of the earlier, and every id of it has one origin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.viewer.analysis.memory_diff import Dropped, MemoryDiff, PromptSource, WordOrigin, WordPiece, memory_diff
from palimpsest.viewer.analysis.token_words import Spelling
from support.views import LETTERS, texts, words

SPELLING = Spelling(LETTERS)


def diff(before: str, after: str, lost: Any = None, **sources: str) -> MemoryDiff:
    named = [PromptSource(name.replace("_", ":"), words(SPELLING, text)) for name, text in sources.items()]
    return memory_diff(words(SPELLING, before), words(SPELLING, after), named, lost)


def told(found: MemoryDiff) -> list[tuple[str, str]]:
    return [("dropped" if isinstance(one, Dropped) else one.origin.value, one.text.strip()) for one in found.in_order]


def test_each_word_is_told_where_it_is_from() -> None:
    found = diff(
        "Ann lives in Rome. Bo sat. Cy ran off fast.",
        "Ann lives in Oslo. Cy ran off fast. Dee sings. Bo sat. Where? Eve wins.",
        section="Fog. Now Ann lives in Oslo, by the sea.",
        recalled="Dee sings.",
        question="Where is she?",
    )
    assert told(found) == [
        ("kept", "Ann lives in"),
        ("dropped", "Rome. Bo sat."),
        ("section", "Oslo."),
        ("kept", "Cy ran off fast."),
        ("recalled", "Dee sings."),
        ("memory", "Bo sat."),
        ("question", "Where?"),
        ("nowhere", "Eve wins."),
    ]


def test_a_piece_knows_where_in_its_source_it_stands() -> None:
    section = "Fog. Now Ann lives in Oslo, by the sea."
    (piece,) = diff("", "ann lives in Oslo.", section=section).pieces
    assert piece.source is not None
    assert section[slice(*piece.source.characters)] == " Ann lives in Oslo,"
    assert LETTERS.decode(LETTERS.encode(section)[slice(*piece.source.tokens)]) == " Ann lives in Oslo,"


def test_of_equal_places_the_one_with_the_same_neighbour_is_taken() -> None:
    section = "Bo drinks tea. Ann drinks tea."
    found = diff("Ann", "Ann drinks tea.", section=section)
    source = found.pieces[-1].source
    assert source is not None
    assert source.characters[0] == section.index("Ann drinks") + len("Ann")


def test_the_longest_run_wins_over_the_order_of_sources() -> None:
    found = diff("x", "y Ann lives here.", section="Ann came.", recalled="Ann lives here.")
    assert told(found)[-1] == ("recalled", "Ann lives here.")


def test_of_equal_runs_the_first_source_wins_over_one_whose_neighbour_matches_too() -> None:
    found = diff("she lives in Oslo.", "she lives in Rome.", section="Rome is big.", question="Who is in Rome?")
    assert told(found)[-1] == ("section", "Rome.")


@pytest.mark.parametrize("name", ["section", "document", "result_a"])
def test_a_tool_result_and_a_document_are_what_was_read(name: str) -> None:
    assert told(diff("", "Ann ran.", **{name: "Ann ran."})) == [("section", "Ann ran.")]


def test_lost_evidence_is_told_of_what_was_dropped() -> None:
    before = "Bo sings. Ann lives in Rome."
    found = diff(before, "Bo runs.", lost={0: (before.index("Ann"), len(before))})
    assert [(one.text, one.evidence) for one in found.dropped] == [(" sings.", ()), (" Ann lives in Rome.", (0,))]


def test_nothing_is_called_invented_where_sight_is_unknown() -> None:
    found = memory_diff(words(SPELLING, "Ann ran."), words(SPELLING, "Ran Ann. Bo sat."), None)
    assert {piece.origin for piece in found.pieces} <= {WordOrigin.KEPT, WordOrigin.MEMORY, WordOrigin.UNKNOWN}
    assert "".join(one.text for one in found.pieces if one.origin is WordOrigin.UNKNOWN) == " Bo sat."


@given(before=texts(), after=texts(), section=texts(), recalled=texts(), question=texts())
def test_applied_to_the_memory_before_it_gives_the_memory_after(
    before: str, after: str, section: str, recalled: str, question: str
) -> None:
    found = diff(before, after, section=section, recalled=recalled, question=question)
    assert found.applied(LETTERS.encode(before)) == tuple(LETTERS.encode(after))


@given(before=texts(), after=texts(), section=texts(), lost=st.integers(0, 8))
def test_every_id_of_either_memory_is_told_of_once(before: str, after: str, section: str, lost: int) -> None:
    found = diff(before, after, lost={3: (lost, lost + 6)}, section=section)
    assert [place for piece in found.pieces for place in range(*piece.tokens)] == list(range(len(after)))
    kept = [place for one in found.pieces if one.origin is WordOrigin.KEPT for place in range(*_source(one).tokens)]
    gone = [place for one in found.dropped for place in range(*one.tokens)]
    assert sorted([*kept, *gone]) == list(range(len(before)))


@given(before=texts(), after=texts(), section=texts())
def test_what_is_invented_is_the_complement_of_what_was_in_sight(before: str, after: str, section: str) -> None:
    found = diff(before, after, section=section)
    memory = words(SPELLING, after)
    seen = {*words(SPELLING, before).keys, *words(SPELLING, section).keys}
    for piece in found.pieces:
        for key in memory.keys[slice(*piece.words)]:
            assert (piece.origin is WordOrigin.NOWHERE) == (key not in seen)


@given(before=texts(), after=texts(), section=texts())
def test_words_of_a_source_are_those_words(before: str, after: str, section: str) -> None:
    held = {"memory": words(SPELLING, before), "section": words(SPELLING, section)}
    memory = words(SPELLING, after)
    for piece in diff(before, after, section=section).pieces:
        if piece.source is not None:
            assert held[piece.source.name].keys[slice(*piece.source.words)] == memory.keys[slice(*piece.words)]


def _source(piece: WordPiece) -> Any:
    assert piece.source is not None
    return piece.source
