"""Answers in pieces, as a stream sends them, and whole."""

from __future__ import annotations

import random

import pytest

from palimpsest.servers.openai.answer_text import AnswerText, UnboxedText, final_text, unboxed
from support.agents import base_codec

TEXTS = (
    "Anna sells tea.",
    "  Änna sells 茶 and 🍵 \n",
    "<think>Who? Bob</think>\nAnna < Bob <thin air",
    "<think>never closed",
    "Anna END Bob",
    "EN ENDE",
    "",
)
BOXED = {
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
@pytest.mark.parametrize("stops", [(), ("END",), ("ND", "sells")])
def test_the_pieces_of_an_answer_add_up_to_it(text: str, stops: tuple[str, ...]) -> None:
    codec = base_codec()
    ids = codec.encode(text)
    answer, _ = final_text(text, stops)
    draw = random.Random(3)
    for _ in range(5):
        stream, sent, rest = AnswerText(codec, stops), "", list(ids)
        while rest:
            count = draw.randint(1, 3)
            sent += stream.feed(rest[:count])
            assert answer.startswith(sent)
            del rest[:count]
        assert sent + stream.rest(answer) == answer


def test_an_answer_after_thinking_replaces_the_text_before() -> None:
    codec = base_codec()
    stream = AnswerText(codec, ())
    sent = "".join(stream.feed([token]) for token in codec.encode("Let me see. <think>Rome?</think> Paris"))
    assert (sent + stream.rest("Paris")).splitlines() == ["Let me see.", "Paris"]


def test_thinking_that_the_prompt_opened_is_not_the_answer() -> None:
    codec = base_codec()
    stream = AnswerText(codec, (), "<think>")
    assert stream.feed(codec.encode("Is it Bob? No.")) == ""
    assert stream.feed(codec.encode("</think> Anna")) == "Anna"


def test_control_tokens_are_not_part_of_an_answer() -> None:
    codec = base_codec()
    assert AnswerText(codec, ()).feed([*codec.encode("Anna"), *codec.control_ids]) == "Anna"


@pytest.mark.parametrize("text", BOXED)
def test_unboxing_changes_nothing_but_boxes(text: str) -> None:
    assert unboxed(text) == BOXED[text]


@pytest.mark.parametrize("text", BOXED)
def test_unboxed_pieces_add_up_to_the_unboxed_text(text: str) -> None:
    draw = random.Random(5)
    for _ in range(30):
        stream, sent, rest = UnboxedText(), "", text
        while rest:
            count = draw.randint(1, 4)
            sent += stream.feed(rest[:count])
            assert BOXED[text].startswith(sent)
            rest = rest[count:]
        assert sent + stream.rest() == BOXED[text]
