"""Token ids as words: complete, in order, spelt as the codec decodes them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.text.sentences import flat
from palimpsest.viewer.analysis.token_words import Spelling, SpeltTexts
from support.agents import family_codec
from support.views import LETTERS, words


def spelt(text: str, codec: Any = LETTERS) -> list[str]:
    return [word.text for word in words(Spelling(codec), text).words]


def test_a_word_includes_the_white_space_before_it() -> None:
    assert spelt("Ann  lives\n- here. ") == ["Ann", "  lives", "\n-", " here. "]
    assert words(Spelling(LETTERS), "Ann  lives\n- here. ").keys == ["ann", "lives", "-", "here"]


def test_white_space_alone_at_the_end_is_no_word() -> None:
    assert spelt("Ann ran. \n ") == ["Ann", " ran. \n "]
    assert spelt(" \n") == [" \n"]
    assert words(Spelling(LETTERS), "Ann ran. ").keys == words(Spelling(LETTERS), "Ann ran.").keys


@settings(max_examples=50)
@given(text=st.text(max_size=40))
def test_words_cover_the_text_and_all_its_tokens(tiny_codec: Any, text: str) -> None:
    spelling = Spelling(tiny_codec)
    ids = tuple(tiny_codec.encode(text))
    spelling_words = spelling.words(ids)
    assert spelling_words.text == tiny_codec.decode(ids) == spelling.text(ids)
    assert tuple(i for word in spelling_words.words for i in word.ids) == spelling_words.ids == ids
    assert all(
        word.ids == ids[a:b] for word, (a, b) in zip(spelling_words.words, pairwise(spelling_words.starts), strict=True)
    )
    assert all(
        spelling_words.text[a:b] == word.text
        for word, (a, b) in zip(spelling_words.words, pairwise(spelling_words.places), strict=True)
    )


@given(text=st.text("aé—ü安は \n", max_size=30))
def test_a_character_of_several_tokens_is_in_one_word(text: str) -> None:
    for name in ("qwen", "spm"):
        assert "\ufffd" not in "".join(spelt(text, family_codec(name)))


def test_every_character_of_scripts_without_white_space_is_a_word_with_its_marks() -> None:
    assert spelt("安娜住在罗马。 Bo は") == ["安", "娜", "住", "在", "罗", "马。", " Bo", " は"]
    assert words(Spelling(LETTERS), "安娜住在罗马。").keys[5] == "马"
    for text, letters in (("อยู่ที่นี่", ["อ", "ยู่", "ที่", "นี่"]), ("ຢູ່ນີ້", ["ຢູ່", "ນີ້"]), ("နေပါ", ["နေ", "ပါ"])):
        assert spelt(text) == letters


@pytest.mark.parametrize("name", ["qwen", "spm"])
def test_characters_that_a_tokenizer_spells_by_bytes_are_words_too(name: str) -> None:
    codec = family_codec(name)
    assert [word.strip() for word in spelt("Bo 住在罗马。", codec)] == ["Bo", "住", "在", "罗", "马。"]
    assert [word.strip() for word in spelt("ที่นี่ Bo", codec)] == ["ที่", "นี่", "Bo"]


def test_the_same_ids_are_the_same_word() -> None:
    spelling = Spelling(LETTERS)
    first, second = words(spelling, "Ann ran."), words(spelling, "Bo ran.")
    assert first.words[1] is second.words[1]
    assert first.words[0] is not second.words[0]


def test_a_text_with_an_exact_match_of_a_sentence_is_not_flattened(
    tiny_codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SpeltTexts(Spelling(tiny_codec)).of(tiny_codec.encode("It rained.\n\n Anna lives in Rome. Bo  ran."))
    flattened = list[str]()

    def noted(text: str) -> str:
        flattened.append(text)
        return flat(text)

    monkeypatch.setattr("palimpsest.metrics.reading_trace.flat", noted)
    assert text.holds("anna lives in rome.")
    assert not text.holds("anna sings.")
    assert flattened == []
    assert text.holds("bo ran.")
    assert len(flattened) == 1


@given(text=st.text("ab Éé.\n-", max_size=30), sentence=st.text("ab é.", min_size=1, max_size=6))
def test_a_spelt_text_has_the_sentences_of_a_text(tiny_codec: Any, text: str, sentence: str) -> None:
    ids, form = tiny_codec.encode(text), flat(sentence)
    spelt, plain = SpeltTexts(Spelling(tiny_codec)).of(ids), GroupTexts(tiny_codec).of(ids)
    assert spelt.text == plain.text
    assert spelt.holds(form) == plain.holds(form)
