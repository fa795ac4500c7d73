"""Normal forms: hand-worked cases, and properties on any text."""

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.text.normalize import hendrycks, normalize, squad, tokens


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The Beatles", "beatles"),
        ("New\u00a0York", "new york"),
        ("Malmo\u0308", "malmö"),
        ("\\text{Paris}", "paris"),
        ("\\textbf{\\text{Paris}}", "paris"),
        ("$\\mathrm{Paris}$.", "paris"),
        ("1986–2013", "19862013"),
        ("1986-2013", "19862013"),
        ("“Yes”", "yes"),
        ("Zero\u200bwidth", "zerowidth"),
        ("Ｆｕｌｌ", "full"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("3.5", "3.5"),
        (".5", "0.5"),
        ("-5", "-5"),
        ("1,000", "1000"),
        ("12.05.1990", "12051990"),
        ("50\\%", "50"),
        ("A", ""),
        ("?!", ""),
    ],
)
def test_normalize_by_hand(text: str, form: str) -> None:
    assert normalize(text) == form


def test_numbers_that_differ_by_a_sign_or_a_point_stay_different() -> None:
    assert len({normalize(text) for text in ("3.5", "35", "-35", "-3.5")}) == 4


def test_look_alike_letters_stay_different() -> None:
    assert normalize("Pаris") != normalize("Paris")


@given(st.text())
def test_composed_and_decomposed_text_have_one_form(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert normalize(composed) == normalize(decomposed)


@given(st.text(alphabet=string.ascii_letters + " ,;'!?()"))
def test_on_plain_english_without_numbers_normalize_is_squads_rule(text: str) -> None:
    assert normalize(text) == squad(text)


@given(st.text(alphabet=string.ascii_letters + " "))
def test_tokens_of_spaced_text_are_its_words(text: str) -> None:
    assert tokens(text) == text.split()


def test_hendrycks_removes_spaces_and_keeps_punctuation_and_articles() -> None:
    assert hendrycks("the new york.") == "thenewyork."
    assert hendrycks("\\dfrac{1}{2}") == "\\frac{1}{2}"
    assert hendrycks("5 \\%") == "5"
