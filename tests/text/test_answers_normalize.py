"""Normal forms: hand-worked cases, and properties on any text."""

import string
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.app.datasets.question_splits import question_key
from palimpsest.reward.answer_match import exact
from palimpsest.text import word_forms
from palimpsest.text.answer_normalization import fold, hendrycks, normalize, squad, tokens
from palimpsest.text.word_forms import normal_form, worded
from support.answer_pairs import DIFFERENT, SAME


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The Beatles", "beatles"),
        ("New\u00a0York", "new york"),
        ("Malmo\u0308", "malmö"),
        ("\\text{Paris}", "paris"),
        ("\\textbf{\\text{Paris}}", "paris"),
        ("$\\mathrm{Paris}$.", "paris"),
        ("1986–2013", "1986-2013"),
        ("1986-2013", "1986-2013"),
        ("“Yes”", "yes"),
        ("Zero\u200bwidth", "zerowidth"),
        ("Ｆｕｌｌ", "full"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("3.5", "3.5"),
        (".5", "0.5"),
        ("-5", "-5"),
        ("1,000", "1000"),
        ("12.05.1990", "12.05.1990"),
        ("50\\%", "50%"),
        ("A", "a"),
        ("?!", ""),
    ],
)
def test_normalize_by_hand(text: str, form: str) -> None:
    assert normalize(text) == form


@pytest.mark.parametrize(("reason", "pairs"), SAME.items())
def test_dress_makes_no_difference(reason: str, pairs: list[tuple[str, str]]) -> None:
    assert [(a, b) for a, b in pairs if not exact(a, b) == exact(b, a) == 1.0] == []


@pytest.mark.parametrize(("reason", "pairs"), DIFFERENT.items())
def test_signs_that_mean_something_count(reason: str, pairs: list[tuple[str, str]]) -> None:
    assert [(a, b) for a, b in pairs if exact(a, b) or exact(b, a)] == []


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from("./:-^*<>=~@%_!"))
def test_a_sign_between_two_numbers_never_vanishes(first: int, second: int, sign: str) -> None:
    assert normalize(f"{first}{sign}{second}") != normalize(f"{first}{second}")


@given(st.integers(0, 10**9), st.sampled_from("-<>=~@%#$€^"))
def test_a_sign_before_a_number_never_vanishes(number: int, sign: str) -> None:
    assert normalize(f"{sign}{number}") != normalize(str(number))


@pytest.mark.parametrize("number", [0, 7, 1234, 1_234_567])
@pytest.mark.parametrize(
    "shape", ["{}", "{}.", "({})", "“{}”", "**{}**", r"$\text{{{}}}$", "<i>{}</i>", "{},", "the {}"]
)
def test_commas_between_thousands_do_not_count_however_the_number_is_dressed(number: int, shape: str) -> None:
    assert normalize(shape.format(f"{number:,}")) == str(number)


NESTS = [
    *(
        r"\text{",
        r"\frac{",
        "^{",
        r"^{\text{",
        "{",
        "}{",
        "<b ",
        "$a ",
        "\\",
        "~",
        "the ",
        "a ",
        "-",
        "a-",
        "- ",
        "*a",
        "_a",
        "_",
    ),
    *(".", "1,111", "1,", "# ", "(a]", "[a", "!", "&", "1 + ", "^", '{"a":', "[ ", "1½", "5'", "<"),
]


@pytest.mark.parametrize("piece", NESTS)
def test_a_normal_form_takes_linear_time(piece: str) -> None:
    """0.2 to 1 s. A quadratic rule takes many minutes: 40,000 times `the ` took 127 s, nested wrappers longer."""
    normalize(piece * (100_000 // len(piece)))


def test_look_alike_letters_stay_different() -> None:
    assert normalize("Pаris") != normalize("Paris")


@given(st.text())
def test_composed_and_decomposed_text_have_one_form(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert normalize(composed) == normalize(decomposed)


WORDS = st.text(string.ascii_letters, min_size=1).filter(lambda word: word.lower() not in ("a", "an", "the"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "The ", "an ", "a "]), WORDS, st.sampled_from([" ", ", ", "; ", "? ", " (", ") "])
        )
    )
)
def test_on_plain_english_normalize_is_squads_rule(pieces: list[tuple[str, str, str]]) -> None:
    text = "".join(article + word + mark for article, word, mark in pieces)
    assert normalize(text) == squad(text)


@given(st.text(alphabet=string.ascii_letters + " "))
def test_tokens_of_spaced_text_are_its_words(text: str) -> None:
    assert tokens(text) == text.split()


def test_hendrycks_removes_spaces_and_keeps_punctuation_and_articles() -> None:
    assert hendrycks("the new york.") == "thenewyork."
    assert hendrycks("\\dfrac{1}{2}") == "\\frac{1}{2}"
    assert hendrycks("5 \\%") == "5"


MARKS = ("\u0301\u0323", "\u0323\u0301\u20dd", "\u0301\uff9e", "\u0345\u0301", "\u0f73\u0301", "\u0344\u0323")


@pytest.mark.parametrize("marks", MARKS, ids=map(ascii, MARKS))
@pytest.mark.parametrize("between", ["", "ـ", "\u200d", "<b>"])  # removed later
@pytest.mark.parametrize("change", [fold, normalize, question_key, lambda text: str(worded(text))])
def test_few_marks_of_a_letter_are_sorted(
    marks: str, between: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting takes quadratic time: 100,000 marks took minutes."""
    longest = [0]

    def recorded(form: Literal["NFC", "NFD", "NFKC"], text: str) -> str:
        signs = ("m" if unicodedata.combining(c) else " " for c in unicodedata.normalize("NFKD", text))
        longest[0] = max(longest[0], *map(len, "".join(signs).split()), 0)
        return unicodedata.normalize(form, text)

    monkeypatch.setattr(word_forms, "unicodedata", SimpleNamespace(**vars(unicodedata) | {"normalize": recorded}))
    change("a" + between.join(marks * 200) + "b")
    assert 0 < longest[0] <= 90


@pytest.mark.parametrize("text", ["a" + "\u0301" * 30, "─" * 100 + "e\u0301", "🙂" * 50, "्ि" * 15, "กำ" * 40])
def test_texts_with_few_marks_keep_all(text: str) -> None:
    assert normal_form("NFD", text) == unicodedata.normalize("NFD", text)
