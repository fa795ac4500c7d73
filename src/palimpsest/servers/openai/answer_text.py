r"""Text of an answer while its tokens come: without thinking, stop texts and `\boxed{}`.

The content of a box stays; its command and braces are removed.

Guaranteed: the concatenation of all `feed` results and the final `rest` is `final_text` of all tokens, and `unboxed` of
the whole text, for any split into pieces; possible thinking, half characters, and beginnings of stop texts or commands
are withheld until they are certain. An unclosed box is open to the end. Other braces and other LaTeX stay.
Not covered: text before thinking, which was sent already: the answer follows it on a new line; linear time: each piece
is processed with all text before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import spoken

_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>")


def final_text(text: str, stops: Sequence[str] = ()) -> tuple[str, bool]:
    """Visible text of a reply, and whether a stop text cut it.

    >>> final_text("<think>Rome?</think> Paris. END of it", ["END"])
    ('Paris.', True)
    """
    reply = spoken(text).strip()
    places = [offset for stop in stops if (offset := reply.find(stop)) >= 0]
    return (reply[: min(places)].rstrip(), True) if places else (reply, False)


class AnswerText:
    """The text of one answer, token by token."""

    def __init__(self, codec: Codec, stops: Sequence[str], before: str = "") -> None:
        """`before`: the thinking tag at the prompt's end, or ""."""
        self._codec, self._stops, self._before = codec, stops, before
        self._ids: list[int] = []
        self._sent = ""

    def feed(self, ids: Sequence[int]) -> str:
        """New certain text after these tokens."""
        codec = self._codec
        self._ids += [i for i in ids if i not in codec.control_ids or i in codec.thinking_ids]
        text, _ = final_text(self._before + codec.decode(self._ids), self._stops)
        text = text.rstrip("\ufffd")
        held = max((_overlap(text, mark) for mark in (*_TAGS, *self._stops)), default=0)
        return self.rest(text[: len(text) - held].rstrip())

    def rest(self, text: str) -> str:
        """Unsent part of `text`."""
        if self._sent.startswith(text):
            return ""
        new = text[len(self._sent) :] if text.startswith(self._sent) else f"\n{text}"
        self._sent = text
        return new


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` that `mark` may begin with.

    >>> _overlap("a <thi", "<think>"), _overlap("a b", "c")
    (4, 0)
    """
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


_TOKEN = re.compile(r"\\(?:boxed|fbox)(?:\s*(?P<open>\{)|[ \t]+(?=[^\s{]))|(?P<brace>[{}])")
_UNSURE = re.compile(r"\\(?:b(?:o(?:x(?:e(?:d\s*)?)?)?)?|f(?:b(?:o(?:x\s*)?)?)?)?\Z")
"""A possible beginning of a command at the end of a piece."""


def unboxed(text: str) -> str:
    r"""
    >>> unboxed(r"It is \boxed{a {nested} one}."), unboxed(r"\boxed{\boxed{tea}"), unboxed(r"$\boxed 5$"), unboxed("{}")
    ('It is a {nested} one.', 'tea', '$5$', '{}')
    """
    boxes = list[bool]()  # of every open brace, whether it is a box's

    def unwrapped(match: re.Match[str]) -> str:
        if match["brace"] == "}":
            return "" if boxes and boxes.pop() else "}"
        if match["brace"] or match["open"]:
            boxes.append(match["brace"] is None)
        return match["brace"] or ""

    return _TOKEN.sub(unwrapped, text).strip()


class UnboxedText:
    """`unboxed` for one answer, piece by piece."""

    def __init__(self) -> None:
        self._text = self._sent = ""

    def feed(self, text: str) -> str:
        """New certain text after this piece."""
        self._text += text
        unsure = _UNSURE.search(self._text)
        return self._new(self._text if unsure is None else self._text[: unsure.start()])

    def rest(self) -> str:
        """Withheld text, at the end of the answer."""
        return self._new(self._text)

    def _new(self, sure: str) -> str:
        text = unboxed(sure)
        new, self._sent = text[len(self._sent) :], text
        return new
