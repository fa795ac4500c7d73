"""Segments of a trajectory, and sampled tokens that survive in later prompts, from token ids alone.

A turn whose prompt is the previous prompt, its completion and something appended continues the segment. Any other
prompt fractures the trajectory and opens a new segment.

`surviving` finds the model's earlier replies in a later prompt. Each reply follows the header that every prompt ends
with, so only positions after that header count: a sentence that a tool quoted, or a memory carried over, is not one of
its turns. A turn is recognised whole, or with parts cut out, as after a prune that removes one call of several.

Guaranteed (except for `final="all"`): every sampled token is trained in exactly one segment, and there `token_ids` up
to it is the very context it was sampled in. Aborted completions count like any other. The cost is linear in the tokens
of the turns. No header length and no template token is assumed; surviving turns are found in order, each once.
Not covered: a turn that extends an older segment than the last, which opens a new one. Agents whose prompts have no
common end (nothing is found); identity among equal turns after a deletion (the first is used: the same ids, perhaps
other log-probabilities).

Axes: P prompt tokens, T tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import pairwise, takewhile
from typing import Literal

from palimpsest.types import SampledSpan, Segment, Trajectory, Turn

# ---- Sampled tokens of earlier turns that survive in a later prompt ------------------------------------------


Tokens = tuple[int, ...]
Kept = tuple[int, int, int]
"""Position in the prompt, index of the turn, position in its completion."""


def surviving(turns: Sequence[Turn], prompt: Tokens) -> list[Kept]:
    """Every token of `prompt` [P] that a trained turn sampled and that follows a reply header.

    Prompts end in 8 9; the second turn was cut out, the third has lost its 6:

    >>> from palimpsest.types import Completion, StopReason
    >>> def turn(prompt, sampled):
    ...     return Turn(prompt, Completion(sampled, (-0.5,) * len(sampled), StopReason.STOP), 0, "act")
    >>> turns = (turn((1, 8, 9), (4, 0)), turn((1, 8, 9, 4, 0, 8, 9), (5, 0)), turn((2, 8, 9), (5, 6, 7, 0)))
    >>> surviving(turns, (1, 8, 9, 4, 0, 3, 8, 9, 5, 7, 0, 2, 8, 9))
    [(3, 0, 0), (4, 0, 1), (8, 2, 0), (9, 2, 2), (10, 2, 3)]
    """
    trained = [(index, turn.trained_ids) for index, turn in enumerate(turns) if turn.trained_ids]
    header = _common_end([turn.prompt_ids for turn in turns])
    survivors: list[Kept] = []
    for start, end in _spoken(prompt, header):
        match = _turn_of(prompt[start:end], trained)
        if match is None:
            continue
        number, pairs = match
        survivors += [(start + here, trained[number][0], there) for here, there in pairs]
        trained = trained[number + 1 :]
    return survivors


def _common_end(prompts: Sequence[Tokens]) -> Tokens:
    columns = zip(*(reversed(prompt) for prompt in prompts), strict=False)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))[::-1]


def _spoken(prompt: Tokens, header: Tokens) -> Iterator[tuple[int, int]]:
    size = len(header)
    if not size:
        return
    starts = [
        position + size
        for position in range(len(prompt) - size + 1)
        if prompt[position] == header[0] and prompt[position : position + size] == header
    ]
    yield from ((start, after - size) for start, after in pairwise([*starts, len(prompt) + size]) if start < after)


def _turn_of(text: Tokens, trained: Sequence[tuple[int, Tokens]]) -> tuple[int, list[tuple[int, int]]] | None:
    """The turn of `trained` that `text` starts with, and pairs of positions in both; whole turns first."""
    for number, (_, sampled) in enumerate(trained):
        if text[: len(sampled)] == sampled:
            return number, [(position, position) for position in range(len(sampled))]
    for number, (_, sampled) in enumerate(trained):
        if sampled[-1] in text and (pairs := _shortened(text[: text.index(sampled[-1]) + 1], sampled)):
            return number, pairs
    return None


def _shortened(text: Tokens, sampled: Tokens) -> list[tuple[int, int]]:
    """Pairs of positions if `text` is `sampled` with parts cut out, otherwise none."""
    if len(text) > len(sampled):
        return []
    blocks = SequenceMatcher(None, text, sampled, autojunk=False).get_matching_blocks()
    if sum(block.size for block in blocks) < len(text):
        return []
    return [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]


# ---- Segments of a trajectory --------------------------------------------------------------------------------


FinalSegment = Literal["new_only", "all"]


def segments_of(trajectory: Trajectory, final: FinalSegment = "new_only") -> tuple[Segment, ...]:
    """The rows to train, in the order of their start.

    `final="all"` gives up the guarantee above: in the last segment the earlier turns' tokens that remain in its prompt
    are trained once more, under a context they were not sampled in, with the log-probabilities of their original
    context. MemAct's code does this; its paper, and `new_only`, don't.

    Turns without sampled tokens and turns of frozen roles have nothing to train and are skipped; in later prompts their
    tokens are context. With P1 = 1 2, C1 = 3, P2 = P1 C1 T1 where T1 = 4, C2 = 5 6, and then a rewritten prompt 1 9:

    >>> from palimpsest.types import Completion, Outcome, StopReason
    >>> def turn(step, prompt, sampled):
    ...     return Turn(prompt, Completion(sampled, (-0.5,) * len(sampled), StopReason.STOP), step, "act")
    >>> turns = (turn(0, (1, 2), (3,)), turn(1, (1, 2, 3, 4), (5, 6)), turn(2, (1, 9), (7,)))
    >>> first, second = segments_of(Trajectory("p", "g", 0, turns, Outcome.ANSWERED))
    >>> first.token_ids, first.turn_index
    ((1, 2, 3, 4, 5, 6), (-1, -1, 0, -1, 1, 1))
    >>> second.token_ids, second.sampled
    ((1, 9, 7), (SampledSpan(start=2, end=3, turn=2),))
    """
    segments = list(map(_segment, _runs(trajectory.turns)))
    if final == "all" and len(segments) > 1:
        segments[-1] = _trained_again(segments[-1], trajectory.turns)
    return tuple(segments)


def _trained_again(segment: Segment, turns: Sequence[Turn]) -> Segment:
    """`segment` with surviving tokens of turns before its first one trained in place."""
    begin, _, first = segment.sampled[0]
    again = surviving(turns[:first], segment.token_ids[:begin])
    runs = tuple(SampledSpan(position, position + 1, index) for position, index, _ in again)
    logprobs = tuple(turns[index].completion.logprobs[there] for _, index, there in again)
    return replace(segment, sampled=runs + segment.sampled, logprobs=logprobs + segment.logprobs)


def _runs(turns: Sequence[Turn]) -> list[list[tuple[int, Turn]]]:
    """Turns with their index, grouped into maximal runs in which every prompt extends the one before."""
    runs: list[list[tuple[int, Turn]]] = []
    for index, turn in enumerate(turns):
        if not turn.trained_ids:
            continue
        if runs and _extends(turn.prompt_ids, runs[-1][-1][1]):
            runs[-1].append((index, turn))
        else:
            runs.append([(index, turn)])
    return runs


def _extends(prompt_ids: Tokens, previous: Turn) -> bool:
    before = previous.prompt_ids + previous.completion.token_ids
    return prompt_ids[: len(before)] == before


def _segment(run: list[tuple[int, Turn]]) -> Segment:
    last = run[-1][1]
    token_ids = last.prompt_ids + last.completion.token_ids
    sampled: list[SampledSpan] = []
    logprobs: tuple[float, ...] = ()
    for index, turn in run:
        start, size, added = len(turn.prompt_ids), len(turn.completion.token_ids), turn.completion.logprobs
        if len(added) != size:
            raise ValueError(f"turn {index}: {size} tokens, {len(added)} log-probabilities")
        sampled.append(SampledSpan(start, start + size, index))
        logprobs += added
    return Segment(token_ids, tuple(sampled), logprobs)
