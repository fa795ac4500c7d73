"""Letters with combining marks."""

import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal

import pytest

from palimpsest.app.datasets.question_splits import question_key
from palimpsest.text import word_forms
from palimpsest.text.answer_normalization import fold, normalize
from palimpsest.text.word_forms import normal_form, worded

MARKS = ("\u0301\u0323", "\u0323\u0301\u20dd", "\u0301\uff9e", "\u0345\u0301", "\u0f73\u0301", "\u0344\u0323")


@pytest.mark.parametrize("marks", MARKS, ids=map(ascii, MARKS))
@pytest.mark.parametrize("change", [fold, normalize, question_key, lambda text: str(worded(text))])
def test_few_marks_are_sorted(marks: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting takes quadratic time: 100,000 marks took minutes."""
    longest = 0

    def recorded(form: Literal["NFC", "NFD", "NFKC"], text: str) -> str:
        nonlocal longest
        signs = ("m" if unicodedata.combining(c) else " " for c in unicodedata.normalize("NFKD", text))
        longest = max(longest, *map(len, "".join(signs).split()), 0)
        return unicodedata.normalize(form, text)

    monkeypatch.setattr(word_forms, "unicodedata", SimpleNamespace(**vars(unicodedata) | {"normalize": recorded}))
    for between in ("", "ـ", "\u200d", "<b>"):  # removed later
        change("a" + between.join(marks * 200) + "b")
        assert 0 < longest <= 90


@pytest.mark.parametrize("text", ["a" + "\u0301" * 30, "─" * 100 + "e\u0301", "🙂" * 50, "्ि" * 15, "กำ" * 40])
def test_texts_with_few_marks_keep_all(text: str) -> None:
    assert normal_form("NFD", text) == unicodedata.normalize("NFD", text)
