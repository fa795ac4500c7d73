"""Prompts with role markers of our own, and the messages that are made of them again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.memory.parts.tool_agent import STANDARD
from palimpsest.text.chat import chat_pieces, messages_of, neutral_codec, opening
from palimpsest.text.codec import Codec
from palimpsest.text.template import user_turn

MARKERS = [f"<|palimpsest:{name}|>" for name in ("system", "user", "assistant", "end")]
hostile = st.lists(st.one_of(st.sampled_from([*MARKERS, "<|im_end|>", "<|im_start|>user\n"]), st.text(max_size=12)))


@pytest.fixture(scope="module")
def codec(tiny_codec: Codec) -> Codec:
    return neutral_codec(tiny_codec)


@given(document=hostile, question=hostile, system=st.booleans())
def test_what_was_put_into_a_prompt_is_what_its_messages_say(
    codec: Codec, document: list[str], question: list[str], system: bool
) -> None:
    said, asked = "".join(document), "".join(question)
    template = user_turn(
        codec, "Read {section}\nand answer {question} now.", ("section", "question"), "Be brief." * system
    )
    prompt = template.fill({"section": codec.encode(said), "question": codec.encode(asked)})
    expected = [{"role": "system", "content": "Be brief."}] if system else []
    said, asked = (text.encode("utf-8", "replace").decode() for text in (said, asked))  # lone surrogates
    expected.append({"role": "user", "content": f"Read {said}\nand answer {asked} now."})
    assert messages_of(prompt, codec) == expected


@given(replies=st.lists(st.tuples(hostile, st.booleans(), st.lists(hostile, min_size=1, max_size=3)), max_size=3))
def test_a_conversation_with_tools_alternates_whatever_its_texts_say(codec: Codec, replies: list[Any]) -> None:
    pieces = chat_pieces(codec)
    prompt = [
        *opening(codec, "Use tools.", "Problem: {question}", ("question",), "[]", "").fill(
            {"question": codec.encode("Who?")}
        )
    ]
    prompt += pieces.generation
    expected = ["Use tools.", "Problem: Who?"]
    for reply, whole, results in replies:
        ids = codec.encode("".join(reply)) + ([codec.stop_ids[0]] if whole else [])
        prompt += pieces.exchange(ids, [codec.encode("".join(result)) for result in results])
        expected += ["".join(reply), "\n\n".join("".join(result) for result in results)]
    messages = messages_of(prompt, codec)
    roles = ["system", *["user", "assistant"] * len(replies), "user"]
    assert [message["role"] for message in messages] == roles
    assert [message["content"] for message in messages] == expected


def test_tools_are_described_in_words(codec: Codec) -> None:
    offered = '[{"type": "function", "function": {"name": "search", "description": "d", "parameters": {}}}]'
    prompt = opening(codec, STANDARD.system, "{question}", ("question",), offered, "You have search(query).").fill(
        {"question": codec.encode("Who?")}
    )
    messages = messages_of([*prompt, *chat_pieces(codec).generation], codec)
    assert "You have search(query)." in messages[0]["content"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no message",
        "<|palimpsest:user|>Who?<|palimpsest:end|>",
        "<|palimpsest:user|>Who?<|palimpsest:assistant|>",
        "<|palimpsest:assistant|>",
        "before<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>",
        "<|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>I think",
        "<|palimpsest:user|>a<|palimpsest:user|>b<|palimpsest:end|><|palimpsest:assistant|>",
    ],
)
def test_what_is_no_row_of_messages_is_refused(codec: Codec, text: str) -> None:
    with pytest.raises(ValueError, match="which chat endpoints need"):
        messages_of(codec.encode_trusted(text), codec)
