"""Texts and sentences without regard to case and white space."""

from __future__ import annotations

import sys

import pytest

from palimpsest.text.sentences import flat, sentences, stands_in


def test_every_white_space_character_becomes_a_space() -> None:
    spaces = {chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()}
    ordinary = {chr(code) for code in range(0x3100)} | {"\ufeff", "\U0001f600"}
    for character in spaces | ordinary:
        text = f"{character} A{character} b"
        assert flat(text) == " ".join(text.casefold().split()), hex(ord(character))


@pytest.mark.parametrize(
    ("memory", "hit"),
    [
        ("The code is 12.", True),
        ("the CODE is  12.", True),  # case and white space don't matter
        ("The code is 1.", False),
        ("The code is 1", False),  # cut in the middle of a value
        ("he code is 12.", False),
        ("- The code is 12.", True),  # a list mark is not part of the sentence
    ],
)
def test_a_sentence_occurs_only_as_a_whole(memory: str, hit: bool) -> None:
    (sentence,) = sentences(memory)
    assert stands_in(flat(sentence), "first. the code is 12. last.") is hit
