"""Segments of a trajectory, found from its token ids alone.

A turn whose prompt is the previous prompt, its completion and something appended continues the segment; any
other prompt has fractured the trajectory and opens a new one. Axis letters: P prompt tokens, T tokens of a
segment.

Guaranteed (but for `final="all"`): every sampled token is trained in exactly one segment, and there
`token_ids` up to it is the very context it was sampled in, whatever the policy did. Aborted completions count
like any other as far as they got. The cost is linear in the tokens of the turns, however many there are.

Not covered: a turn that extends an older segment than the last opens a new segment (its `parent` says what
the two share); nothing here looks at text, so two texts with different ids share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from palimpsest.rollout.surviving import surviving
from palimpsest.types import Segment, Trajectory, Turn

_BLOCK = 128  # tokens compared at once, at C speed, before looking for the exact place of a difference

Tokens = tuple[int, ...]
FinalSegment = Literal["new_only", "all"]


def segments_of(trajectory: Trajectory, final: FinalSegment = "new_only") -> tuple[Segment, ...]:
    """The rows to train, in the order they were begun.

    `final="all"` gives up what is guaranteed above: in the last segment the earlier turns' tokens that still stand in
    its prompt are trained once more, under a context they were not sampled in, with the log-probabilities of the
    context they were. It's what MemAct's code does; its paper, and `new_only`, don't.

    A turn that sampled nothing, or that a frozen role took, has nothing to train and is passed over; where later
    prompts hold its tokens they are context. With P1 = 1 2, C1 = 3, P2 = P1 C1 T1
    where T1 = 4, C2 = 5 6, and then a rewritten prompt 1 9:

    >>> from palimpsest.types import Completion, Outcome, StopReason
    >>> def turn(step, prompt, sampled):
    ...     return Turn(prompt, Completion(sampled, (-0.5,) * len(sampled), StopReason.STOP), step, "act")
    >>> turns = (turn(0, (1, 2), (3,)), turn(1, (1, 2, 3, 4), (5, 6)), turn(2, (1, 9), (7,)))
    >>> first, second = segments_of(Trajectory("p", "g", 0, turns, Outcome.ANSWERED))
    >>> first.token_ids, first.turn_index
    ((1, 2, 3, 4, 5, 6), (-1, -1, 0, -1, 1, 1))
    >>> second.token_ids, second.loss_mask
    ((1, 9, 7), (False, False, True))
    >>> second.parent, second.shared_length
    (0, 1)
    """
    prefixes = _PrefixTree()
    found = [_segment(run, number, prefixes) for number, run in enumerate(_runs(trajectory.turns))]
    if final == "all" and len(found) > 1:
        found[-1] = _trained_again(found[-1], trajectory.turns)
    return tuple(found)


def _trained_again(segment: Segment, turns: Sequence[Turn]) -> Segment:
    """`segment` with the tokens of turns before its own first one trained where they stand."""
    mask, logprobs, turn_index = list(segment.loss_mask), list(segment.logprobs), list(segment.turn_index)
    begin = mask.index(True)
    for place, index, there in surviving(turns[: turn_index[begin]], segment.token_ids[:begin]):
        mask[place], turn_index[place] = True, index
        logprobs[place] = turns[index].completion.logprobs[there]
    return replace(segment, loss_mask=tuple(mask), logprobs=tuple(logprobs), turn_index=tuple(turn_index))


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
    """Whether `prompt_ids` [P] begins with the previous prompt and its completion."""
    seen, sampled = len(previous.prompt_ids), len(previous.completion.token_ids)
    return (
        prompt_ids[:seen] == previous.prompt_ids and prompt_ids[seen : seen + sampled] == previous.completion.token_ids
    )


def _segment(run: list[tuple[int, Turn]], number: int, prefixes: _PrefixTree) -> Segment:
    last = run[-1][1]
    token_ids = last.prompt_ids + last.completion.token_ids
    mask, logprobs, turn_index = [False] * len(token_ids), [0.0] * len(token_ids), [-1] * len(token_ids)
    for index, turn in run:
        sampled = turn.completion
        if len(sampled.logprobs) != len(sampled.token_ids):
            raise ValueError(
                f"turn {index}: {len(sampled.token_ids)} tokens, {len(sampled.logprobs)} log-probabilities"
            )
        for place, logprob in enumerate(sampled.logprobs, start=len(turn.prompt_ids)):
            mask[place], logprobs[place], turn_index[place] = True, logprob, index
    parent, shared_length = prefixes.insert(token_ids, number)
    return Segment(token_ids, tuple(mask), tuple(logprobs), tuple(turn_index), parent, shared_length)


@dataclass(slots=True)
class _Edge:
    """Tokens [start, end) of segment `owner`, the earliest whose path from the root runs along this edge."""

    tokens: Tokens
    owner: int
    start: int
    end: int
    children: dict[int, _Edge] = field(default_factory=dict)


class _PrefixTree:
    """A radix tree over the segments so far: an insertion costs its shared length, however many there are."""

    def __init__(self) -> None:
        self._root = _Edge((), -1, 0, 0)

    def insert(self, tokens: Tokens, owner: int) -> tuple[int | None, int]:
        """Add `tokens`; returns the earliest owner of their longest known prefix, or None, and its length."""
        node, depth, nearest = self._root, 0, None
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                node.children[tokens[depth]] = _Edge(tokens, owner, depth, len(tokens))
                break
            depth = _first_difference(child.tokens, tokens, depth, min(child.end, len(tokens)))
            nearest = child.owner
            if depth < min(child.end, len(tokens)):
                child = _split(node, child, depth)
            node = child
        return nearest, depth


def _split(node: _Edge, child: _Edge, depth: int) -> _Edge:
    """Cut the edge from `node` to `child` at `depth`; returns the upper half."""
    upper = _Edge(child.tokens, child.owner, child.start, depth, {child.tokens[depth]: child})
    node.children[child.tokens[child.start]] = upper
    child.start = depth
    return upper


def _first_difference(left: Tokens, right: Tokens, start: int, stop: int) -> int:
    """The first index in [start, stop) where the two differ, else `stop`.

    >>> _first_difference((1, 2, 3), (1, 2, 4), 0, 3), _first_difference((1, 2), (1, 2), 0, 2)
    (2, 2)
    """
    while start < stop:
        end = min(start + _BLOCK, stop)
        if left[start:end] != right[start:end]:
            return next(index for index in range(start, end) if left[index] != right[index])
        start = end
    return stop
