r"""Text of an answer while its tokens come: without thinking, stop texts and `\boxed{}`.

The content of a box stays in place; the commands and their braces are removed.

Guaranteed: what `feed` gives in a row, and `rest` at the end, is `final_text` of all tokens, and `unboxed` of the whole
text, however it is cut into pieces; nothing that may yet turn out to be thinking, half a character, the beginning of a
stop text or of a command is given early. An unclosed box is open to the end. Other braces and other LaTeX stay.
Not covered: time that grows with the length alone: each piece is looked at with all before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import spoken

_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>")


def final_text(text: str, stops: Sequence[str] = ()) -> tuple[str, bool]:
    """What a reply says, and whether a stop text cut it.

    >>> final_text("<think>Rome?</think> Paris. END of it", ["END"])
    ('Paris.', True)
    """
    reply = spoken(text).strip()
    places = [offset for stop in stops if (offset := reply.find(stop)) >= 0]
    return (reply[: min(places)].rstrip(), True) if places else (reply, False)


class AnswerText:
    """The text of one answer, token by token."""

    def __init__(self, codec: Codec, stops: Sequence[str], before: str = "") -> None:
        """`before`: the thinking tag that ends the prompt, if there is one."""
        self._codec, self._stops, self._before = codec, stops, before
        self._ids: list[int] = []
        self._sent = ""

    def feed(self, ids: Sequence[int]) -> str:
        """What is sure of the text up to these tokens."""
        codec = self._codec
        self._ids += [i for i in ids if i not in codec.control_ids or i in codec.thinking_ids]
        text, _ = final_text(self._before + codec.decode(self._ids), self._stops)
        text = text.rstrip("\ufffd")
        held = max((_overlap(text, mark) for mark in (*_TAGS, *self._stops)), default=0)
        return self.rest(text[: len(text) - held].rstrip())

    def rest(self, text: str) -> str:
        """What has not been given of `text`."""
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` that `mark` may begin with.

    >>> _overlap("a <thi", "<think>"), _overlap("a b", "c")
    (4, 0)
    """
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


# ---- An answer without \boxed{} ------------------------------------------------------------------------------


_TOKEN = re.compile(r"\\(?:boxed|fbox)(?:\s*(?P<open>\{)|[ \t]+(?=[^\s{]))|(?P<brace>[{}])")
_UNSURE = re.compile(r"\\(?:b(?:o(?:x(?:e(?:d\s*)?)?)?)?|f(?:b(?:o(?:x\s*)?)?)?)?\Z")
"""The end of a piece that the next one decides on: a part of a command."""


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
    """The same of one answer, piece by piece."""

    def __init__(self) -> None:
        self._text = self._sent = ""

    def feed(self, text: str) -> str:
        """What is sure of the text up to the end of this piece."""
        self._text += text
        unsure = _UNSURE.search(self._text)
        return self._new(self._text if unsure is None else self._text[: unsure.start()])

    def rest(self) -> str:
        """What was held back, once nothing follows."""
        return self._new(self._text)

    def _new(self, sure: str) -> str:
        text = unboxed(sure)
        new, self._sent = text[len(self._sent) :], text
        return new
