"""Words that two memories share, and the sources of others."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.viewer.analysis.memory_diff import (
    Dropped,
    MemoryDiff,
    PromptSource,
    WordOrigin,
    WordPiece,
    aligned,
    memory_diff,
)
from palimpsest.viewer.analysis.token_words import Spelling
from support.views import LETTERS, applied, texts, words

SEQUENCES = st.lists(st.integers(0, 6), max_size=40)


@given(before=SEQUENCES, after=SEQUENCES)
def test_aligned_runs_ascend_and_are_equal_in_both_texts(before: list[int], after: list[int]) -> None:
    done = (0, 0)
    for run in aligned(before, after):
        assert run.length > 0
        assert run.before >= done[0]
        assert run.after >= done[1]
        done = (run.before + run.length, run.after + run.length)
        assert before[run.before : done[0]] == after[run.after : done[1]]
    assert done[0] <= len(before)
    assert done[1] <= len(after)


@given(text=st.lists(st.integers(0, 50), max_size=60))
def test_a_text_is_aligned_with_itself(text: list[int]) -> None:
    assert sum(run.length for run in aligned(text, text)) == len(text)


def test_insertions_and_deletions_leave_the_rest_aligned() -> None:
    draw = random.Random(0)
    before = [draw.randrange(300) for _ in range(700)]
    after = [*before[:200], 1000, 1001, *before[200:500], *before[520:]]
    assert sum(run.length for run in aligned(before, after)) == 680


def test_a_common_word_among_different_ones_is_not_aligned() -> None:
    assert aligned(["a", "b", "c", "in", "d", "e", "f"], ["u", "v", "w", "in", "x", "y", "z"]) == []
    assert [run.length for run in aligned(["Ann", "toured", "Lima"], ["Bo", "toured", "Oslo"])] == [1]


def test_long_texts_of_few_words_are_compared_in_bounded_work() -> None:
    compared = 0

    class Word:
        def __init__(self, value: int) -> None:
            self.value = value

        def __hash__(self) -> int:
            return hash(self.value)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Word) and self.value == other.value

    draw = random.Random(1)
    before, after = ([Word(draw.randrange(30)) for _ in range(2000)] for _ in range(2))
    aligned(before, after)
    assert compared < 50_000


SPELLING = Spelling(LETTERS)


def diff(before: str, after: str, lost: Any = None, **sources: str) -> MemoryDiff:
    named = [PromptSource(name.replace("_", ":"), words(SPELLING, text)) for name, text in sources.items()]
    return memory_diff(words(SPELLING, before), words(SPELLING, after), named, lost)


def origins(result: MemoryDiff) -> list[tuple[str, str]]:
    return [("dropped" if isinstance(one, Dropped) else one.origin.value, one.text.strip()) for one in result.in_order]


def test_every_word_has_an_origin() -> None:
    result = diff(
        "Ann lives in Rome. Bo sat. Cy ran off fast.",
        "Ann lives in Oslo. Cy ran off fast. Dee sings. Bo sat. Where? Eve wins.",
        section="Fog. Now Ann lives in Oslo, by the sea.",
        recalled="Dee sings.",
        question="Where is she?",
    )
    assert origins(result) == [
        ("kept", "Ann lives in"),
        ("dropped", "Rome. Bo sat."),
        ("section", "Oslo."),
        ("kept", "Cy ran off fast."),
        ("recalled", "Dee sings."),
        ("memory", "Bo sat."),
        ("question", "Where?"),
        ("nowhere", "Eve wins."),
    ]


def test_a_piece_has_its_position_in_its_source() -> None:
    section = "Fog. Now Ann lives in Oslo, by the sea."
    (piece,) = diff("", "ann lives in Oslo.", section=section).pieces
    assert piece.source is not None
    assert section[slice(*piece.source.characters)] == " Ann lives in Oslo,"
    assert LETTERS.decode(LETTERS.encode(section)[slice(*piece.source.tokens)]) == " Ann lives in Oslo,"


def test_of_equal_places_the_one_with_the_same_neighbour_is_chosen() -> None:
    section = "Bo drinks tea. Ann drinks tea."
    source = diff("Ann", "Ann drinks tea.", section=section).pieces[-1].source
    assert source is not None
    assert source.characters[0] == section.index("Ann drinks") + len("Ann")


def test_the_longest_run_and_then_the_first_source_is_chosen() -> None:
    result = diff("x", "y Ann lives here.", section="Ann came.", recalled="Ann lives here.")
    assert origins(result)[-1] == ("recalled", "Ann lives here.")
    result = diff("she lives in Oslo.", "she lives in Rome.", section="Rome is big.", question="Who is in Rome?")
    assert origins(result)[-1] == ("section", "Rome.")


@pytest.mark.parametrize("name", ["section", "document", "result_a"])
def test_tool_results_and_documents_are_sections(name: str) -> None:
    assert origins(diff("", "Ann ran.", **{name: "Ann ran."})) == [("section", "Ann ran.")]


def test_a_dropped_piece_names_its_evidence() -> None:
    before = "Bo sings. Ann lives in Rome."
    result = diff(before, "Bo runs.", lost={0: (before.index("Ann"), len(before))})
    assert [(one.text, one.evidence) for one in result.dropped] == [(" sings.", ()), (" Ann lives in Rome.", (0,))]


def test_without_sources_no_word_is_invented() -> None:
    result = memory_diff(words(SPELLING, "Ann ran."), words(SPELLING, "Ran Ann. Bo sat."), None)
    assert {piece.origin for piece in result.pieces} <= {WordOrigin.KEPT, WordOrigin.MEMORY, WordOrigin.UNKNOWN}
    assert "".join(one.text for one in result.pieces if one.origin is WordOrigin.UNKNOWN) == " Bo sat."


@given(before=texts(), after=texts(), section=texts(), recalled=texts(), question=texts())
def test_a_difference_applied_to_the_memory_before_is_the_memory_after(
    before: str, after: str, section: str, recalled: str, question: str
) -> None:
    result = diff(before, after, section=section, recalled=recalled, question=question)
    assert applied(result, LETTERS.encode(before)) == tuple(LETTERS.encode(after))


@given(before=texts(), after=texts(), section=texts(), lost=st.integers(0, 8))
def test_every_id_of_either_memory_is_in_one_piece(before: str, after: str, section: str, lost: int) -> None:
    result = diff(before, after, lost={3: (lost, lost + 6)}, section=section)
    assert [position for piece in result.pieces for position in range(*piece.tokens)] == list(range(len(after)))
    remaining = [
        position for one in result.pieces if one.origin is WordOrigin.KEPT for position in range(*_source(one).tokens)
    ]
    dropped = [position for one in result.dropped for position in range(*one.tokens)]
    assert sorted([*remaining, *dropped]) == list(range(len(before)))


@given(before=texts(), after=texts(), section=texts())
def test_a_word_is_invented_if_no_source_has_it(before: str, after: str, section: str) -> None:
    result = diff(before, after, section=section)
    memory = words(SPELLING, after)
    sources = {*words(SPELLING, before).keys, *words(SPELLING, section).keys}
    for piece in result.pieces:
        for key in memory.keys[slice(*piece.words)]:
            assert (piece.origin is WordOrigin.NOWHERE) == (key not in sources)


@given(before=texts(), after=texts(), section=texts())
def test_a_piece_has_the_words_of_its_position_in_the_source(before: str, after: str, section: str) -> None:
    held = {"memory": words(SPELLING, before), "section": words(SPELLING, section)}
    memory = words(SPELLING, after)
    for piece in diff(before, after, section=section).pieces:
        if piece.source is not None:
            assert held[piece.source.name].keys[slice(*piece.source.words)] == memory.keys[slice(*piece.words)]


def _source(piece: WordPiece) -> Any:
    assert piece.source is not None
    return piece.source
