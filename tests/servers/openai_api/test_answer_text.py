"""An answer piece by piece is the answer."""

from __future__ import annotations

import random

import pytest

from palimpsest.servers.openai.answer_text import AnswerText, final_text
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


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stops", [(), ("END",), ("ND", "sells")])
def test_the_pieces_in_a_row_are_the_whole(text: str, stops: tuple[str, ...]) -> None:
    codec = base_codec()
    ids = codec.encode(text)
    said, _ = final_text(text, stops)
    draw = random.Random(3)
    for _ in range(5):
        stream, given, rest = AnswerText(codec, stops), "", list(ids)
        while rest:
            count = draw.randint(1, 3)
            given += stream.feed(rest[:count])
            assert said.startswith(given)
            del rest[:count]
        assert given + stream.rest(said) == said


def test_thinking_that_the_prompt_opened_is_not_the_answer() -> None:
    codec = base_codec()
    stream = AnswerText(codec, (), "<think>")
    assert stream.feed(codec.encode("Is it Bob? No.")) == ""
    assert stream.feed(codec.encode("</think> Anna")) == "Anna"


def test_control_tokens_are_no_text() -> None:
    codec = base_codec()
    assert AnswerText(codec, ()).feed([*codec.encode("Anna"), *codec.control_ids]) == "Anna"
