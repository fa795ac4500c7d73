"""Documents inside a message: between tags or fences, under a label, or pasted around a question.

    <context><source id="1" name="a.txt">...</source></context>                     Open WebUI
    <context><file><filename>a.txt</filename><context>...</context></file></context>    LibreChat
    <documents><document index="1"><source>a.txt</source><document_content>...      Anthropic's advice
    Context information is below.\\n-----\\n...\\n-----\\nGiven ... \\nQuery: ...\\nAnswer:      LlamaIndex
    Answer the question based only on the following context:\\n...\\n\\nQuestion: ...          LangChain
    Question: ...\\nContext: ...\\nAnswer:                                                   LangChain's hub
    Context:\\n[CONTEXT 0]:\\n...                                                            AnythingLLM
    Attached document(s):\\n```md\\n...\\n```\\n...                                           LibreChat

Tags are <document>, <context>, <source>, <passage> and their plurals, nested and with attributes. <user_query>,
<question> and <query> hold the question. Unclosed tags, and pairs around nothing ("inside <context></context> XML
tags"), are text of the message.

Guaranteed: a message loses nothing but tags, labels and fences; time grows with its length alone.
Not covered: a text that itself holds the tag that closes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# ---- Texts between tags --------------------------------------------------------------------------------------


Named = tuple[str, str]
"""(name, text) of something to read; "" where it has no name."""
_SEVERAL = ("context", "documents", "sources", "passages")
_TAG = re.compile(
    r"<(/?)(documents?|context|sources?|passages?|user_query|question|query)((?:\s[^<>]*)?)>", re.IGNORECASE
)
_ASKED = ("user_query", "question", "query")
_TAG_NAME = re.compile(r"""\b(?:name|title|filename|path)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_NAMED = re.compile(r"<(filename|source|title)>([^<>]*)</\1>", re.IGNORECASE)
_CONTENT = re.compile(r"<(document_contents?|contents?|page_content)>", re.IGNORECASE)
_CONTENT_END = re.compile(r"</(document_contents?|contents?|page_content)>", re.IGNORECASE)
_WRAPPERS = re.compile(r"</?(?:files?|contextItem)>|<!\[CDATA\[|\]\]>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tagged:
    """A message that holds texts between tags."""

    texts: tuple[Named, ...]
    before: str
    """What is before the last of them, outside of all."""
    after: str
    asked: str = ""
    """Between tags of a question."""


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


def tagged(message: str) -> Tagged | None:
    r"""None for a message without such tags.

    >>> tagged("Read:\n<document>\nTea.\n</document>\nWho?")
    Tagged(texts=(('', 'Tea.'),), before='Read:', after='Who?', asked='')
    >>> tagged('<context><source id="1" name="a">Tea.</source></context><query>Who?</query>')
    Tagged(texts=(('a', 'Tea.'),), before='', after='', asked='Who?')
    """
    pairs = _pairs(message)
    blank = [pair for pair in pairs if not pair.inner(message).strip()]
    held = _tree([pair for pair in pairs if pair.inner(message).strip()])
    texts, outside, asked, place = list[Named](), list[str](), "", 0
    after = 0
    for pair, kids in held:
        outside.append(message[place : pair.start])
        place = pair.end
        if pair.kind in _ASKED:
            asked = pair.inner(message).strip()
        else:
            texts += _texts(message, pair, kids)
            after = len(outside)
    if not texts:
        empty = any(pair.kind in ("document", "documents") for pair in blank)
        return Tagged((("", ""),), "", message) if empty else None
    outside.append(message[place:])
    return Tagged(tuple(texts), "".join(outside[:after]).strip(), "".join(outside[after:]).strip(), asked)


def _pairs(message: str) -> list[_Pair]:
    """Every tag that is closed, with the tag that closes it."""
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
    """Those in no other, and the outermost of those in each."""
    found, inner_end = list[tuple[_Pair, list[_Pair]]](), 0
    for pair in pairs:
        if not found or pair.start >= found[-1][0].end:
            found.append((pair, []))
            inner_end = 0
        elif pair.end <= found[-1][0].end and pair.start >= inner_end and pair.kind not in _ASKED:
            found[-1][1].append(pair)
            inner_end = pair.end
    return found


def _texts(message: str, pair: _Pair, kids: list[_Pair]) -> list[Named]:
    if pair.kind not in _SEVERAL or not kids:
        return [_text(pair.inner(message), pair.attributes)]
    found, place, name = list[Named](), pair.inner_start, ""
    for kid in kids:
        name, between = _between(message[place : kid.start])
        found += [("", between)] if between else []
        own, text = _text(kid.inner(message), kid.attributes)
        found.append((own or name, text))
        place = kid.end
    _, between = _between(message[place : pair.inner_end])
    return found + ([("", between)] if between else [])


def _text(inner: str, attributes: str) -> Named:
    """What is to be read of what a pair holds, and its name."""
    named = _TAG_NAME.search(attributes)
    name = (named[1] or named[2] or "") if named else ""
    if (content := _CONTENT.search(inner)) is not None:
        closing = [
            each for each in _CONTENT_END.finditer(inner, content.end()) if each[1].lower() == content[1].lower()
        ]
        if closing:
            head, before = _between(inner[: content.start()])
            text, after = inner[content.end() : closing[-1].start()].strip("\n"), inner[closing[-1].end() :].strip()
            return name or head, "\n".join(each for each in (before, text, after) if each)
    if "<![CDATA[" in inner or "<contextItem>" in inner:
        return name, "\n".join(line for line in _WRAPPERS.sub("", inner).splitlines() if line.strip())
    return name, inner.removeprefix("\n").removesuffix("\n")


def _between(text: str) -> Named:
    """The name that is in front of a text, and what else is there."""
    named = _NAMED.search(text)
    rest = _WRAPPERS.sub("", _NAMED.sub("", text)).strip()
    return (named[2].strip() if named else ""), rest


# ---- A question and a pasted text in one message, without tags or labels -------------------------------------


Takes = Callable[[str], bool]
"""Whether the policy has room for a question."""
_GAP = re.compile(r"\n(?:[ \t\r]*\n)+")
_ASKS = re.compile(r"[?？؟]['\"”’»)\]*_]*\Z")
_PASTED_SENTENCE = re.compile(r"(?<=[.!?。？！])\s")


@dataclass(frozen=True, slots=True)
class Pasted:
    """A message in two."""

    text: str
    question: str
    first: bool
    """Whether the question is before the text."""


def asks(text: str) -> bool:
    """Whether it ends with a question mark.

    >>> asks("Who sells tea?"), asks("(Who?) "), asks("Omar sells tea.")
    (True, True, False)
    """
    return _ASKS.search(text.rstrip()[-20:]) is not None


def pasted(message: str, takes: Takes) -> Pasted | None:
    r"""The last paragraph is the question, or the first where only that one ends with a question mark or a colon, or
    only that one is short enough; without blank lines, the lines are the paragraphs. None for a single one, or where
    neither is short enough.

    >>> pasted("Omar sells tea.\n\nWho?", lambda _: True)
    Pasted(text='Omar sells tea.', question='Who?', first=False)
    >>> pasted("Who?\nOmar sells tea.", lambda _: True)
    Pasted(text='Omar sells tea.', question='Who?', first=True)
    """
    return _divided(message.strip(), _GAP, takes) or _divided(message.strip(), re.compile(r"\n"), takes)


def by_sentence(message: str, takes: Takes) -> Pasted | None:
    """The same of one paragraph, by its last or first sentence, which has to end with a question mark."""
    found = _divided(message.strip(), _PASTED_SENTENCE, takes)
    return found if found is not None and asks(found.question) else None


def _divided(whole: str, gap: re.Pattern[str], takes: Takes) -> Pasted | None:
    gaps = [(each.start(), each.end()) for each in gap.finditer(whole)]
    if not gaps:
        return None
    (end, after_first), (before_last, start) = gaps[0], gaps[-1]
    last = Pasted(whole[:before_last].rstrip(), whole[start:].strip(), first=False)
    first = Pasted(whole[after_first:].strip(), whole[:end].strip(), first=True)
    first_asks = asks(first.question) or first.question.endswith((":", "："))
    order = (first, last) if first_asks and not asks(last.question) else (last, first)
    return next((each for each in order if takes(each.question)), None)


# ---- Texts under a label or between fences -------------------------------------------------------------------


_WHAT = (
    r"(?:context(?:[ \t]information)?|documents?(?:\(s\))?|passages?|sources?|articles?|text|excerpts?|"
    r"search[ \t]results)"
)
_OWN_LINE = re.compile(
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
_LONGEST = 4_000  # characters
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
_HEAD_WITHIN = 4000
"""Characters in which a label is looked for: one further on belongs to a text."""
_SHORT = 600
"""Characters around a fenced text that may be what is asked of it."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A message that holds a text under a label or between fences."""

    name: str
    text: str
    question: str
    """Empty where none is marked."""
    instructions: str


def says_nothing(instructions: str) -> bool:
    """Whether they only say that there is a context and a question, or that a helpful assistant is asked.

    >>> says_nothing("Answer the question based only on the following context:"), says_nothing("Answer in German.")
    (True, False)
    """
    return len(instructions) < _SHORT and _EMPTY_WORDS.issuperset(re.findall(r"\w+", instructions.lower()))


def labelled(message: str) -> Labelled | None:
    r"""Of a user's message; None where neither a text nor a question has a label.

    >>> labelled("Context:\nOmar sells tea.\n\nQuestion: Who?\nAnswer:")
    Labelled(name='', text='Omar sells tea.', question='Who?', instructions='')
    >>> labelled("What is sold in the following text?\n\nThe text:\n```\nOmar sells tea.\n```").question
    'What is sold in the following text?'
    """
    head = _head(message)
    if head is None:
        return _before_question(message)
    before, body = message[: head.start].strip(), message[head.end :]
    if (early := _last(_QUESTION, before)) is not None:
        name, text, after = _unfenced(_ANSWER.sub("", body))
        return _held(name, text, before[early.end() :], _joined(before[: early.start()], after))
    question, late = "", _last(_QUESTION, body)
    if late is not None and (question := _ANSWER.sub("", body[late.end() :]).strip()):
        body = body[: late.start()]
    name, text, after = _unfenced(body)
    if question:
        return _held(name, text, question, _joined(before, head.says, after))
    if after:
        return _held(name, text, after, _joined(before, head.says))
    parts = pasted(text, lambda _: True)
    if parts is not None and asks(parts.question) and not parts.first:
        return _held(name, parts.text, parts.question, _joined(before, head.says))
    return _held(name, text, _joined(before, head.says), "")


def labelled_instructions(message: str) -> Labelled | None:
    r"""Of a system message, in which all that is below a label is to be read.

    >>> labelled_instructions("Be brief.\nContext:\nOmar sells tea.")
    Labelled(name='', text='Omar sells tea.', question='', instructions='Be brief.')
    """
    if (head := _head(message)) is not None:
        name, text, after = _unfenced(message[head.end :])
        if text.strip():
            return Labelled(name, text.strip("\n"), "", _joined(message[: head.start], head.says, after))
    begin, gap, rest = message.strip().partition("\n\n")
    return Labelled("", rest, "", begin) if gap and rest.strip() and _announces(begin) else None


def _announces(paragraph: str) -> bool:
    """Whether a paragraph says that a text follows. Bounded in time: none has `_LONGEST`."""
    return len(paragraph) <= _LONGEST and _ANNOUNCES.search(paragraph) is not None


def fenced(message: str) -> Labelled | None:
    r"""A text between two fences, with little around it.

    >>> fenced("---\nOmar sells tea.\n---\nWho?")
    Labelled(name='', text='Omar sells tea.', question='Who?', instructions='')
    """
    fence = _FENCE.search(message)
    if fence is None:
        return None
    before = message[: fence.start()].strip()
    name, text, after = _unfenced(message[fence.start() :])
    if text == message[fence.start() :] or not (before or after) or len(before) + len(after) > _SHORT:
        return None
    if not after or (before and asks(before) and not asks(after)):
        before, after = after, before
    return _held(name, text, after, before)


@dataclass(frozen=True, slots=True)
class _Head:
    start: int
    end: int
    says: str
    """Of a sentence, what it says; empty for a label."""


def _head(message: str) -> _Head | None:
    """The first label of a text."""
    window, found = message[:_HEAD_WITHIN], list[_Head]()
    for pattern in (_OWN_LINE, _HEADING, _SENTENCE):
        if (match := pattern.search(window)) is not None:
            says = match[0].strip() if pattern is _SENTENCE else ""
            found.append(_Head(match.start(), match.end(), says))
    return min(found, key=lambda head: (head.start, bool(head.says)), default=None)


def _before_question(message: str) -> Labelled | None:
    """Of a message whose last label is that of the question."""
    late = _last(_QUESTION, message)
    if late is None:
        return None
    text, question = message[: late.start()].strip(), _ANSWER.sub("", message[late.end() :]).strip()
    begin, gap, rest = text.partition("\n\n")
    if gap and rest.strip() and _announces(begin):
        return _held("", rest, question, begin)
    return _held("", text, question, "")


def _held(name: str, text: str, question: str, instructions: str) -> Labelled | None:
    """None where there is nothing to read or nothing is asked."""
    if not text.strip() or not question.strip():
        return None
    return Labelled(name, text.strip("\n").rstrip(), question.strip(), instructions.strip())


def _unfenced(body: str) -> tuple[str, str, str]:
    """(name, text, what is after it) of a text that may be between fences."""
    fence = _FENCE.search(body)
    if fence is None or body[: fence.start()].strip():
        return "", body, ""
    sign = (fence[1] or fence[3])[0]
    close = [each for each in _FENCE.finditer(body, fence.end()) if (each[1] or each[3])[0] == sign]
    if not close or not body[fence.end() : close[-1].start()].strip():
        return "", body, ""
    named = _NAME.search(fence[2] or "")
    inside = body[fence.end() : close[-1].start()]
    return named[1] if named else "", inside.strip("\n"), body[close[-1].end() :].strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _joined(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())
