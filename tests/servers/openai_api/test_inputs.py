"""What is document and what is question."""

from __future__ import annotations

import json
from typing import Any

import pytest

from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.message_documents import DocumentRule
from palimpsest.servers.openai.request_bodies import FilePart, Message
from support.chat_templates import FoundQuery, found_query


def read(*messages: Message, room: int = 1000, **own: Any) -> FoundQuery:
    return found_query(messages, room, **own)


def text_of(found: FoundQuery) -> str:
    return found.document.text


def user(text: str, *files: FilePart) -> Message:
    return Message("user", text, files)


def test_the_field_comes_first_whatever_else_is_there() -> None:
    file = FilePart(b"file", "a.txt")
    found = read(user("Who?", file), document="Anna is here.", question="Where?")
    assert (found.rule, found.document.text, found.questions) == (DocumentRule.FIELD, "Anna is here.", ("Where?",))


def test_files_of_all_messages_in_their_order_are_the_document() -> None:
    one, two = FilePart(b"one", "a.txt"), FilePart(b"two", "b.txt")
    found = read(user("First?", one), Message("assistant", "Yes."), user("And then?", two))
    assert found.rule is DocumentRule.FILES
    assert [part.file for part in found.document.parts] == ["a.txt", "b.txt"]
    assert found.questions == ("And then?",)


def test_earlier_messages_are_the_document_with_their_roles() -> None:
    found = read(Message("system", "Be short."), user("Anna is here."), Message("assistant", "Good."), user("Who?"))
    assert found.rule is DocumentRule.MESSAGES
    assert found.document.text == "user:\nAnna is here.\n\nassistant:\nGood."
    assert (found.questions, found.instructions) == (("Who?",), "Be short.")
    assert found.asked == ("Be short.\n\nWho?",)


@pytest.mark.parametrize("room", [5, 1000])
def test_what_is_in_tags_is_the_document_and_what_is_around_it_is_passed_where_there_is_room(room: int) -> None:
    found = read(user("Be brief.\n<document>\nAnna is here.\n</document>\nWho?"), room=room)
    assert (found.rule, text_of(found)) == (DocumentRule.TAGS, "Anna is here.")
    assert (found.questions, found.left_out) == (("Who?",), room == 5)
    assert found.asked == (("Who?",) if room == 5 else ("Be brief.\n\nWho?",))


def test_tags_that_nothing_closes_are_a_part_of_the_message() -> None:
    """At once; with a quadratic rule this test would not end for an hour."""
    message = "<document>" * 200_000
    found = read(user(message), room=10**7)
    assert (found.rule, text_of(found), found.questions) == (DocumentRule.UNDIVIDED, message, (message,))


@pytest.mark.parametrize("room", [5, 1000])
@pytest.mark.parametrize("gap", ["\n\n", "\n"])
def test_of_a_pasted_text_the_paragraph_that_asks_is_the_question(gap: str, room: int) -> None:
    found = read(user(f"Anna is here.{gap}Bob too.{gap}Who?\n"), room=room)
    assert (found.rule, text_of(found)) == (DocumentRule.PARAGRAPH, f"Anna is here.{gap}Bob too.")
    assert found.questions == ("Who?",)
    found = read(user(f"Who?{gap}Anna is here.{gap}Bob too."), room=room)
    assert (found.rule, text_of(found)) == (DocumentRule.FIRST, f"Anna is here.{gap}Bob too.")
    assert found.questions == ("Who?",)


def test_a_first_paragraph_that_ends_with_a_colon_asks_too() -> None:
    found = read(user("Summarise this:\n\nAnna is here.\n\nBob too."))
    assert (found.rule, found.questions) == (DocumentRule.FIRST, ("Summarise this:",))
    found = read(user("Anna is here.\n\nSummarise this."))
    assert (found.rule, found.questions) == (DocumentRule.PARAGRAPH, ("Summarise this.",))


LONG = "Please tell me, as precisely as you can, who of them sells the tea, and why?"


@pytest.mark.parametrize(
    ("message", "question"),
    [
        (f"Anna is here.\n\n{LONG}", LONG),
        (f"Anna is here.\n{LONG}", LONG),
        (f"Anna is here.\n\nBob too.\n\n{LONG}\n\nThanks!", LONG),
        (f"Where?\n\nAnna is here.\n\n{LONG}", LONG),
        (f"Read this:\n\nAnna is here.\n\n{LONG}", LONG),
        (f"{LONG}\n\nAnna is here.", LONG),
        (f"{LONG}\nAnna is here.", LONG),
        (f"Anna is here.\n\nQuestion: {LONG[:-1]}.", f"Question: {LONG[:-1]}."),
        (json.dumps({"context": "Anna is here.", "question": LONG}, indent=1), LONG),
    ],
)
def test_a_question_that_is_too_long_is_never_read_as_document(message: str, question: str) -> None:
    """The length is rejected later, as for a question next to tags."""
    found = read(user(message), room=20)
    assert found.questions == (question,)
    assert "Please" not in text_of(found)
    assert "Anna is here." in text_of(found)


def test_of_a_last_paragraph_with_a_short_question_only_the_last_line_is_asked() -> None:
    found = read(user("Anna is here.\n\nBob too, and his brother comes later.\nWho?"), room=20)
    assert found.questions == ("Who?",)


def test_one_paragraph_is_read_and_asked() -> None:
    """The agent always reads, whatever a message looks like."""
    found = read(user("Anna sells tea. Who sells tea?"))
    assert (found.rule, text_of(found)) == (DocumentRule.UNDIVIDED, "Anna sells tea. Who sells tea?")
    assert found.questions == (text_of(found),)


@pytest.mark.parametrize(
    ("messages", "own", "said"),
    [
        ([Message("system", "Be short.")], {}, "no question"),
        ([user("Who?"), Message("assistant", "Anna")], {}, "no question"),
        ([user("  ")], {}, "no question"),
        ([user("", FilePart(b"text", "a.txt"))], {}, "no question"),
        ([user("Who?", FilePart(b" ", "a.txt"))], {}, "a.txt: has no text"),
        ([user("Who?")], {"document": ""}, "document: has no text"),
        ([user("<document> </document> Who?")], {}, "has no text"),
    ],
)
def test_what_asks_nothing_or_holds_nothing_is_refused(messages: list[Message], own: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read(*messages, **own)


def test_one_endless_paragraph_asks_nothing() -> None:
    with pytest.raises(Refused, match="a separate last paragraph"):
        read(user("word " * 1000))


@pytest.mark.parametrize("end", ["Thanks!", "Thank you so much.", "many thanks in advance"])
def test_thanks_at_the_end_are_no_question(end: str) -> None:
    found = read(user(f"Anna is here.\n\nWho?\n\n{end}"))
    assert (found.rule, text_of(found), found.questions) == (DocumentRule.PARAGRAPH, "Anna is here.", ("Who?",))


def test_what_a_tool_gave_is_the_document() -> None:
    call, given = Message("assistant", ""), Message("tool", "Anna is here.")
    for messages in ((user("Who?"), call, given), (given, user("Who?"))):
        found = read(*messages)
        assert (found.rule, text_of(found), found.questions) == (DocumentRule.TOOLS, "Anna is here.", ("Who?",))
