"""Token ids as words: whole, in order, spelt as the codec decodes them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.text.sentences import flat
from palimpsest.viewer.analysis.token_words import Spelling, SpeltTexts
from support.agents import family_codec
from support.views import LETTERS, words


def test_a_word_begins_at_white_space_and_takes_blanks_before_it() -> None:
    found = words(Spelling(LETTERS), "Ann  lives\n- here. ")
    assert [word.text for word in found.words] == ["Ann", "  lives", "\n-", " here. "]
    assert found.keys == ["ann", "lives", "-", "here"]


def test_white_space_alone_at_the_end_is_no_word() -> None:
    spelling = Spelling(LETTERS)
    assert [word.text for word in words(spelling, "Ann ran. \n ").words] == ["Ann", " ran. \n "]
    assert [word.text for word in words(spelling, " \n").words] == [" \n"]
    assert words(spelling, "Ann ran. ").keys == words(spelling, "Ann ran.").keys


@given(text=st.text(max_size=40))
def test_words_are_the_whole_text_and_all_its_tokens(tiny_codec: Any, text: str) -> None:
    spelling = Spelling(tiny_codec)
    ids = tuple(tiny_codec.encode(text))
    found = spelling.words(ids)
    assert found.text == tiny_codec.decode(ids) == spelling.text(ids)
    assert tuple(i for word in found.words for i in word.ids) == found.ids == ids
    assert all(word.ids == ids[a:b] for word, (a, b) in zip(found.words, pairwise(found.starts), strict=True))
    assert all(found.text[a:b] == word.text for word, (a, b) in zip(found.words, pairwise(found.places), strict=True))


@given(text=st.text("aé—ü安は \n", max_size=30))
def test_a_character_of_several_tokens_is_in_one_word(text: str) -> None:
    for name in ("qwen", "spm"):
        codec = family_codec(name)
        assert "\ufffd" not in "".join(word.text for word in words(Spelling(codec), text).words)


def test_chinese_and_japanese_words_begin_where_their_tokens_do() -> None:
    found = words(Spelling(LETTERS), "安娜住在罗马。 Bo は")
    assert [word.text for word in found.words] == ["安", "娜", "住", "在", "罗", "马。", " Bo", " は"]
    assert found.keys[5] == "马"


@pytest.mark.parametrize("name", ["qwen", "spm"])
def test_characters_that_several_tokens_spell_begin_words_too(name: str) -> None:
    """Where a tokenizer knows no letter of a script, each is spelt by its bytes."""
    spelling = Spelling(family_codec(name))
    assert [word.text.strip() for word in words(spelling, "Bo 住在罗马。").words] == ["Bo", "住", "在", "罗", "马。"]
    assert [word.text.strip() for word in words(spelling, "ที่นี่ Bo").words] == ["ที่", "นี่", "Bo"]


def test_scripts_without_white_space_have_a_word_a_letter_with_its_marks() -> None:
    for text, letters in (("อยู่ที่นี่", ["อ", "ยู่", "ที่", "นี่"]), ("ຢູ່ນີ້", ["ຢູ່", "ນີ້"]), ("နေပါ", ["နေ", "ပါ"])):
        assert [word.text for word in words(Spelling(LETTERS), text).words] == letters


def test_the_same_ids_are_the_same_word() -> None:
    spelling = Spelling(LETTERS)
    first, second = words(spelling, "Ann ran."), words(spelling, "Bo ran.")
    assert first.words[1] is second.words[1]
    assert first.words[0] is not second.words[0]


def test_a_text_that_has_a_sentence_as_it_stands_is_not_flattened(
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
def test_what_a_spelt_text_holds_is_what_a_text_holds(tiny_codec: Any, text: str, sentence: str) -> None:
    ids, form = tiny_codec.encode(text), flat(sentence)
    spelt, plain = SpeltTexts(Spelling(tiny_codec)).of(ids), GroupTexts(tiny_codec).of(ids)
    assert spelt.text == plain.text
    assert spelt.holds(form) == plain.holds(form)
