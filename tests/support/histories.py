"""Exchanges of a history, and its tokens computed another way."""

from __future__ import annotations

from palimpsest.memory.parts.history import Exchange, History, Result, sampled_text
from palimpsest.text.codec import Codec
from palimpsest.text.tool_calls import CallStyle, find_calls


def exchange(codec: Codec, reply: str, style: CallStyle, prefix: str = "r", *, stop: bool = True) -> Exchange:
    """A reply and a result for each of its calls, under prefix0, prefix1, ..."""
    ids = (*codec.encode_trusted(reply), *([codec.stop_ids[-1]] if stop else []))
    calls = enumerate(find_calls(sampled_text(ids, codec), style))
    ids_of = codec.encode
    results = (Result(f"{prefix}{n}", tuple(ids_of(f"result {prefix}{n}")), (one.start, one.end)) for n, one in calls)
    return Exchange(ids, tuple(results))


def is_subsequence(short: list[int], long: list[int]) -> bool:
    rest = iter(long)
    return all(i in rest for i in short)


def concatenated(made: History) -> list[int]:
    """By a plain loop over the pieces."""
    pieces, ids = made.pieces, [*made.opening, *made.pieces.generation]
    for one in made.exchanges:
        reply, results = one.shown
        ids.extend(reply)
        ids.extend(pieces.to_results)  # every reply ends in a sampled stop token
        for number, result in enumerate(results):
            ids.extend(pieces.between if number else ())
            ids.extend(result.ids)
        ids.extend(pieces.last)
    return ids
