"""Where the tokens of a text begin and end.

A tokenizer that falls back to bytes, or works on them, may need several tokens for a character; the text of the first
of them is no beginning of the whole text then. Between such tokens is no edge:

    ids       a    <0xC3>  <0xA9>   b          edges, tokens before: 0  1  3  4
    text      a    é                b                characters before: 0  1  2  3

Guaranteed: both numbers never fall; the first edge is before all tokens, the last after them; time is linear in the
tokens, but in the square of a stretch without an edge.
Not covered: decoders that look back further than one stretch between edges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Edges:
    """Edge number i has counts[i] tokens and places[i] characters before it."""

    text: str
    counts: tuple[int, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, ids: Sequence[int], codec: Codec) -> Edges:
        """Of the text of `ids` [T]."""
        text = codec.decode(ids)
        counts, places = [0], [0]
        back, seen = (
            0,
            "",
        )  # the stretch before the last edge, decoded with what follows: some decoders strip a beginning
        for count in range(1, len(ids) + 1):
            decoded = codec.decode(ids[back:count])
            if decoded.startswith(seen) and text.startswith(decoded[len(seen) :], places[-1]):
                places.append(places[-1] + len(decoded) - len(seen))
                back, seen = counts[-1], codec.decode(ids[counts[-1] : count])
                counts.append(count)
        if counts[-1] < len(ids) or places[-1] < len(text):
            counts.append(len(ids))
            places.append(len(text))
        return cls(text, tuple(counts), tuple(places))

    def at(self, place: int) -> int | None:
        """How many tokens make up the text before a character, None if no number does."""
        number = self.first_from(place)
        return self.counts[number] if number < len(self.places) and self.places[number] == place else None

    def first_from(self, place: int) -> int:
        """Number of the first edge at or after a character; one more than there are if there is none."""
        return bisect_left(self.places, place)

    def last_until(self, place: int) -> int:
        """Number of the last edge at or before a character."""
        return bisect_right(self.places, place) - 1
