"""An answer as it is said: tokens to text, thinking kept apart, cut where a stop text begins.

Guaranteed: what `feed` gives in a row, and `rest` at the end, is `whole` of all tokens; nothing that may yet turn out
to be thinking, half a character or the beginning of a stop text is given early.
"""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.text.codec import Codec
from palimpsest.text.thinking import spoken

_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>")


def whole(text: str, stops: Sequence[str] = ()) -> tuple[str, bool]:
    """What a reply says, and whether a stop text cut it.

    >>> whole("<think>Rome?</think> Paris. END of it", ["END"])
    ('Paris.', True)
    """
    said = spoken(text).strip()
    places = [place for stop in stops if (place := said.find(stop)) >= 0]
    return (said[: min(places)].rstrip(), True) if places else (said, False)


class AnswerText:
    """The text of one answer, piece by piece."""

    def __init__(self, codec: Codec, stops: Sequence[str], before: str = "") -> None:
        """`before`: the tag of the thinking that prompts end on, if they do."""
        self._codec, self._stops, self._before = codec, stops, before
        self._ids: list[int] = []
        self._given = ""

    def feed(self, ids: Sequence[int]) -> str:
        """What can be given now."""
        codec = self._codec
        self._ids += [i for i in ids if i not in codec.control_ids or i in codec.thinking_ids]
        said, _ = whole(self._before + codec.decode(self._ids), self._stops)
        said = said.rstrip("\ufffd")
        held = max((_overlap(said, mark) for mark in (*_TAGS, *self._stops)), default=0)
        return self._new(said[: len(said) - held].rstrip())

    def rest(self, said: str) -> str:
        """What is left of `said`, the whole of it."""
        return self._new(said)

    def _new(self, said: str) -> str:
        if not said.startswith(self._given):
            return ""
        new, self._given = said[len(self._given) :], said
        return new


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` that `mark` may begin with.

    >>> _overlap("a <thi", "<think>"), _overlap("a b", "c")
    (4, 0)
    """
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
