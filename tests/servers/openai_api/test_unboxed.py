r"""An answer without `\boxed{}`, in pieces and whole."""

from __future__ import annotations

import random

import pytest

from palimpsest.servers.openai.answer_text import UnboxedText, unboxed

TEXTS = {
    r"\boxed{tea}": "tea",
    r"\boxed{ tea }": "tea",
    "So it is $\\boxed{5}$.\nYes.": "So it is $5$.\nYes.",
    r"\fbox {tea} and \boxed {ale}": "tea and ale",
    r"\boxed{a {nested} one} {b}": "a {nested} one {b}",
    r"\boxed{\boxed{tea} or ale}": "tea or ale",
    r"\boxed{cut sh": "cut sh",
    r"\boxed 5$": "5$",
    r"sells tea port.}": "sells tea port.}",
    r"\box{tea} \boxedtea \textbf{ale} \b": r"\box{tea} \boxedtea \textbf{ale} \b",
    r"C:\boxed": r"C:\boxed",
    "tea  \n ale": "tea  \n ale",
    "": "",
}


@pytest.mark.parametrize("text", TEXTS)
def test_boxes_are_opened_and_nothing_else_is_changed(text: str) -> None:
    assert unboxed(text) == TEXTS[text]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_whole_however_it_is_cut(text: str) -> None:
    draw = random.Random(5)
    for _ in range(30):
        stream, given, rest = UnboxedText(), "", text
        while rest:
            count = draw.randint(1, 4)
            given += stream.feed(rest[:count])
            assert TEXTS[text].startswith(given)
            rest = rest[count:]
        assert given + stream.rest() == TEXTS[text]
