"""Context of an agent with tools as owned pieces of token ids, with deletion of tool results by id.

A history is an opening and exchanges. An exchange is one reply with the results of its calls, each under an id. A
deletion removes the named results and the calls that made them:

    exchange     "I look. <call A> <call B>"   result a1 of A   result b2 of B
    delete a1    "I look. <call B>"            result b2 of B
    delete b2    (nothing: a reply without results is removed)

A deletion also removes the blanks and commas that separate the call from its neighbour. The words around it stay, and
so does its enclosing tag or array while it has another call. Only whole tokens are cut: if an edge is inside a token,
the cut moves by a few characters to a place that leaves the same text ("A}; {B}; {C" without "{B}; " or "; {B}").
Otherwise the tokens across the edge stay. Cuts apply to the sampled reply, so the order of deletions does not matter.

Guaranteed: values are immutable; `ids` is the concatenation of the surviving pieces, each with its original ids;
without a deletion, `ids` after an exchange starts with `ids` before it and the reply.
Not covered: a call whose id is mentioned in the words around it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from palimpsest.text.chat import ChatPieces
from palimpsest.text.codec import Codec, Edges
from palimpsest.types import RESULT, Prompt, Span

Tokens = tuple[int, ...]

_PARTING = re.compile(r"[\s;,]*")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one call."""

    id: str
    ids: Tokens
    """[T] as shown, its id included."""
    call: Span
    """Characters of the call in the reply's text."""

    @property
    def piece(self) -> Prompt:
        """`ids` under their name in a turn's spans."""
        return Prompt.named(RESULT + self.id, self.ids)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reply and the results of its calls, with the deletions so far."""

    reply: Tokens
    """[T] as sampled, with its stop token if there was one."""
    results: tuple[Result, ...]
    deleted: frozenset[str] = frozenset()
    kept: Tokens | None = None
    """The reply without the calls of deleted results; None before a deletion."""

    @property
    def shown(self) -> tuple[Tokens, tuple[Result, ...]]:
        """The reply and the remaining results."""
        left = tuple(result for result in self.results if result.id not in self.deleted)
        return self.reply if self.kept is None else self.kept, left

    def without(self, ids: Collection[str], codec: Codec) -> Exchange | None:
        """This exchange after deleting the results in `ids` as well; None if it becomes empty."""
        gone = self.deleted | {result.id for result in self.results if result.id in ids}
        if gone == self.deleted:
            return self
        if len(gone) == len(self.results):
            return None
        shortened = _without_calls(self.reply, self.results, gone, codec)
        return replace(self, deleted=gone, kept=shortened)


@dataclass(frozen=True, slots=True)
class History:
    """An immutable context; `append` and `without` return new ones."""

    pieces: ChatPieces
    opening: Tokens
    """[T] system message, tools and question, up to the model's first turn."""
    exchanges: tuple[Exchange, ...] = ()

    def append(self, exchange: Exchange) -> History:
        return replace(self, exchanges=(*self.exchanges, exchange))

    def without(self, ids: Collection[str], codec: Codec) -> History:
        """The history without the results in `ids` and the calls that made them."""
        left = (exchange.without(ids, codec) for exchange in self.exchanges)
        return replace(self, exchanges=tuple(exchange for exchange in left if exchange is not None))

    def with_result(self, result_id: str, ids: Tokens) -> History:
        """The history with the text `ids`, number included, instead of that of result `result_id`."""

        def changed(exchange: Exchange) -> Exchange:
            results = (replace(one, ids=ids) if one.id == result_id else one for one in exchange.results)
            return replace(exchange, results=tuple(results))

        return replace(self, exchanges=tuple(map(changed, self.exchanges)))

    def results(self) -> list[Result]:
        """Remaining results, oldest first."""
        return [result for exchange in self.exchanges for result in exchange.shown[1]]

    def result_ids(self) -> list[str]:
        return [result.id for result in self.results()]

    def ids(self) -> Prompt:
        """[P] the prompt of the model's next turn; each result is a piece named by its id."""
        return Prompt.joined([self.opening, self.pieces.generation, *self._exchanged()])

    def ids_with_user(self, message: Sequence[int]) -> Prompt:
        """[P] the prompt after another user message, which needs an exchange before it and a template for it."""
        assert self.exchanges
        assert self.pieces.to_user is not None
        before = replace(self, exchanges=self.exchanges[:-1]).ids()
        reply, results = self.exchanges[-1].shown
        last = self.pieces.open_exchange(reply, [result.piece for result in results])
        return Prompt.joined([before, last, self.pieces.to_user, message, self.pieces.after_user])

    def exchange_lengths(self) -> list[int]:
        return [len(tokens) for tokens in self._exchanged()]

    def _exchanged(self) -> Iterator[Prompt]:
        for exchange in self.exchanges:
            reply, results = exchange.shown
            yield self.pieces.exchange(reply, [result.piece for result in results])


def sampled_text(ids: Sequence[int], codec: Codec) -> str:
    """The text of a reply, including control tokens except those that end it: calls may consist of them."""
    return codec.decode([i for i in ids if i not in codec.stop_ids])


def tokens_within(reply: Tokens, span: Span, codec: Codec) -> Span:
    """The tokens of a reply that hold the characters `span` of its text, as [start, end).

    All of them for a stop token within the reply, since its text has other positions then.
    """
    ids = tuple(i for i in reply if i not in codec.stop_ids)
    if ids != reply[: len(ids)]:
        return 0, len(reply)

    def characters(count: int) -> int:
        return len(codec.decode(ids[:count]))

    counts = range(len(ids) + 1)
    return bisect_right(counts, span[0], key=characters) - 1, bisect_left(counts, span[1], key=characters)


def _without_calls(reply: Tokens, results: Sequence[Result], gone: Collection[str], codec: Codec) -> Tokens:
    text_ids = [i for i in reply if i not in codec.stop_ids]
    if len(text_ids) < len(reply) and tuple(text_ids) != reply[: len(text_ids)]:
        return reply  # a stop token within the reply: text positions no longer match positions in the ids
    edges = Edges.of(text_ids, codec)
    remaining = list(reply)
    for first, last in reversed(_token_cuts(edges, _merged(_cut_spans(edges.text, results, gone)))):
        del remaining[first:last]
    return tuple(remaining)


def _cut_spans(text: str, results: Sequence[Result], gone: Collection[str]) -> list[Span]:
    """Characters to cut, in order and disjoint: each deleted call with its separator from a neighbour.

    >>> calls = [Result("a", (), (0, 3)), Result("b", (), (5, 8)), Result("c", (), (10, 13))]
    >>> _cut_spans("{A}, {B}, {C}", calls, {"a"}), _cut_spans("{A}, {B}, {C}", calls, {"c", "b"})
    ([(0, 5)], [(3, 8), (8, 13)])
    """
    return [span for run in _runs(text, results) for span in _cut_of_run(text, run, gone)]


def _runs(text: str, results: Sequence[Result]) -> list[list[Result]]:
    """Calls with nothing but blanks and commas between them, such as the calls of an array."""
    runs: list[list[Result]] = []
    for result in results:
        if runs and _PARTING.fullmatch(text, runs[-1][-1].call[1], _body(text, result.call)[0]):
            runs[-1].append(result)
        else:
            runs.append([result])
    return runs


def _cut_of_run(text: str, run: Sequence[Result], gone: Collection[str]) -> list[Span]:
    """Cuts a call before the first remaining one with the text after it, a later call with the text before it."""
    bodies = [_body(text, result.call) for result in run]
    left = [at for at, result in enumerate(run) if result.id not in gone]
    if not left:
        start, end = run[0].call[0], run[-1].call[1]
        closing = _CLOSING.match(text, end) if start < bodies[0][0] else None
        return [(start, closing.end() if closing else end)]
    first = left[0]
    before = [(bodies[0][0], bodies[first][0])] if first else []
    return before + [(bodies[at - 1][1], bodies[at][1]) for at in range(first, len(run)) if at not in left]


_OPENING = re.compile(r"(?:<\|python_tag\|>|(?:\[TOOL_CALLS\]|<\|tool_call_start\|>)\s*\[)\s*")
_CLOSING = re.compile(r"\s*\](?:<\|tool_call_end\|>)?")


def _body(text: str, call: Span) -> Span:
    """A call without its leading tag or array opening, which its neighbours need."""
    opened = _OPENING.match(text, *call)
    return (opened.end() if opened else call[0], call[1])


def _merged(spans: Sequence[Span]) -> list[Span]:
    """
    >>> _merged([(0, 2), (2, 5), (6, 7)])
    [(0, 5), (6, 7)]
    """
    merged: list[Span] = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged


_SHIFTS = sorted(range(-8, 9), key=abs)  # characters


def _token_cuts(edges: Edges, spans: Sequence[Span]) -> list[Span]:
    cuts: list[Span] = []
    for span in spans:
        cut = _moved(edges, *span, after=cuts[-1][1] if cuts else 0) or _inside(edges, *span)
        if cut is not None:
            cuts.append(cut)
    return cuts


def _moved(edges: Edges, start: int, end: int, after: int) -> Span | None:
    """Tokens whose cut leaves the same text as cutting characters [start, end), from token `after` on."""
    text = edges.text
    for shift in _SHIFTS:
        low, high = min(0, shift), max(0, shift)
        if start + low < 0 or text[start + low : start + high] != text[end + low : end + high]:
            continue
        first, last = edges.at(start + shift), edges.at(end + shift)
        if first is not None and last is not None and after <= first:
            return (first, last)
    return None


def _inside(edges: Edges, start: int, end: int) -> Span | None:
    first, last = edges.first_from(start), edges.last_until(end)
    return (edges.counts[first], edges.counts[last]) if first <= last else None
