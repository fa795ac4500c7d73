"""From the body of a request to a query: its document, questions and instructions.

    palimpsest_field    `palimpsest: {document, question}` in the body
    file_parts          the files of the messages, in order; the user's last text is the question
    document_tags       texts between <document>, <context>, <source>... (message_documents.py) in any message
    context_label       texts under "Context:" and the like, or under such keys of JSON (message_documents.py)
    last_paragraph      of the last message all but its last paragraph, which is the question
    first_paragraph     the same where only the first one asks
    tool_messages       what tools gave
    earlier_messages    of several messages the last is the question, all before it the document, with their roles
    system_message      a system message, where the user only asks
    whole_message       one paragraph, which is both document and question

Texts found by several rules are read in the order of the messages, and the first rule in this list is named. The agent
always reads a document. Other text around it, and system messages, are instructions: they precede the question if the
policy has room for both, otherwise they are left out, which the reply reports. They never count against the question's
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
from palimpsest.servers.openai.served_agent import AgentInterface, Query

TakesAll = Callable[[Sequence[str]], bool]
"""Whether the policy has room for these questions."""


def query_of(body: ChatBody, agent: AgentInterface, drawn: int | None = None) -> tuple[Query, dict[str, str]]:
    """The query of a body, and what a reply says of how it was found. Takes time that grows with the body.

    `drawn`: the seed of the request that this one repeats. Raises Refused for what asks nothing, or for a document
    without text.
    """
    found, questions = read(body, agent.takes)
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
        document = _document(found.texts)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_document") from None
    instructions = joined(*(part for part in found.instructions if not says_nothing(part)))
    facts = {"input": str(min(found.rules, key=list(DocumentRule).index))}
    asked = (sampling, seed, body.answer_tokens, tuple(body.stop))
    query = Query(document, questions, instructions, *asked)
    if instructions:
        passed = agent.takes(query.asked)
        facts["instructions"] = "passed" if passed else "left_out"
        query = query if passed else Query(document, questions, "", *asked)
    assert query.digest  # computed here, on a thread where the document is long
    return query, facts


def read(body: ChatBody, takes: TakesAll) -> tuple[SplitMessage, tuple[str, ...]]:
    """What the messages of a body hold, and what is asked of it. Raises Refused."""
    own = body.palimpsest
    given = tuple(own.questions or ([own.question] if own.question is not None else []))
    said = [each for each in body.messages if each.role not in INSTRUCTING]
    instructions = joined(*(each.text for each in body.messages if each.role in INSTRUCTING))
    files = [part for each in said for part in each.files]
    if own.document is not None:
        found = SplitMessage((DocumentRule.FIELD,), (("document", own.document),), user_text(said), (instructions,))
    elif files:
        found = SplitMessage((DocumentRule.FILES,), tuple(map(_file, files)), user_text(said), (instructions,))
    else:
        found = _of_messages(instructions, said, bool(given), lambda text: takes((text,)))
    questions = given or (found.question,)
    if not all(question.strip() for question in questions):
        raise _no_question("nothing is asked; end with a message of the user")
    return found, questions


def _no_question(why: str) -> Refused:
    return Refused(400, f"messages: {why}", code="no_question", param="messages")


def _of_messages(instructions: str, messages: Sequence[Message], asked: bool, takes: Takes) -> SplitMessage:
    """`asked`: whether the question is given apart from the messages."""
    said = [each for each in messages if each.role != "tool"]
    tools = tuple(("", each.text) for each in messages if each.role == "tool" and each.text.strip())
    while tools and said and not said[-1].text.strip():  # the call of the tool
        said.pop()
    if not said or said[-1].role != "user":
        raise _no_question("nothing is asked; end with a message of the user")
    system, earlier = _of_system(instructions), _of_earlier(said[:-1])
    if tools:
        earlier = SplitMessage((*earlier.rules, DocumentRule.TOOLS), (*earlier.texts, *tools))
    other = bool(system.texts or earlier.texts)
    message = said[-1].text
    last = _marked(message, takes) or _unmarked(message, asked, other, takes)
    if not system.texts and last.rules == (DocumentRule.WHOLE,) and len(instructions) > len(message):
        system, last = SplitMessage((DocumentRule.SYSTEM,), (("", instructions),)), SplitMessage(question=last.question)
    return SplitMessage(
        system.rules + earlier.rules + last.rules,
        system.texts + earlier.texts + last.texts,
        last.question,
        system.instructions + last.instructions,
    )


def _of_system(message: str) -> SplitMessage:
    if (found := tagged(message, lambda _: True)) is not None:
        return SplitMessage(found.rules, found.texts, "", (*found.instructions, found.question))
    if (found := labelled_instructions(message)) is not None:
        return found
    if len(message) > INSTRUCTION:
        return SplitMessage((DocumentRule.SYSTEM,), (("", message),))
    return SplitMessage(instructions=(message,))


def _of_earlier(messages: Sequence[Message]) -> SplitMessage:
    """Texts between tags, and then what was said, with roles."""
    texts, rest, rules = list[Named](), list[str](), list[DocumentRule]()
    for each in messages:
        held = tagged(each.text, lambda _: True) if each.role == "user" else None
        if held is not None:
            texts += held.texts
            rules.append(DocumentRule.TAGS)
        text = each.text if held is None else joined(*held.instructions, held.question)
        rest += [f"{each.role}:\n{text}"] if text.strip() else []
    if rest:
        texts.append(("messages" if texts else "", "\n\n".join(rest)))
        rules.append(DocumentRule.MESSAGES)
    return SplitMessage(tuple(rules), tuple(texts))


def _marked(message: str, takes: Takes) -> SplitMessage | None:
    """Of the user's last message, where it says itself what is to be read."""
    if (found := tagged(message, takes)) is not None:
        return found
    return next((found for of in (keyed, labelled) if (found := of(message)) and takes(found.question)), None)


def _unmarked(message: str, asked: bool, other: bool, takes: Takes) -> SplitMessage:
    """`other`: whether there is something else to read."""
    whole = SplitMessage(question=message) if other else SplitMessage((DocumentRule.WHOLE,), (("", message),), message)
    if asked or (other and len(message) <= INSTRUCTION and takes(message)):
        return whole
    if (parts := pasted(message, takes)) is not None:
        return parts
    if other or takes(message):
        return whole
    raise _no_question(
        "one paragraph beyond the longest question; put the question into a paragraph of its own at the end, or the "
        "document between <document> and </document>"
    )


def _document(texts: Sequence[Named]) -> TextDocument:
    """Texts without names are one. Raises DataError for one without text."""
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
    """The last part of a file's name, whatever system it is from.

    >>> shown_name("C:\\\\a\\\\b.txt"), shown_name("../../etc/passwd"), shown_name("..")
    ('b.txt', 'passwd', 'file.txt')
    """
    kept = PurePath(name.replace("\\", "/").replace("\0", "")).name[:200]
    return kept if kept not in ("", ".", "..") else "file.txt"
