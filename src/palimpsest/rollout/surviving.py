"""Sampled tokens of earlier turns that still stand in a later prompt, found from the token ids alone.

What a model said in an earlier turn stands in a later prompt behind the tokens that every prompt ends with (the
header after which the model speaks), so only places behind that header are looked at: a sentence of the model's that
was quoted by a tool, or carried over as a memory, is none of its turns. A turn is recognised whole, or with parts cut
out of it, as a prune leaves it that removes one call of several.

Guaranteed: no length of a header and no token of a template is known here; turns are found in their order, each once.
Not covered: agents whose prompts have no common end (nothing is found); which of several equal turns survived, where
some were deleted (the first is taken: the same ids, perhaps other log-probabilities).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise, takewhile

from palimpsest.types import Turn

Tokens = tuple[int, ...]
Kept = tuple[int, int, int]
"""Place in the prompt, index of the turn, place in its completion."""


def surviving(turns: Sequence[Turn], prompt: Tokens) -> list[Kept]:
    """Every token of `prompt` [P] that a trained turn sampled and that stands where the model spoke.

    Prompts end in 8 9; the second turn was cut out, the third has lost its 6:

    >>> from palimpsest.types import Completion, StopReason
    >>> def turn(prompt, sampled):
    ...     return Turn(prompt, Completion(sampled, (-0.5,) * len(sampled), StopReason.STOP), 0, "act")
    >>> turns = (turn((1, 8, 9), (4, 0)), turn((1, 8, 9, 4, 0, 8, 9), (5, 0)), turn((2, 8, 9), (5, 6, 7, 0)))
    >>> surviving(turns, (1, 8, 9, 4, 0, 3, 8, 9, 5, 7, 0, 2, 8, 9))
    [(3, 0, 0), (4, 0, 1), (8, 2, 0), (9, 2, 2), (10, 2, 3)]
    """
    said = [(index, turn.trained_ids) for index, turn in enumerate(turns) if turn.trained_ids]
    header = _common_end([turn.prompt_ids for turn in turns])
    kept: list[Kept] = []
    for start, end in _spoken(prompt, header):
        found = _turn_of(prompt[start:end], said)
        if found is None:
            continue
        number, pairs = found
        kept += [(start + here, said[number][0], there) for here, there in pairs]
        said = said[number + 1 :]
    return kept


def _common_end(prompts: Sequence[Tokens]) -> Tokens:
    """The longest common suffix."""
    columns = zip(*(reversed(prompt) for prompt in prompts), strict=False)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))[::-1]


def _spoken(prompt: Tokens, header: Tokens) -> Iterator[tuple[int, int]]:
    """Start and end of what stands behind each header."""
    size = len(header)
    if not size:
        return
    starts = [
        place + size
        for place in range(len(prompt) - size + 1)
        if prompt[place] == header[0] and prompt[place : place + size] == header
    ]
    yield from ((start, after - size) for start, after in pairwise([*starts, len(prompt) + size]) if start < after)


def _turn_of(text: Tokens, said: Sequence[tuple[int, Tokens]]) -> tuple[int, list[tuple[int, int]]] | None:
    """Which of `said` begins `text`, and pairs of a place in `text` and one in the completion; whole turns first."""
    for number, (_, sampled) in enumerate(said):
        if text[: len(sampled)] == sampled:
            return number, [(place, place) for place in range(len(sampled))]
    for number, (_, sampled) in enumerate(said):
        if sampled[-1] in text and (pairs := _shortened(text[: text.index(sampled[-1]) + 1], sampled)):
            return number, pairs
    return None


def _shortened(text: Tokens, sampled: Tokens) -> list[tuple[int, int]]:
    """Pairs of places if `text` is `sampled` with parts cut out, else none."""
    if len(text) > len(sampled):
        return []
    blocks = SequenceMatcher(None, text, sampled, autojunk=False).get_matching_blocks()
    if sum(block.size for block in blocks) < len(text):
        return []
    return [(block.a + place, block.b + place) for block in blocks for place in range(block.size)]
