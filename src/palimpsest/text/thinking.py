"""Thinking in a model's reply: what stands between `<think>` and `</think>`, or `<thinking>` and `</thinking>`.

Either closing ends it, the next one that comes. A closing without an opening, which then stood in the prompt, ends all
that was said before it. Thinking that is never closed goes on to the end.

Not covered: these tags in a quotation; tags in capitals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TAG = re.compile("<(/?)(think|thinking)>")
_LEFT_OPEN = re.compile(r"<(?:think|thinking)>(?=\s*\Z)")


@dataclass(frozen=True, slots=True)
class Thought:
    """Characters [start, end) of a reply, the tags included."""

    start: int
    end: int
    unclosed: str | None = None
    """The tag that opened it, if none closes it."""


def thoughts(text: str) -> Iterator[Thought]:
    """Each as it ends; one whose opening stood in the prompt starts at 0 and holds those before it.

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
    """Characters outside of thinking, in order; the last reach to the end of the text unless thinking does.

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
    """The tag of the thinking that a text ends on, as a prompt does after which the model goes on thinking, or "".

    >>> left_open("<|assistant|>\\n<think>\\n"), left_open("Write <think> first."), left_open("<think>\\n</think>")
    ('<think>', '', '')
    """
    found = _LEFT_OPEN.search(text)
    return found[0] if found else ""


def native_spans(text: str) -> list[tuple[int, int]]:
    """Characters of thinking in `<think>`, the models' own; `<thinking>` may be a part of a reply's form.

    >>> native_spans("<thinking>a</thinking>b<think>c")
    [(23, 31)]
    """
    return [
        (thought.start, thought.end)
        for thought in thoughts(text)
        if text.startswith("<think>", thought.start) or text.endswith("</think>", 0, thought.end)
    ]


def spoken(text: str) -> str:
    """What follows the last thinking that is closed, as far as the next thinking.

    >>> spoken("<think>Rome?</think> Paris"), spoken("<think>Rome? ...")
    (' Paris', '')
    """
    spans = spoken_spans(text)
    return text[slice(*spans[-1])] if spans else ""
