"""Normal forms of answers: hand-worked cases, and properties of any text."""

import string
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.reward.answer_match import exact
from palimpsest.text.answer_normalization import hendrycks, normalize, squad, tokens
from support.answer_pairs import DIFFERENT, SAME

FORMS = {
    "beatles": ["The Beatles"],
    "new york": ["New\u00a0York"],
    "malmö": ["Malmo\u0308"],
    "paris": ["\\text{Paris}", "\\textbf{\\text{Paris}}", "$\\mathrm{Paris}$."],
    "1986-2013": ["1986–2013", "1986-2013"],
    "yes": ["“Yes”"],
    "zerowidth": ["Zero\u200bwidth"],
    "full": ["Ｆｕｌｌ"],
    "strasse": ["STRASSE", "Straße"],
    "3.5": ["3.5"],
    "0.5": [".5"],
    "-5": ["-5"],
    "1000": ["1,000"],
    "12.05.1990": ["12.05.1990"],
    "50%": ["50\\%"],
    "a": ["A"],
    "": ["?!"],
}


@pytest.mark.parametrize(("text", "form"), [(text, form) for form, texts in FORMS.items() for text in texts])
def test_normal_forms_by_hand(text: str, form: str) -> None:
    assert normalize(text) == form


@pytest.mark.parametrize(("reason", "pairs"), SAME.items())
def test_markup_makes_no_difference(reason: str, pairs: list[tuple[str, str]]) -> None:
    assert [(a, b) for a, b in pairs if not exact(a, b) == exact(b, a) == 1.0] == []


@pytest.mark.parametrize(("reason", "pairs"), DIFFERENT.items())
def test_signs_with_a_meaning_count(reason: str, pairs: list[tuple[str, str]]) -> None:
    assert [(a, b) for a, b in pairs if exact(a, b) or exact(b, a)] == []


@settings(max_examples=50)
@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from("./:-^*<>=~@%_!"), st.sampled_from("-<>=~@%#$€^"))
def test_signs_between_and_before_numbers_count(first: int, second: int, between: str, before: str) -> None:
    assert normalize(f"{first}{between}{second}") != normalize(f"{first}{second}")
    assert normalize(f"{before}{first}") != normalize(str(first))


@pytest.mark.parametrize("number", [0, 7, 1234, 1_234_567])
def test_commas_between_thousands_do_not_count_in_any_markup(number: int) -> None:
    for shape in ("{}", "{}.", "({})", "“{}”", "**{}**", r"$\text{{{}}}$", "<i>{}</i>", "{},", "the {}"):
        assert normalize(shape.format(f"{number:,}")) == str(number), shape


PIECES = [
    *(r"\text{", r"\frac{", "^{", r"^{\text{", "{", "}{", "<b ", "$a ", "\\", "~", "the ", "a ", "-", "a-", "- ", "*a"),
    *("_a", "_", ".", "1,111", "1,", "# ", "(a]", "[a", "!", "&", "1 + ", "^", '{"a":', "[ ", "1½", "5'", "<"),
    *("१,११,", "1\u00a0000\u00a0", "〜", "เ", "क-", "का.", "ا\u0654\u064e", "န်", "क्"),
]


@pytest.mark.parametrize("piece", PIECES)
def test_a_normal_form_takes_linear_time(piece: str) -> None:
    """A quadratic rule takes many minutes: 40,000 times `the ` took 127 s."""
    normalize(piece * (50_000 // len(piece)))


@settings(max_examples=50)
@given(st.text())
def test_composed_and_decomposed_text_have_one_form(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert normalize(composed) == normalize(decomposed)


WORDS = st.text(string.ascii_letters, min_size=1).filter(lambda word: word.lower() not in ("a", "an", "the"))
ARTICLES = st.sampled_from(["", "The ", "an ", "a "])


@settings(max_examples=50)
@given(st.lists(st.tuples(ARTICLES, WORDS, st.sampled_from([" ", ", ", "; ", "? ", " (", ") "]))))
def test_on_plain_english_normalize_is_the_rule_of_squad(pieces: list[tuple[str, str, str]]) -> None:
    text = "".join(article + word + mark for article, word, mark in pieces)
    assert normalize(text) == squad(text)


@settings(max_examples=50)
@given(st.text(alphabet=string.ascii_letters + " "))
def test_tokens_of_spaced_text_are_its_words(text: str) -> None:
    assert tokens(text) == text.split()


def test_hendrycks_removes_spaces_and_keeps_punctuation_and_articles() -> None:
    assert hendrycks("the new york.") == "thenewyork."
    assert hendrycks("\\dfrac{1}{2}") == "\\frac{1}{2}"
    assert hendrycks("5 \\%") == "5"
