"""From the body of a request to a query: its document, questions and instructions.

    palimpsest_field    `palimpsest: {document, question}` in the body
    file_parts          the files of the messages, in order; the user's last text is the question
    document_tags       texts between <document>, <context>, <source>... (message_documents.py) in any message
    context_label       texts under "Context:" and the like, or under such keys of JSON (message_documents.py)
    last_paragraph      the last message, whose last paragraph is the question
    first_paragraph     the same if only the first paragraph is a question
    tool_messages       results of tools
    earlier_messages    the last message is the question, all earlier ones are the document, with their roles
    system_message      a system message, if the user only asks
    whole_message       one paragraph, which is both document and question

Texts found by several rules are read in the order of the messages; the reply names the first rule in this list. The
agent always reads a document. Other text around it, and system messages, are instructions: they precede the question if
the policy has room for both; otherwise the server drops them and reports it. They never count against the question's
length. No address is fetched.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import TextDocument, document_of, text_of
from palimpsest.errors import DataError
from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.message_documents import (
    INSTRUCTION,
    DocumentRule,
    Named,
    SplitMessage,
    Takes,
    joined,
    keyed,
    labelled,
    labelled_instructions,
    pasted,
    says_nothing,
    tagged,
)
from palimpsest.servers.openai.request_bodies import INSTRUCTING, ChatBody, FilePart, Message, user_text
from palimpsest.servers.openai.served_agent import Query, ServedAgent

TakesAll = Callable[[Sequence[str]], bool]
"""Returns whether the policy has room for these questions."""


def query_of(body: ChatBody, agent: ServedAgent, drawn: int | None = None) -> tuple[Query, dict[str, str]]:
    """The query of a body, and its parsing for the reply. Time grows with the body.

    `drawn`: the seed of the earlier request that this one repeats. Raises Refused for a body without a question, or a
    document without text.
    """
    split, questions = read(body, agent.takes)
    default = agent.sampling
    sampling = SamplingConfig(
        temperature=default.temperature if body.temperature is None else body.temperature,
        top_p=default.top_p if body.top_p is None else body.top_p,
    )
    seed = body.palimpsest.seed if body.seed is None else body.seed
    if seed is None and sampling.temperature == 0:
        seed = agent.seed
    if seed is None:
        seed = secrets.randbits(62) if drawn is None else drawn
    try:
        document = _document(split.texts)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_document") from None
    instructions = joined(*(part for part in split.instructions if not says_nothing(part)))
    facts = {"input": str(min(split.rules, key=list(DocumentRule).index))}
    settings = (sampling, seed, body.answer_tokens, tuple(body.stop))
    query = Query(document, questions, instructions, *settings)
    if instructions:
        passed = agent.takes(query.prompts)
        facts["instructions"] = "passed" if passed else "left_out"
        query = query if passed else Query(document, questions, "", *settings)
    assert query.digest  # computed here, on a thread where the document is long
    return query, facts


def read(body: ChatBody, takes: TakesAll) -> tuple[SplitMessage, tuple[str, ...]]:
    """Content of the body's messages, and its questions. Raises Refused."""
    options = body.palimpsest
    explicit = tuple(options.questions or ([options.question] if options.question is not None else []))
    messages = [message for message in body.messages if message.role not in INSTRUCTING]
    instructions = joined(*(message.text for message in body.messages if message.role in INSTRUCTING))
    files = [part for message in messages for part in message.files]
    if options.document is not None:
        split = SplitMessage(
            (DocumentRule.FIELD,), (("document", options.document),), user_text(messages), (instructions,)
        )
    elif files:
        split = SplitMessage((DocumentRule.FILES,), tuple(map(_file, files)), user_text(messages), (instructions,))
    else:
        split = _of_messages(instructions, messages, bool(explicit), lambda text: takes((text,)))
    questions = explicit or (split.question,)
    if not all(question.strip() for question in questions):
        raise _no_question("no question; end with a user message")
    return split, questions


def _no_question(why: str) -> Refused:
    return Refused(400, f"messages: {why}", code="no_question", param="messages")


def _of_messages(instructions: str, messages: Sequence[Message], has_question: bool, takes: Takes) -> SplitMessage:
    """`has_question`: the question is not in the messages."""
    turns = [message for message in messages if message.role != "tool"]
    tools = tuple(("", message.text) for message in messages if message.role == "tool" and message.text.strip())
    while tools and turns and not turns[-1].text.strip():  # the call of the tool
        turns.pop()
    if not turns or turns[-1].role != "user":
        raise _no_question("no question; end with a user message")
    system, earlier = _of_system(instructions), _of_earlier(turns[:-1])
    if tools:
        earlier = SplitMessage((*earlier.rules, DocumentRule.TOOLS), (*earlier.texts, *tools))
    other = bool(system.texts or earlier.texts)
    message = turns[-1].text
    last = _marked(message, takes) or _unmarked(message, has_question, other, takes)
    if not system.texts and last.rules == (DocumentRule.UNDIVIDED,) and len(instructions) > len(message):
        system, last = SplitMessage((DocumentRule.SYSTEM,), (("", instructions),)), SplitMessage(question=last.question)
    return SplitMessage(
        system.rules + earlier.rules + last.rules,
        system.texts + earlier.texts + last.texts,
        last.question,
        system.instructions + last.instructions,
    )


def _of_system(message: str) -> SplitMessage:
    if (split := tagged(message, lambda _: True)) is not None:
        return SplitMessage(split.rules, split.texts, "", (*split.instructions, split.question))
    if (split := labelled_instructions(message)) is not None:
        return split
    if len(message) > INSTRUCTION:
        return SplitMessage((DocumentRule.SYSTEM,), (("", message),))
    return SplitMessage(instructions=(message,))


def _of_earlier(messages: Sequence[Message]) -> SplitMessage:
    texts, rest, rules = list[Named](), list[str](), list[DocumentRule]()
    for message in messages:
        held = tagged(message.text, lambda _: True) if message.role == "user" else None
        if held is not None:
            texts += held.texts
            rules.append(DocumentRule.TAGS)
        text = message.text if held is None else joined(*held.instructions, held.question)
        rest += [f"{message.role}:\n{text}"] if text.strip() else []
    if rest:
        texts.append(("messages" if texts else "", "\n\n".join(rest)))
        rules.append(DocumentRule.MESSAGES)
    return SplitMessage(tuple(rules), tuple(texts))


def _marked(message: str, takes: Takes) -> SplitMessage | None:
    if (split := tagged(message, takes) or keyed(message)) is not None:
        return split
    return split if (split := labelled(message)) and takes(split.question) else None


def _unmarked(message: str, has_question: bool, other: bool, takes: Takes) -> SplitMessage:
    """`other`: the request has other text to read."""
    one = (
        SplitMessage(question=message) if other else SplitMessage((DocumentRule.UNDIVIDED,), (("", message),), message)
    )
    if has_question or (other and len(message) <= INSTRUCTION and takes(message)):
        return one
    if (divided := pasted(message, takes)) is not None:
        return divided
    if other or takes(message):
        return one
    raise _no_question(
        "a single paragraph, too long for a question; put the question into a separate last paragraph, or the document "
        "between <document> and </document>"
    )


def _document(texts: Sequence[Named]) -> TextDocument:
    if any(name for name, _ in texts):
        return document_of([(name or "document", text) for name, text in texts])
    return document_of([("document", "\n\n".join(text for _, text in texts))])


def _file(part: FilePart) -> Named:
    name = shown_name(part.name)
    try:
        return name, text_of(Path(name), part.data)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_file") from None


def shown_name(name: str) -> str:
    """The last part of a file's name, from any operating system.

    >>> shown_name("C:\\\\a\\\\b.txt"), shown_name("../../etc/passwd"), shown_name("..")
    ('b.txt', 'passwd', 'file.txt')
    """
    base = PurePath(name.replace("\\", "/").replace("\0", "")).name[:200]
    return base if base not in ("", ".", "..") else "file.txt"
