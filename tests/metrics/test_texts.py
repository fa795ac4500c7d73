"""Texts without regard to case and white space."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from palimpsest.text.sentences import flat


def test_every_white_space_is_a_space() -> None:
    for code in range(sys.maxunicode + 1):
        text = f"{chr(code)} A{chr(code)} b"
        assert flat(text) == " ".join(text.casefold().split()), hex(code)


@given(text=st.text(" \t\n\x1cAbß\u3000."))
def test_a_flat_text_has_single_spaces_and_no_case(text: str) -> None:
    assert flat(text) == " ".join(text.casefold().split())
    assert flat(flat(text)) == flat(text)
