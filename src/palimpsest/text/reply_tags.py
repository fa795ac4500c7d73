"""Tags and thinking in a model's reply, located in its text and cut out as sampled token ids.

    <thinking>...</thinking> <update>the new memory</update> <recall>words to look for</recall>

The rules are the same for every agent that answers in tags:

- Thinking is between `<think>` and `</think>`, or `<thinking>` and `</thinking>`; either closing tag ends it. A closing
  tag without an opening, which was then in the prompt, makes all text before it thinking. Thinking that is never closed
  extends to the end. Tags in thinking are ignored.
- Tags may contain line breaks. A tag that is never closed, a closing without an opening, or one tag inside another is a
  fault. A faulty reply yields only the reason.
- A boundary may be inside a token (`.</` is one token in many vocabularies). That token's share of the content, a few
  characters at each end, is encoded again; every other id is a slice of the sampled ones. Such content enters later
  prompts only: training uses the sampled reply.

Guaranteed: pure; `decode(part.ids) == part.text` for a tokenizer that encodes any text back to itself.
Not covered: attributes in tags, tags in capitals, HTML escapes, which are plain text; thinking tags in a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import Any

from palimpsest.text.codec import Codec, Edges, cached_on_codec

# ---- Thinking in a model's reply -----------------------------------------------------------------------------


_TAG = re.compile("<(/?)(think|thinking)>")
_LEFT_OPEN = re.compile(r"<(?:think|thinking)>(?=\s*\Z)")


@dataclass(frozen=True, slots=True)
class Thought:
    """Characters [start, end) of a reply, the tags included."""

    start: int
    end: int
    unclosed: str | None = None
    """The tag that opened it, if unclosed."""


def thoughts(text: str) -> Iterator[Thought]:
    """Thoughts in the order of their ends; one opened in the prompt starts at 0 and includes the ones before it.

    >>> [(thought.start, thought.end, thought.unclosed) for thought in thoughts("a</think>b<think>c</think>d<think>")]
    [(0, 9, None), (10, 26, None), (27, 34, '<think>')]
    """
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(text):
        if tag[1]:
            yield Thought(opened.start() if opened else 0, tag.end())
            opened = None
        elif opened is None:
            opened = tag
    if opened is not None:
        yield Thought(opened.start(), len(text), opened[0])


def spoken_spans(text: str) -> list[tuple[int, int]]:
    """Characters outside of thinking, in order; the last span reaches the end of the text unless thinking does.

    >>> spoken_spans("a</think>b<think>c</think>d"), spoken_spans("b<think>c")
    ([(9, 10), (26, 27)], [(0, 1)])
    """
    spans: list[tuple[int, int]] = []
    begin = 0
    for thought in thoughts(text):
        if thought.start:
            spans.append((begin, thought.start))
        else:
            spans.clear()
        begin = thought.end
        if thought.unclosed:
            return spans
    return [*spans, (begin, len(text))]


def left_open(text: str) -> str:
    """The opening tag if a text ends in open thinking, as a prompt that starts a thought does; otherwise "".

    >>> left_open("<|assistant|>\\n<think>\\n"), left_open("Write <think> first."), left_open("<think>\\n</think>")
    ('<think>', '', '')
    """
    match = _LEFT_OPEN.search(text)
    return match[0] if match else ""


def native_spans(text: str) -> list[tuple[int, int]]:
    """Characters of thinking in `<think>`, native to models; `<thinking>` may be part of a reply's form.

    >>> native_spans("<thinking>a</thinking>b<think>c")
    [(23, 31)]
    """
    return [
        (thought.start, thought.end)
        for thought in thoughts(text)
        if text.startswith("<think>", thought.start) or text.endswith("</think>", 0, thought.end)
    ]


def spoken(text: str) -> str:
    """The text after the last closed thinking, up to the next thinking.

    >>> spoken("<think>Rome?</think> Paris"), spoken("<think>Rome? ...")
    (' Paris', '')
    """
    spans = spoken_spans(text)
    return text[slice(*spans[-1])] if spans else ""


# ---- Tags in a model's reply ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TagContent:
    """The content of one pair of tags."""

    name: str
    text: str
    inner: tuple[int, int]
    """Characters between the tags."""
    outer: tuple[int, int]
    """Characters, the tags included."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a reply is invalid."""

    reason: str


def find_tags(text: str, names: Sequence[str]) -> list[TagContent] | Fault:
    """The parts called one of `names`, in order, outside of thinking.

    >>> parts = find_tags("<update>a\\nb</update> <recall>c</recall>", ("update", "recall"))
    >>> [(part.name, part.text) for part in parts]
    [('update', 'a\\nb'), ('recall', 'c')]
    >>> find_tags("<update>a <recall>b</recall></update>", ("update", "recall"))
    Fault(reason='<recall> inside <update>')
    >>> find_tags("<thinking>an <update>?</thinking><update>a</update>", ("update",))[0].text
    'a'
    """
    unclosed = next((thought.unclosed for thought in thoughts(text) if thought.unclosed), None)
    if unclosed is not None:
        return Fault(f"{unclosed} is not closed")
    contents: list[TagContent] = []
    tag = re.compile(f"<(/?)({'|'.join(names)})>")
    for start, end in spoken_spans(text):
        within = _tags_within(text, start, end, tag)
        if isinstance(within, Fault):
            return within
        contents += within
    return contents


def _tags_within(text: str, start: int, end: int, tag: re.Pattern[str]) -> list[TagContent] | Fault:
    contents: list[TagContent] = []
    opened: re.Match[str] | None = None
    for match in tag.finditer(text, start, end):
        closing, name = match[1] == "/", match[2]
        if opened is None and closing:
            return Fault(f"</{name}> without <{name}>")
        if opened is None:
            opened = match
        elif closing and name == opened[2]:
            inner = (opened.end(), match.start())
            contents.append(TagContent(name, text[slice(*inner)], inner, (opened.start(), match.end())))
            opened = None
        else:
            return Fault(f"<{'/' * closing}{name}> inside <{opened[2]}>")
    if opened is None:
        return contents
    return Fault(f"thinking inside <{opened[2]}>" if end < len(text) else f"<{opened[2]}> is not closed")


def the_one(contents: Sequence[TagContent], name: str) -> TagContent | Fault:
    """The only part called `name`, which must not be blank.

    >>> the_one([], "update"), the_one([TagContent("update", " ", (8, 9), (0, 18))], "update")
    (Fault(reason='no <update>'), Fault(reason='<update> is empty'))
    """
    mine = [part for part in contents if part.name == name]
    if len(mine) != 1:
        return Fault(f"{len(mine)} times <{name}>" if mine else f"no <{name}>")
    return mine[0] if mine[0].text.strip() else Fault(f"<{name}> is empty")


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts the ids of a reply at positions of its text."""

    ids: tuple[int, ...]
    """[T] without control tokens except around thinking."""
    edges: Edges
    codec: Codec

    @classmethod
    def of(cls, ids: Sequence[int], codec: Codec, before: Sequence[int] = ()) -> Cutter:
        """A cutter for the ids of a completion; its prompt ends with `before`. Thinking opened there counts."""
        reply_ids = thoughtful(ids, codec, before)
        return cls(reply_ids, Edges.of(reply_ids, codec), codec)

    @property
    def text(self) -> str:
        return self.edges.text

    def cut(self, start: int, end: int) -> list[int]:
        places, counts = self.edges.places, self.edges.counts
        first, last = self.edges.last_until(start), self.edges.last_until(end)
        head: list[int] = []
        if places[first] < start:  # the text between two edges straddles the start
            first += 1
            head = self.codec.encode(self.text[start : min(end, places[first])])
        if last < first:
            return head
        tail = self.codec.encode(self.text[places[last] : end]) if places[last] < end else []
        return [*head, *self.ids[counts[first] : counts[last]], *tail]

    def without(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """The ids of all characters except `spans`, which are in order and disjoint."""
        remaining, start = [], 0
        for begin, end in (*spans, (len(self.text), len(self.text))):
            remaining += self.cut(start, begin)
            start = end
        return [i for i in remaining if i not in self.codec.control_ids]


def thoughtful(ids: Sequence[int], codec: Codec, before: Sequence[int] = ()) -> tuple[int, ...]:
    """A reply without control tokens except around thinking, with the opening tag that ends its prompt, if any."""
    return (
        *_opening(codec, tuple(before)),
        *filterfalse((codec.control_ids - codec.thinking_ids).__contains__, ids),
    )


@cached_on_codec
def _opening(codec: Codec, before: tuple[int, ...]) -> tuple[int, ...]:
    opened = left_open(codec.decode(before)) if before else ""
    return tuple(codec.encode_trusted(opened)) if opened else ()


@cached_on_codec
def _tag_starts(codec: Codec) -> frozenset[int]:
    """Tokens that can begin a tag: a reply without any of them has no tag and needs no decoding."""
    tokens = codec.tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).items()
    return frozenset(i for token, i in tokens if "<" in token) - (codec.control_ids - codec.thinking_ids)


def without_thinking(ids: Sequence[int], codec: Codec, before: Sequence[int] = ()) -> list[int]:
    """A reply without control tokens and thinking, safe to put into another prompt.

    `before`: our own text that ends its prompt and may open thinking. Blanks after thinking are removed with it.
    """
    if not _opening(codec, tuple(before)) and _tag_starts(codec).isdisjoint(ids):
        return list(codec.strip_stop(ids))
    text = codec.decode(thoughtful(ids, codec, before))
    spans = spoken_spans(text)
    if spans == [(0, len(text))]:
        return list(codec.strip_stop(ids))
    cutter, speech = Cutter.of(ids, codec, before), list[int]()
    for start, end in spans:
        speech += cutter.cut(start + len(text[start:end]) - len(text[start:end].lstrip()) if start else 0, end)
    return speech


@dataclass(frozen=True, slots=True)
class RecallReply:
    """A reply with an update and perhaps a query."""

    update: list[int]
    """Ids inside `<update>`."""
    rest: list[int]
    """Ids of the whole reply without `<recall>...</recall>` and thinking in `<think>`."""
    query: str | None
    fault: str | None = None
    """Why an accepted reply has no update, or several."""


def read_recall_reply(
    ids: Sequence[int], codec: Codec, *, before: Sequence[int] = (), lenient: bool = False
) -> RecallReply | Fault:
    """Exactly one update, at most one recall; a blank query counts as none.

    `lenient` accepts a reply whose update is missing, doubled or blank: its `update` is then the first nonblank one, as
    in the authors' code, or empty, and its `fault` is the reason. It drops all recalls but looks up only a single one.
    """
    cutter = Cutter.of(ids, codec, before)
    contents = find_tags(cutter.text, ("update", "recall"))
    if lenient:
        return _accepted(cutter, [] if isinstance(contents, Fault) else contents)
    if isinstance(contents, Fault):
        return contents
    update = the_one(contents, "update")
    if isinstance(update, Fault):
        return update
    recalls = [part for part in contents if part.name == "recall"]
    if len(recalls) > 1:
        return Fault(f"{len(recalls)} times <recall>")
    return _reply(cutter, update, recalls)


def _accepted(cutter: Cutter, contents: Sequence[TagContent]) -> RecallReply:
    updates = find_tags(cutter.text, ("update",))  # separately: a truncated recall doesn't undo it
    update = updates if isinstance(updates, Fault) else the_one(updates, "update")
    recalls = [part for part in contents if part.name == "recall"]
    if isinstance(updates, Fault) or not isinstance(update, Fault):
        return _reply(cutter, update, recalls)
    first = next((part for part in updates if part.text.strip()), update)
    return replace(_reply(cutter, first, recalls), fault=update.reason)


def _reply(cutter: Cutter, update: TagContent | Fault, recalls: Sequence[TagContent]) -> RecallReply:
    query = recalls[0].text.strip() if len(recalls) == 1 else ""
    return RecallReply(
        update=[] if isinstance(update, Fault) else cutter.cut(*update.inner),
        rest=cutter.without(sorted([*(part.outer for part in recalls), *native_spans(cutter.text)])),
        query=query or None,
        fault=update.reason if isinstance(update, Fault) else None,
    )


def content_text(content: Any) -> str:
    """Text of a chat message: a string, null, or the parts of a list that aren't thinking. Raises TypeError or
    LookupError.

    >>> content_text([{"type": "thinking", "thinking": []}, {"type": "text", "text": "tea"}]), content_text(None)
    ('tea', '')
    """
    if isinstance(content, list):
        texts = {"text": "text", "output_text": "text", "refusal": "refusal"}
        return "".join(part[texts[part["type"]]] for part in content if part["type"] in texts)
    if not isinstance(content, str | None):
        raise TypeError("no text")
    return content or ""
