"""Document, question and instructions of a request.

    palimpsest_field    `palimpsest: {document, question}` in the body
    file_parts          the files of the messages, in order; the user's last text is the question
    document_tags       texts between <document>, <context>, <source>... (message_documents.py) in any message
    context_label       texts under "Context:" and the like (message_documents.py)
    fenced_text         a text between two fences, with little around it
    last_paragraph      of the last message all but its last paragraph, which is the question
    first_paragraph     the same where only the first one asks
    earlier_messages    of several messages the last is the question, all before it the document, with their roles
    system_message      a system message, where the user only asks
    whole_message       one paragraph, which is both document and question

Texts found by several rules are read in the order of the messages, and the first rule in this list is named. The agent
always reads a document. Other text around it, and system messages, are instructions: they precede the question if the
policy has room for both, otherwise they are left out, which the reply reports. They never count against the question's
length. No address is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from palimpsest.data.files.text_files import TextDocument, document_of
from palimpsest.errors import DataError
from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.message_documents import (
    Named,
    Tagged,
    Takes,
    asks,
    by_sentence,
    fenced,
    labelled,
    labelled_instructions,
    pasted,
    says_nothing,
    tagged,
)
from palimpsest.servers.openai.request_bodies import INSTRUCTING, Ask, FilePart, Message, user_text


class DocumentRule(StrEnum):
    """The first that applies is named."""

    FIELD = "palimpsest_field"
    FILES = "file_parts"
    TAGS = "document_tags"
    LABEL = "context_label"
    FENCE = "fenced_text"
    PARAGRAPH = "last_paragraph"
    FIRST = "first_paragraph"
    MESSAGES = "earlier_messages"
    SYSTEM = "system_message"
    WHOLE = "whole_message"


@dataclass(frozen=True, slots=True)
class Input:
    """What is read and what is asked."""

    rule: DocumentRule
    document: TextDocument
    questions: tuple[str, ...]
    instructions: str = ""
    left_out: bool = False
    """Whether there were instructions for which the policy has no room."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions as an agent gets them, which has no place of its own for instructions."""
        if not self.instructions:
            return self.questions
        return tuple(f"{self.instructions}\n\n{question}" for question in self.questions)

    def facts(self) -> dict[str, str]:
        """What a reply says of it."""
        more = {"instructions": "left_out" if self.left_out else "passed"} if self.instructions or self.left_out else {}
        return {"input": str(self.rule), **more}


TextOfFile = Callable[[FilePart], tuple[str, str]]
"""(name, text) of a file. Raises Refused."""
TakesAll = Callable[[Sequence[str]], bool]
"""Whether the policy has room for these questions."""
_INSTRUCTION = 4000
"""Characters: a longer message of the system, or text around a question, is read."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Of one message or of several."""

    rules: tuple[DocumentRule, ...] = ()
    texts: tuple[Named, ...] = ()
    question: str = ""
    instructions: tuple[str, ...] = ()


def input_of(ask: Ask, text_of_file: TextOfFile, takes: TakesAll) -> Input:
    """Raises Refused for what asks nothing, or for a document without text."""
    said = [each for each in ask.messages if each.role not in INSTRUCTING]
    own = tuple(ask.own.questions or ([ask.own.question] if ask.own.question is not None else []))
    try:
        found = _given(ask, said, text_of_file) or _of_messages(ask, said, bool(own), lambda text: takes((text,)))
        questions = own or (found.question,)
        if not all(question.strip() for question in questions):
            raise _nothing_asked(ask)
        document = _document(found.texts)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_document") from None
    instructions = _joined([part for part in found.instructions if not says_nothing(part)])
    given = Input(min(found.rules, key=list(DocumentRule).index), document, questions, instructions)
    if given.instructions and not takes(given.asked):
        return Input(given.rule, document, questions, left_out=True)
    return given


def _nothing_asked(ask: Ask) -> Refused:
    why = f"{ask.field}: nothing is asked; end with a message of the user"
    return Refused(400, why, code="no_question", param=ask.field)


def _given(ask: Ask, said: Sequence[Message], text_of_file: TextOfFile) -> _Found | None:
    """What is named as a document."""
    own, files = ask.own, [part for each in said for part in each.files]
    if own.document is not None:
        return _Found((DocumentRule.FIELD,), (("document", own.document),), user_text(said), (ask.instructions,))
    if files:
        texts = [text_of_file(part) for part in files]
        return _Found((DocumentRule.FILES,), tuple(texts), user_text(said), (ask.instructions,))
    return None


def _of_messages(ask: Ask, said: Sequence[Message], asked: bool, takes: Takes) -> _Found:
    """`asked`: whether the question is given apart from the messages."""
    if not said or said[-1].role != "user":
        raise _nothing_asked(ask)
    system, earlier = _of_system(ask.instructions), _of_earlier(said[:-1])
    last = _marked(said[-1].text, takes)
    if last is None:
        other = bool(system.texts or earlier.texts)
        last = _unmarked(ask, said[-1].text, asked, other, takes)
    if not system.texts and last.rules == (DocumentRule.WHOLE,) and len(ask.instructions) > len(said[-1].text):
        system, last = _Found((DocumentRule.SYSTEM,), (("", ask.instructions),)), _Found(question=last.question)
    return _Found(
        system.rules + earlier.rules + last.rules,
        system.texts + earlier.texts + last.texts,
        last.question,
        system.instructions + last.instructions,
    )


def _of_system(message: str) -> _Found:
    if (held := tagged(message)) is not None:
        return _Found((DocumentRule.TAGS,), held.texts, "", (held.before, held.asked, held.after))
    if (found := labelled_instructions(message)) is not None:
        return _Found((DocumentRule.LABEL,), ((found.name, found.text),), "", (found.instructions,))
    if len(message) > _INSTRUCTION:
        return _Found((DocumentRule.SYSTEM,), (("", message),))
    return _Found(instructions=(message,))


def _of_earlier(messages: Sequence[Message]) -> _Found:
    """Texts between tags, and then what was said, with roles."""
    texts, rest, rules = list[Named](), list[Message](), list[DocumentRule]()
    for each in messages:
        held = tagged(each.text) if each.role == "user" else None
        if held is None:
            rest.append(each)
            continue
        texts += held.texts
        rules.append(DocumentRule.TAGS)
        rest.append(Message(each.role, _joined((held.before, held.asked, held.after))))
    if any(each.text.strip() for each in rest):
        texts.append(("messages" if texts else "", _with_roles(rest)))
        rules.append(DocumentRule.MESSAGES)
    return _Found(tuple(rules), tuple(texts))


def _marked(message: str, takes: Takes) -> _Found | None:
    """Of the user's last message, where it says itself what is to be read."""
    if (held := tagged(message)) is not None:
        return _around(held, takes)
    for rule, of in ((DocumentRule.LABEL, labelled), (DocumentRule.FENCE, fenced)):
        if (found := of(message)) is not None and takes(found.question):
            return _Found((rule,), ((found.name, found.text),), found.question, (found.instructions,))
    return None


def _around(held: Tagged, takes: Takes) -> _Found:
    """What is asked around the texts: between tags of its own, after the texts, or before them. A question beyond the
    policy's room is taken apart like a pasted text."""
    if held.asked:
        return _Found((DocumentRule.TAGS,), held.texts, held.asked, (held.before, held.after))
    before, question = held.before, held.after
    if not question or (asks(before) and not asks(question)):
        before, question = question, before
    parts = None if takes(question) else pasted(question, takes)
    if parts is None:
        return _Found((DocumentRule.TAGS,), held.texts, question, (before,))
    if len(parts.text) <= _INSTRUCTION:
        return _Found((DocumentRule.TAGS,), held.texts, parts.question, (before, parts.text))
    return _Found((DocumentRule.TAGS,), (*held.texts, ("", parts.text)), parts.question, (before,))


def _unmarked(ask: Ask, message: str, asked: bool, other: bool, takes: Takes) -> _Found:
    """`other`: whether there is something else to read."""
    if asked:
        return _Found((), ()) if other else _Found((DocumentRule.WHOLE,), (("", message),), message)
    if other and len(message) <= _INSTRUCTION and takes(message):
        return _Found(question=message)
    parts = pasted(message, takes)
    if parts is None and not takes(message):
        parts = by_sentence(message, takes)
    if parts is not None:
        rule = DocumentRule.FIRST if parts.first else DocumentRule.PARAGRAPH
        return _Found((rule,), (("", parts.text),), parts.question)
    if other or takes(message):
        return _Found(question=message) if other else _Found((DocumentRule.WHOLE,), (("", message),), message)
    raise Refused(
        400,
        f"{ask.field}: one paragraph beyond the longest question; put the question into a paragraph of its own at the "
        "end, or the document between <document> and </document>",
        code="no_question",
        param=ask.field,
    )


def _document(texts: Sequence[Named]) -> TextDocument:
    """Texts without names are one. Raises DataError for one without text."""
    if any(name for name, _ in texts):
        return document_of([(name or "document", text) for name, text in texts])
    return document_of([("document", "\n\n".join(text for _, text in texts))])


def _with_roles(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"{each.role}:\n{each.text}" for each in messages if each.text.strip())


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def shown_name(name: str) -> str:
    """The last part of a file's name, whatever system it is from.

    >>> shown_name("C:\\\\a\\\\b.txt"), shown_name("../../etc/passwd"), shown_name("..")
    ('b.txt', 'passwd', 'file.txt')
    """
    kept = PurePath(name.replace("\\", "/").replace("\0", "")).name[:200]
    return kept if kept not in ("", ".", "..") else "file.txt"
