"""What of a request is document and what is question: five rules, of which the first that fits is used and told.

    palimpsest_field    `palimpsest: {document | file_ids, question}` in the body
    file_parts          the files of the messages, in order; the user's last text is the question
    earlier_messages    of several messages the last is the question, all before it the document, with their roles
    document_tags       of one message what stands in <document>...</document>; the rest is the question
    last_paragraph      of one message beyond the window all but its last paragraph; that is the question
    plain_chat          a message that fits the window: there is no document, the model answers by itself

System messages are instructions: they stand before the question, never in the document. No address is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from palimpsest.data.user_files import Document, document_of
from palimpsest.errors import DataError
from palimpsest.serve.agent.requests import INSTRUCTING, Ask, FilePart, Message, user_text
from palimpsest.serve.http import Refused


class Rule(StrEnum):
    FIELD = "palimpsest_field"
    FILES = "file_parts"
    MESSAGES = "earlier_messages"
    TAGS = "document_tags"
    PARAGRAPH = "last_paragraph"
    CHAT = "plain_chat"


@dataclass(frozen=True, slots=True)
class Input:
    """What is read and what is asked."""

    rule: Rule
    document: Document | None
    questions: tuple[str, ...]
    instructions: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions as an agent gets them, which has no place of its own for instructions."""
        if not self.instructions or self.document is None:
            return self.questions
        return tuple(f"{self.instructions}\n\n{question}" for question in self.questions)


TextOfFile = Callable[[FilePart], tuple[str, str]]
"""(name, text) of a file. Raises Refused."""
_BEGIN, _END = "<document>", "</document>"


def input_of(ask: Ask, text_of_file: TextOfFile, fits: Callable[[str], bool]) -> Input:
    """Raises Refused for what asks nothing, or for a document without text."""
    said = [each for each in ask.messages if each.role not in INSTRUCTING]
    try:
        rule, document, questions = _by_rule(ask, said, text_of_file, fits)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_document") from None
    if not questions or not all(question.strip() for question in questions):
        told = f"{ask.field}: nothing is asked; end with a message of the user"
        raise Refused(400, told, code="no_question", param=ask.field)
    return Input(rule, document, questions, ask.instructions)


def _by_rule(
    ask: Ask, said: Sequence[Message], text_of_file: TextOfFile, fits: Callable[[str], bool]
) -> tuple[Rule, Document | None, tuple[str, ...]]:
    own, files = ask.own, [part for each in said for part in each.files]
    asked = tuple(own.questions or ([own.question] if own.question is not None else []))
    if own.document is not None or own.file_ids is not None:
        texts = [text_of_file(FilePart(each, None, "")) for each in own.file_ids or ()]
        if own.document is not None:
            texts.insert(0, ("document", own.document))
        return Rule.FIELD, document_of(texts), asked or (user_text(said),)
    if files:
        return Rule.FILES, document_of([text_of_file(part) for part in files]), asked or (user_text(said),)
    if not said or said[-1].role != "user":
        return Rule.CHAT, None, ()
    if len(said) > 1:
        earlier = "\n\n".join(f"{each.role}:\n{each.text}" for each in said[:-1])
        return Rule.MESSAGES, document_of([("messages", earlier)]), asked or (said[-1].text,)
    return _of_one(said[0].text, asked, fits, ask.field)


def _of_one(
    message: str, asked: tuple[str, ...], fits: Callable[[str], bool], field: str
) -> tuple[Rule, Document | None, tuple[str, ...]]:
    tagged, rest = _tagged(message)
    if tagged:
        return Rule.TAGS, document_of([("document", "\n\n".join(tagged))]), asked or (rest,)
    if asked:
        return Rule.PARAGRAPH, document_of([("message", message)]), asked
    if fits(message):
        return Rule.CHAT, None, (message,)
    for gap in ("\n\n", "\n"):
        before, _, last = message.strip().rpartition(gap)
        if before.strip():
            return Rule.PARAGRAPH, document_of([("message", before)]), (last,)
    raise Refused(
        400,
        f"{field}: one paragraph beyond the model's window; put the question into a paragraph of its own at the end, "
        "or the document between <document> and </document>",
        code="no_question",
        param=field,
    )


def _tagged(message: str) -> tuple[list[str], str]:
    """What stands between tags, and the rest; in time that grows with the message, whatever it holds.

    >>> _tagged("Read <document>\\nTea.\\n</document> and <document>Ale.</document> Who? <document>")
    (['Tea.', 'Ale.'], 'Read  and  Who? <document>')
    """
    documents, rest, place = list[str](), list[str](), 0
    while (start := message.find(_BEGIN, place)) >= 0 and (end := message.find(_END, start)) >= 0:
        rest.append(message[place:start])
        documents.append(message[start + len(_BEGIN) : end].removeprefix("\n").removesuffix("\n"))
        place = end + len(_END)
    return documents, "".join((*rest, message[place:])).strip()


def shown_name(name: str) -> str:
    """The last part of a file's name, whatever system it is from.

    >>> shown_name("C:\\\\a\\\\b.txt"), shown_name("../../etc/passwd"), shown_name("..")
    ('b.txt', 'passwd', 'file.txt')
    """
    kept = PurePath(name.replace("\\", "/").replace("\0", "")).name[:200]
    return kept if kept not in ("", ".", "..") else "file.txt"
