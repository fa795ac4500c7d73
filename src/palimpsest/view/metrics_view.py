"""A run's rows as the page asks for them: all of them once, then what has come since."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from palimpsest.runs.rows import is_number, whole, with_number
from palimpsest.view.tailing import Row

SPARK = 60
"""Points of a spark line."""
_STAGES = ("rollout_s", "learn_s")


def rows_since(rows: Sequence[Row], since: int, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Rows of steps after `since`, with `keys` alone where they are given; `next` is what to ask with next time.

    >>> rows_since([{"step": 1, "a": 2.0, "b": 0.0}, {"step": 2, "a": 3.0}], 1, ["a"])
    {'rows': [{'step': 2, 'a': 3.0}], 'next': 2, 'last': 2}
    """
    steps = [whole(row, "step", -1) for row in rows]
    fresh = [row for row, step in zip(rows, steps, strict=True) if step > since]
    last = max(steps, default=-1)
    return {"rows": [_chosen(row, keys) for row in fresh], "next": max(last, since), "last": last}


def events_since(rows: Sequence[Row], since: int) -> dict[str, Any]:
    """Events behind the first `since`, with their number in the file.

    >>> events_since([{"kind": "started"}, {"kind": "saved"}], 1)
    {'rows': [{'number': 1, 'kind': 'saved'}], 'next': 2, 'last': 2}
    """
    fresh = [{"number": number, **row} for number, row in enumerate(rows) if number >= since]
    return {"rows": fresh, "next": len(rows), "last": len(rows)}


def spark(rows: Sequence[Row], key: str, points: int = SPARK) -> list[float]:
    """`key` over the run, as the means of at most `points` pieces of it.

    >>> spark([{"step": 1, "r": 0.0}, {"step": 2, "r": 1.0}, {"step": 3, "r": 3.0}, {"step": 4, "r": 5.0}], "r", 2)
    [0.5, 4.0]
    """
    values = [float(row[key]) for row in with_number(rows, key)]
    size = math.ceil(len(values) / points) or 1
    pieces = [values[start : start + size] for start in range(0, len(values), size)]
    return [mean_of(piece) for piece in pieces]


def mean_of(values: Iterable[float]) -> float:
    """Of one or more; infinite where their sum is too large for a float, which no chart has room for.

    >>> mean_of([0.5, 1.5]), mean_of([1e308, 1e308])
    (1.0, inf)
    """
    try:
        return fmean(values)
    except OverflowError:
        return math.inf


def names_of(rows: Sequence[Row]) -> list[str]:
    """Every metric that a row has as a number, by name."""
    return sorted({name for row in rows for name, value in row.items() if name != "step" and is_number(value)})


def seconds_left(timings: Sequence[Row], done: int, steps: int | None) -> float | None:
    """Of the steps to come, at the pace of the last twenty; None where nothing is known."""
    paces = [sum(float(row[stage]) for stage in _STAGES if is_number(row.get(stage))) for row in timings[-20:]]
    paces = [pace for pace in paces if pace > 0]
    if steps is None or not paces or done >= steps:
        return None
    return (steps - done) * sum(paces) / len(paces)


def _chosen(row: Mapping[str, Any], keys: Collection[str] | None) -> dict[str, Any]:
    return dict(row) if keys is None else {key: row[key] for key in ("step", *keys) if key in row}
