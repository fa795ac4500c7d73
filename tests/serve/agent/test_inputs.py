"""What is document and what is question."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.serve.agent.inputs import Input, Rule, input_of
from palimpsest.serve.agent.requests import Ask, FilePart, Message, Own
from palimpsest.serve.http import Refused


def read(*messages: Message, fits: bool = True, **own: Any) -> Input:
    def text_of_file(part: FilePart) -> tuple[str, str]:
        return part.name or str(part.file_id), (part.data or b"stored text").decode()

    return input_of(Ask("palimpsest", messages, Own(**own)), text_of_file, lambda _: fits)


def user(text: str, *files: FilePart) -> Message:
    return Message("user", text, files)


def test_the_field_comes_first_whatever_else_is_there() -> None:
    file = FilePart(None, b"file", "a.txt")
    found = read(user("Who?", file), document="Anna is here.", question="Where?")
    assert (found.rule, found.document.text, found.questions) == (Rule.FIELD, "Anna is here.", ("Where?",))  # type: ignore[union-attr]
    found = read(user("Who?", file), file_ids=["file-1"])
    assert (found.rule, found.document.text, found.questions) == (Rule.FIELD, "stored text", ("Who?",))  # type: ignore[union-attr]


def test_files_of_all_messages_in_their_order_are_the_document() -> None:
    one, two = FilePart(None, b"one", "a.txt"), FilePart(None, b"two", "b.txt")
    found = read(user("First?", one), Message("assistant", "Yes."), user("And then?", two))
    assert found.rule is Rule.FILES
    assert found.document is not None
    assert [part.file for part in found.document.parts] == ["a.txt", "b.txt"]
    assert found.questions == ("And then?",)


def test_earlier_messages_are_the_document_with_their_roles() -> None:
    found = read(Message("system", "Be short."), user("Anna is here."), Message("assistant", "Good."), user("Who?"))
    assert found.rule is Rule.MESSAGES
    assert found.document is not None
    assert found.document.text == "user:\nAnna is here.\n\nassistant:\nGood."
    assert (found.questions, found.instructions) == (("Who?",), "Be short.")
    assert found.asked == ("Be short.\n\nWho?",)


@pytest.mark.parametrize("fits", [True, False])
def test_of_one_message_what_stands_in_tags_is_the_document(fits: bool) -> None:
    found = read(user("Read:\n<document>\nAnna is here.\n</document>\nWho?"), fits=fits)
    assert (found.rule, found.document.text) == (Rule.TAGS, "Anna is here.")  # type: ignore[union-attr]
    assert found.questions == ("Read:\n\nWho?",)


def test_tags_that_nothing_closes_are_a_part_of_the_message() -> None:
    """At once; with a quadratic rule this test would not end for an hour."""
    message = "<document>" * 200_000
    assert read(user(message)) == Input(Rule.CHAT, None, (message,))


@pytest.mark.parametrize("gap", ["\n\n", "\n"])
def test_of_a_message_beyond_the_window_the_last_paragraph_is_the_question(gap: str) -> None:
    found = read(user(f"Anna is here.{gap}Bob too.{gap}Who?\n"), fits=False)
    assert (found.rule, found.document.text) == (Rule.PARAGRAPH, f"Anna is here.{gap}Bob too.")  # type: ignore[union-attr]
    assert found.questions == ("Who?",)


def test_a_short_message_is_plain_chat() -> None:
    assert read(user("Who?\n\nReally?")) == Input(Rule.CHAT, None, ("Who?\n\nReally?",))


@pytest.mark.parametrize(
    ("messages", "own", "said"),
    [
        ([Message("system", "Be short.")], {}, "nothing is asked"),
        ([user("Who?"), Message("assistant", "Anna")], {}, "nothing is asked"),
        ([user("  ")], {}, "nothing is asked"),
        ([user("", FilePart(None, b"text", "a.txt"))], {}, "nothing is asked"),
        ([user("Who?", FilePart(None, b" ", "a.txt"))], {}, "a.txt: holds no text"),
        ([user("Who?")], {"document": ""}, "document: holds no text"),
        ([user("<document> </document> Who?")], {}, "holds no text"),
    ],
)
def test_what_asks_nothing_or_holds_nothing_is_refused(messages: list[Message], own: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read(*messages, **own)


def test_one_endless_paragraph_asks_nothing() -> None:
    with pytest.raises(Refused, match="a paragraph of its own"):
        read(user("word " * 1000), fits=False)
