"""Texts and sentences without regard to case and white space."""

from __future__ import annotations

import random
import re
import sys
import unicodedata

import pytest

from palimpsest.text.sentences import DECIMAL, NUMBER, flat, offset_in, sentences, stands_in, unit_spans, words
from palimpsest.text.word_forms import worded

SENTENCES = {
    "Arabic": [["أين آنا؟", "في روما.", "نعم!"], ["حقا؟!", "نعم."]],
    "Urdu": [["آنا روم میں ہے۔", "عمر دوڑتا ہے۔"], ["قیمت 3۔5 ہے۔"]],
    "Hebrew": [["אנה ברומא.", "עומר רץ!"]],
    "Devanagari": [["अन्ना रोम में है।", "उमर 3.5 किमी दौड़ता है॥"]],
    "Bengali": [["আনা রোমে থাকে।", "ওমর দৌড়ায়।"]],
    "Armenian": [["Աննան Հռոմում է։", "Օմարը վազում է 10։30-ին։"]],
    "Georgian": [["ანა რომშია.", "ომარი გარბის."]],
    "Ethiopic": [["አና በሮም ናት።", "ዑመር ይሮጣል፧", "አዎ።"]],
    "Thai": [["๏ อันนาอยู่ที่โรม", "๏ โอมาร์วิ่ง ๚"], ["เกิด พ.ศ.2540 ที่โรม"]],
    "Khmer": [["អាណានៅរ៉ូម។", "អូម៉ារត់៕"]],
    "Burmese": [["အန်နာသည်ရောမတွင်နေသည်။", "အိုမာပြေးသည်။"]],
    "Greek": [["Πού είναι;", "Στη Ρώμη."], ["Πού είναι\u037e", "Στη Ρώμη."], ["Rates α; β are free."]],
    "Cyrillic": [["Анна в Риме.", "Омар бежит!"]],
    "Chinese": [["他来了。", "我走了！", "真的？"], ["真的吗？！", "他走了。"], ["他说：“我来了。”", "然后走了。"]],
    "Chinese with ASCII marks": [["安娜在罗马.", "他走了!", "面积3.5公里."]],
    "Japanese": [["「行こう。」", "彼は言った。"], ["ｱﾝﾅです｡", "ﾏﾘです｡"], ["（『本。』）", "次。"]],
    "Korean": [["안나는 로마에 산다.", "오마르는 달린다."]],
}
"""Texts as their sentences, by script."""
SPACED = {"Arabic", "Hebrew", "Georgian", "Thai", "Greek", "Cyrillic", "Korean"}
"""Scripts whose sentences need a space after them: their marks are ASCII, or are next to ASCII marks."""


@pytest.mark.parametrize("script", SENTENCES)
def test_a_text_has_the_sentences_that_its_script_marks(script: str) -> None:
    for expected in SENTENCES[script]:
        for between in (" ",) if script in SPACED else (" ", ""):
            text = between.join(expected)
            assert sentences(text) == expected
            spans = unit_spans(text, "sentence")
            assert [text[start:end].strip() for start, end in spans] == expected
            assert "".join(text[start:end] for start, end in spans) == text


def test_sentences_are_compared_within_the_ends_of_each_script() -> None:
    for text in ("罗马大！人多。", "रोम बड़ा है। वह दौड़ता है॥", "روم بڑا ہے۔ وہ دوڑتا ہے۔", "ናት። ይሮጣል።", "ន។ អ៕"):
        assert len(worded(text)) == 2, text


def test_vowel_signs_are_parts_of_words() -> None:
    assert words("हिन्दी में, பால்") == ["हिन्दी", "में", "பால்"]


def test_every_white_space_character_becomes_a_space() -> None:
    spaces = {chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()}
    ordinary = {one for one in map(chr, range(0x3100)) if unicodedata.category(one) != "Cf"} | {"\U0001f600"}
    for character in spaces | ordinary:
        text = f"{character} A{character} b"
        assert flat(text) == " ".join(text.casefold().split()), hex(ord(character))


@pytest.mark.parametrize("hidden", ["\u00ad", "\u200b", "\u200d", "\u200f", "\u202e", "\u2060", "\u2066", "\ufeff"])
def test_invisible_characters_neither_count_nor_divide_words(hidden: str) -> None:
    assert flat(f"{hidden}An{hidden}na 1{hidden}2") == "anna 12"
    assert [one.exact for one in worded(f"An{hidden}na 1{hidden}2")] == [["anna", "12"]]


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


@pytest.mark.parametrize(
    ("piece", "text", "hit"),
    [
        ("दिन", "दिन है", True),
        ("दिन", "दिनों में", False),
        ("न", "दिन है", False),
        ("ขา", "ข้า", False),
        ("โรม", "อันนาอยู่ที่โรมแล้ว", True),
        ("北京", "他住在北京市", True),
        ("Рим", "Римини", False),
    ],
)
def test_a_word_ends_where_its_script_ends_it(piece: str, text: str, hit: bool) -> None:
    assert stands_in(flat(piece), flat(text)) is hit


WORDS = "5 12 345 1e+7 3/4 2020 january of km per h million % ann oslo . , - e b.c a.m ½ x $ kg th"


@pytest.mark.parametrize("whole", [NUMBER, DECIMAL], ids=["number", "decimal"])
def test_a_piece_ends_in_no_number_of_the_whole_text(whole: re.Pattern[str]) -> None:
    rng, parts = random.Random(0), WORDS.split()
    for length in [5, 30, 300, 3000] * 25:
        text = flat("".join(rng.choice(parts) + rng.choice("  -/") for _ in range(length)))
        inside = {at for token in whole.finditer(text) for at in range(token.start() + 1, token.end())}
        for end in rng.sample(range(1, len(text)), min(len(text) - 1, 30)):
            edge = not (text[end - 1].isalnum() and text[end : end + 1].isalnum())
            expected = edge and end not in inside
            assert (offset_in(text[:end], text, whole) == 0) is expected, (
                text[max(0, end - 40) : end],
                text[end : end + 40],
            )
