"""Documents inside a message: between tags, under a label, in JSON, or pasted next to a question.

    <context><source id="1" name="a.txt">...</source></context>                     Open WebUI
    <context><file><filename>a.txt</filename><context>...</context></file></context>    LibreChat
    <documents><document index="1"><source>a.txt</source><document_content>...      Anthropic's advice
    Context information is below.\\n-----\\n...\\n-----\\nGiven ... \\nQuery: ...\\nAnswer:      LlamaIndex
    Answer the question based only on the following context:\\n...\\n\\nQuestion: ...          LangChain
    Question: ...\\nContext: ...\\nAnswer:                                                   LangChain's hub
    Context:\\n[CONTEXT 0]:\\n...                                                            AnythingLLM
    Attached document(s):\\n```md\\n...\\n```\\n...                                           LibreChat
    {"context": "...", "question": "..."}

Tags are <document>, <context>, <source>, <passage> and their plurals, nested and with attributes. <user_query>,
<question> and <query> contain the question. Unclosed tags, and pairs around nothing ("inside <context></context> XML
tags"), are text of the message.

Guaranteed: a message loses only tags, labels, fences and a final "Thanks!"; time is linear in its length.
Not covered: a text that contains its closing tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai.request_bodies import json_object

Named = tuple[str, str]
"""(name or "", text) to read."""
Takes = Callable[[str], bool]
"""Returns whether the policy has room for a question."""


class DocumentRule(StrEnum):
    """How the document was separated from the question; of several rules, the first in this order."""

    FIELD = "palimpsest_field"
    FILES = "file_parts"
    TAGS = "document_tags"
    LABEL = "context_label"
    PARAGRAPH = "last_paragraph"
    FIRST = "first_paragraph"
    TOOLS = "tool_messages"
    MESSAGES = "earlier_messages"
    SYSTEM = "system_message"
    UNDIVIDED = "whole_message"


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """Texts, question and instructions of one message or several."""

    rules: tuple[DocumentRule, ...] = ()
    texts: tuple[Named, ...] = ()
    question: str = ""
    instructions: tuple[str, ...] = ()


def joined(*texts: str) -> str:
    return "\n\n".join(part.strip() for part in texts if part.strip())


# ---- Texts between tags --------------------------------------------------------------------------------------


_SEVERAL = ("context", "contexts", "documents", "sources", "passages")
_TAG = re.compile(
    r"<(/?)(documents?|contexts?|sources?|passages?|user_query|question|query)((?:\s[^<>]*)?)>", re.IGNORECASE
)
_QUESTION_TAGS = ("user_query", "question", "query")
_TAG_NAME = re.compile(r"""\b(?:name|title|filename|path)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_NAMED = re.compile(r"<(filename|source|title)>([^<>]*)</\1>", re.IGNORECASE)
_CONTENT = re.compile(r"<(document_contents?|contents?|page_content)>", re.IGNORECASE)
_CONTENT_END = re.compile(r"</(document_contents?|contents?|page_content)>", re.IGNORECASE)
_WRAPPERS = re.compile(r"</?(?:files?|contextItem)>|<!\[CDATA\[|\]\]>", re.IGNORECASE)
_INK = re.compile(r"\S")
INSTRUCTION = 4000
"""Characters of the longest instruction: longer text around a question is part of the document."""


@dataclass(frozen=True, slots=True, order=True)
class _Pair:
    start: int
    end: int
    inner_start: int
    inner_end: int
    kind: str
    attributes: str

    def inner(self, message: str) -> str:
        return message[self.inner_start : self.inner_end]


def tagged(message: str, takes: Takes) -> SplitMessage | None:
    r"""Split a message with tags; None without tags.

    >>> tagged("Read:\n<document>\nTea.\n</document>\nWho?", lambda _: True).instructions
    ('Read:',)
    >>> tagged('<context><source name="a">Tea.</source></context><query>Who?</query>', lambda _: True).texts
    (('a', 'Tea.'),)
    """
    pairs = _pairs(message)
    texts, around, question, cursor, after = list[Named](), list[str](), "", 0, 0
    for pair, kids in _tree([pair for pair in pairs if _INK.search(message, pair.inner_start, pair.inner_end)]):
        around.append(message[cursor : pair.start])
        cursor = pair.end
        if pair.kind in _QUESTION_TAGS:
            question = pair.inner(message).strip()
        else:
            texts += _texts(message, pair, kids)
            after = len(around)
    if not texts:
        empty = any(pair.kind in ("document", "documents") for pair in pairs)
        return SplitMessage((DocumentRule.TAGS,), (("", ""),), message) if empty else None
    around.append(message[cursor:])
    return _split_around(texts, "".join(around[:after]).strip(), question, "".join(around[after:]).strip(), takes)


def _split_around(texts: list[Named], before: str, tagged_question: str, after: str, takes: Takes) -> SplitMessage:
    question, rest = (before, after) if not after or (asks(before) and not asks(after)) else (after, before)
    label = _last(_QUESTION, question)
    instructions: tuple[str, ...] = (rest,)
    if tagged_question:
        question, instructions = tagged_question, (before, after)
    elif label is not None and (named := _ANSWER.sub("", question[label.end() :]).strip()):
        question, instructions = named, (rest, question[: label.start()])
    elif not takes(question) and (divided := pasted(question, takes)) is not None:
        question, ((_, other),) = divided.question, divided.texts
        if len(other) <= INSTRUCTION:
            instructions = (rest, other)
        else:
            texts = [*texts, ("", other)]
    return SplitMessage((DocumentRule.TAGS,), tuple(texts), question, instructions)


def _pairs(message: str) -> list[_Pair]:
    opened, pairs = dict[str, list[re.Match[str]]](), list[_Pair]()
    for tag in _TAG.finditer(message):
        kind = tag[2].lower()
        if not tag[1]:
            opened.setdefault(kind, []).append(tag)
        elif opened.get(kind):
            begin = opened[kind].pop()
            pairs.append(_Pair(begin.start(), tag.end(), begin.end(), tag.start(), kind, begin[3]))
    return sorted(pairs)


def _tree(pairs: list[_Pair]) -> list[tuple[_Pair, list[_Pair]]]:
    tree, inner_end = list[tuple[_Pair, list[_Pair]]](), 0
    for pair in pairs:
        if not tree or pair.start >= tree[-1][0].end:
            tree.append((pair, []))
            inner_end = 0
        elif pair.end <= tree[-1][0].end and pair.start >= inner_end and pair.kind not in _QUESTION_TAGS:
            tree[-1][1].append(pair)
            inner_end = pair.end
    return tree


def _texts(message: str, pair: _Pair, kids: list[_Pair]) -> list[Named]:
    if pair.kind not in _SEVERAL or not kids:
        return [_text(pair.inner(message), pair.attributes)]
    texts, cursor, name = list[Named](), pair.inner_start, ""
    for kid in kids:
        name, between = _between(message[cursor : kid.start])
        texts += [("", between)] if between else []
        title, text = _text(kid.inner(message), kid.attributes)
        texts.append((title or name, text))
        cursor = kid.end
    _, between = _between(message[cursor : pair.inner_end])
    return texts + ([("", between)] if between else [])


def _text(inner: str, attributes: str) -> Named:
    named = _TAG_NAME.search(attributes)
    name = (named[1] or named[2] or "") if named else ""
    if (content := _CONTENT.search(inner)) is not None:
        closing = [
            match for match in _CONTENT_END.finditer(inner, content.end()) if match[1].lower() == content[1].lower()
        ]
        if closing:
            head, before = _between(inner[: content.start()])
            text, after = inner[content.end() : closing[-1].start()].strip("\n"), inner[closing[-1].end() :].strip()
            return name or head, "\n".join(piece for piece in (before, text, after) if piece)
    if "<![CDATA[" in inner or "<contextItem>" in inner:
        return name, "\n".join(line for line in _WRAPPERS.sub("", inner).splitlines() if line.strip())
    return name, inner.removeprefix("\n").removesuffix("\n")


def _between(text: str) -> Named:
    named = _NAMED.search(text)
    rest = _WRAPPERS.sub("", _NAMED.sub("", text)).strip()
    return (named[2].strip() if named else ""), rest


# ---- A question and a pasted text in one message, without tags or labels -------------------------------------


_GAPS = (re.compile(r"\n(?:[ \t\r]*\n)+"), re.compile(r"\n"))
"""Gaps between paragraphs; without blank lines, each line is a paragraph."""
_ASKS = re.compile(r"[?？؟]['\"”’»)\]*_]*\Z")
_THANKS = re.compile(r"(?:many )?(?:thanks|thank you|cheers)(?: (?:a lot|so much|very much|in advance))?[ .!]*", re.I)


def asks(text: str) -> bool:
    """Return whether the text ends with a question mark.

    >>> asks("Who sells tea?"), asks("(Who?) "), asks("Omar sells tea.")
    (True, True, False)
    """
    return _ASKS.search(text.rstrip()[-20:]) is not None


def pasted(message: str, takes: Takes) -> SplitMessage | None:
    r"""The question is the last or the first paragraph that ends with a question mark or has a label. If neither does,
    it is a first paragraph that ends with a colon, or the last, or the one that is short enough. None for a single
    paragraph, or if neither asks or is short enough. A paragraph that asks is returned even if it is too long.

    >>> pasted("Omar sells tea.\n\nWho?\n\nThanks!", lambda _: True).question
    'Who?'
    >>> pasted("Who?\nOmar sells tea.", lambda _: True).rules
    (<DocumentRule.FIRST: 'first_paragraph'>,)
    """
    body, order = message.strip(), list[SplitMessage]()
    before, _, last = body.rpartition("\n")
    if _THANKS.fullmatch(last.strip()):
        body = before.strip()
    for gap in _GAPS:
        order = _divided(body, gap)
        fitting = next((split for split in order if takes(split.question)), None)
        if fitting is not None or [split.rules for split in order] == [(DocumentRule.FIRST,)]:
            return fitting or order[0]
    return order[0] if len(order) == 1 else None


def _divided(text: str, gap: re.Pattern[str]) -> list[SplitMessage]:
    """Possible divisions, the best first; one if a paragraph asks."""
    gaps = [(match.start(), match.end()) for match in gap.finditer(text)]
    if not gaps:
        return []
    (end, after_first), (before_last, start) = gaps[0], gaps[-1]
    last = SplitMessage((DocumentRule.PARAGRAPH,), (("", text[:before_last].rstrip()),), text[start:].strip())
    first = SplitMessage((DocumentRule.FIRST,), (("", text[after_first:].strip()),), text[:end].strip())
    asking = [split for split in (last, first) if asks(split.question) or _QUESTION.match(split.question)]
    return asking[:1] or ([first, last] if first.question.endswith((":", "：")) else [last, first])


# ---- Texts under a label -------------------------------------------------------------------------------------


_WHAT = (
    r"(?:context(?:[ \t]information)?|documents?(?:\(s\))?|passages?|sources?|articles?|text|excerpts?|"
    r"search[ \t]results)"
)
_LABEL_LINE = re.compile(
    rf"^[#*\[ \t]{{0,8}}(?:(?:the|retrieved|relevant|provided|reference|attached)[ \t])?{_WHAT}"
    r"(?:[ \t](?:is|are)(?:[ \t]\w{1,12})?[ \t]below[.:]|[\]*]{0,4}:[*]{0,2})[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(rf"^(?:#{{1,6}}[ \t]{{0,4}}|\[|\*\*){_WHAT}(?:\]|\*\*|[ \t])*$", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(
    rf"^(?=[^\n]{{0,400}}\b(?:following|below|here|this|these|given|provided|attached)\b)"
    rf"(?=[^\n]{{0,400}}\b{_WHAT}\b)[^\n]{{0,400}}:[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ANNOUNCES = re.compile(rf"\b(?:following|below|retrieved)\b(?:.|\n){{0,200}}\b{_WHAT}\b|\b{_WHAT}[ \t]below\b", re.I)
_QUESTION = re.compile(
    r"^[#*\[ \t]{0,8}(?:(?:user(?:'s)?|my|the|current|follow[- ]up)[ \t])?(?:question|query)[\]*]{0,4}[ \t]*"
    r"(?::[*]{0,2}|$)[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWER = re.compile(
    r"\n[#*\[ \t]{0,8}(?:(?:helpful|your|final)[ \t])?(?:answer|response)[\]*]{0,4}:?[*]{0,2}\s*\Z", re.I
)
_FENCE = re.compile(r"^[ \t]*(?:(`{3,})([^\n`]*)|(\"{3}|-{3,}|={3,}|~{3,})[ \t]*)$", re.MULTILINE)
_NAME = re.compile(r'# "([^"\n]{1,200})"')
_EMPTY_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a above according ai all an and answer answering any are as asked assistant at based be below by context "
        "contexts document documents end excerpts find following for from given have helpful here i in information "
        "instructions is it kind my of on only passages pieces please provided queries query question questions "
        "read refer relevant respond response retrieved s search results solely some sources task tasks text texts "
        "that the them then these they this to use user users using various will with you your",
    )
)
_SHORT = 600
_HEAD_WITHIN = 4000
"""Characters to search for a label: a later label belongs to a text."""


def says_nothing(instructions: str) -> bool:
    """Return whether the instructions only mention a context and a question, or a helpful assistant.

    >>> says_nothing("Answer the question based only on the following context:"), says_nothing("Answer in German.")
    (True, False)
    """
    return len(instructions) < _SHORT and _EMPTY_WORDS.issuperset(re.findall(r"\w+", instructions.lower()))


def labelled(message: str) -> SplitMessage | None:
    r"""Split a user's message; None if neither a text nor a question has a label.

    >>> labelled("Context:\nOmar sells tea.\n\nQuestion: Who?\nAnswer:").texts
    (('', 'Omar sells tea.'),)
    >>> labelled("What is sold in the following text?\n\nThe text:\n```\nOmar sells tea.\n```").question
    'What is sold in the following text?'
    """
    head = _head(message)
    if head is None:
        return _before_question(message)
    start, end, says = head
    before, body = message[:start].strip(), message[end:]
    if (early := _last(_QUESTION, before)) is not None:
        text, after = _unfenced(_ANSWER.sub("", body))
        return _held(text, before[early.end() :], before[: early.start()], after)
    question, late = "", _last(_QUESTION, body)
    if late is not None and (question := _ANSWER.sub("", body[late.end() :]).strip()):
        body = body[: late.start()]
    text, after = _unfenced(body)
    if question:
        return _held(text, question, before, says, after)
    if after:
        return _held(text, after, before, says)
    divided = pasted(text[1], lambda _: True)
    if divided is not None and asks(divided.question) and divided.rules == (DocumentRule.PARAGRAPH,):
        return _held((text[0], divided.texts[0][1]), divided.question, before, says)
    return _held(text, joined(before, says))


def labelled_instructions(message: str) -> SplitMessage | None:
    r"""Split a system message: everything below a label is document.

    >>> labelled_instructions("Be brief.\nContext:\nOmar sells tea.").instructions
    ('Be brief.', '', '')
    """
    if (head := _head(message)) is not None:
        start, end, says = head
        (name, text), after = _unfenced(message[end:])
        if text.strip():
            around = (message[:start], says, after)
            return SplitMessage((DocumentRule.LABEL,), ((name, text.strip("\n")),), "", tuple(map(str.strip, around)))
    begin, gap, rest = message.strip().partition("\n\n")
    return SplitMessage((DocumentRule.LABEL,), (("", rest),), "", (begin,)) if gap and _announces(begin, rest) else None


def _announces(paragraph: str, text: str) -> bool:
    """Return whether a paragraph announces a text. Time is bounded by the paragraph's length."""
    return bool(text.strip()) and len(paragraph) <= INSTRUCTION and _ANNOUNCES.search(paragraph) is not None


def _head(message: str) -> tuple[int, int, str] | None:
    """The first label of a text: start, end, and the sentence if it is one."""
    window, heads = message[:_HEAD_WITHIN], list[tuple[int, int, str]]()
    for pattern in (_LABEL_LINE, _HEADING, _SENTENCE):
        if (match := pattern.search(window)) is not None:
            heads.append((match.start(), match.end(), match[0].strip() if pattern is _SENTENCE else ""))
    return min(heads, key=lambda head: (head[0], bool(head[2])), default=None)


def _before_question(message: str) -> SplitMessage | None:
    late = _last(_QUESTION, message)
    if late is None:
        return None
    text, question = message[: late.start()].strip(), _ANSWER.sub("", message[late.end() :])
    begin, gap, rest = text.partition("\n\n")
    if gap and _announces(begin, rest):
        return _held(("", rest), question, begin)
    return _held(("", text), question)


def _held(named: Named, question: str, *instructions: str) -> SplitMessage | None:
    name, text = named
    if not text.strip() or not question.strip():
        return None
    return SplitMessage((DocumentRule.LABEL,), ((name, text.strip("\n").rstrip()),), question.strip(), instructions)


def _unfenced(body: str) -> tuple[Named, str]:
    """A text, perhaps between fences, and the rest after it."""
    fence = _FENCE.search(body)
    if fence is None or body[: fence.start()].strip():
        return ("", body), ""
    sign = (fence[1] or fence[3])[0]
    close = [match for match in _FENCE.finditer(body, fence.end()) if (match[1] or match[3])[0] == sign]
    if not close or not body[fence.end() : close[-1].start()].strip():
        return ("", body), ""
    named = _NAME.search(fence[2] or "")
    inside = body[fence.end() : close[-1].start()]
    return (named[1] if named else "", inside.strip("\n")), body[close[-1].end() :].strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


# ---- Texts in JSON -------------------------------------------------------------------------------------------


def keyed(message: str) -> SplitMessage | None:
    """Split a message that is a JSON object with only texts and one question.

    >>> keyed('{"context": ["Omar sells tea."], "question": "Who?"}').question
    'Who?'
    """
    if not message.lstrip().startswith("{"):
        return None
    try:
        fields = json_object(message.encode("utf-8", "replace"))
    except Refused:
        return None
    texts, questions = list[str](), list[str]()
    for name, value in fields.items():
        target = questions if name in ("question", "query") else texts
        values = value if isinstance(value, list) else [value]
        if not re.fullmatch(r"question|query|(context|document|passage)s?", name) or not all(
            isinstance(item, str) for item in values
        ):
            return None
        target += values
    return _held(("", joined(*texts)), questions[0]) if len(questions) == 1 else None
