"""A row for each episode of a record, without building what is in it: most of a line are token ids, which are counted.

The lines that record.py writes have their keys in order, and `turns` is the last: what stands before it is parsed, what
stands behind is searched for the beginnings of its lists. A line that isn't written so is parsed whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson

from palimpsest.rollout.record import FORMAT

Row = dict[str, Any]
_QUESTION, _ANSWER, _GOLDS = 240, 240, 4
"""Characters of a text, and golds, that a row holds; the episode itself has all."""
_TURNS = b',"turns":['
_PROMPT, _SAMPLED, _STOPPED = b'"prompt_ids":[', b'"token_ids":[', b'"stop_reason":"'


def row_of(line: bytes) -> Row:
    """The episode in a JSON line; `gid` is its group's id, `draw` its rollout. Raises ValueError for what is none."""
    head = _head(line)
    if head is not None:
        values, start = head
        counts = _counts(line, start)
        if counts is not None:
            return _made(values, counts)
    values = orjson.loads(line)
    if not isinstance(values, dict):
        raise ValueError("a line is no object")
    turns = values.get("turns")
    if not isinstance(turns, list):
        raise ValueError("a line has no turns")
    try:
        prompt = sum(len(turn["prompt_ids"]) for turn in turns)
        sampled = sum(len(turn["token_ids"]) for turn in turns)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a turn has no tokens ({type(error).__name__}: {error})") from None
    return _made(values, (len(turns), prompt, sampled))


def _head(line: bytes) -> tuple[Row, int] | None:
    """What stands before the turns, and where these begin; None where the line isn't written so.

    `turns` may be a key of an event's details too: there the braces don't close.
    """
    at = line.find(_TURNS)
    while at >= 0:
        try:
            values = orjson.loads(line[:at] + b"}")
        except orjson.JSONDecodeError:
            at = line.find(_TURNS, at + 1)
            continue
        return (values, at) if values.get("format") == FORMAT else None
    return None


def _counts(line: bytes, start: int) -> tuple[int, int, int] | None:
    """(turns, tokens read, tokens sampled) of what stands behind `start`; None where that can't be told so."""
    turns, prompt = _items(line, _PROMPT, start)
    also, sampled = _items(line, _SAMPLED, start)
    return (turns, prompt, sampled) if turns == also == line.count(_STOPPED, start) else None


def _items(line: bytes, name: bytes, start: int) -> tuple[int, int]:
    """(number of lists called `name`, items in all of them).

    >>> _items(b'{"token_ids":[1,2,3]},{"token_ids":[]}', b'"token_ids":[', 0)
    (2, 3)
    """
    lists = items = 0
    at = line.find(name, start)
    while at >= 0:
        begin = at + len(name)
        end = line.find(b"]", begin)
        lists += 1
        items += line.count(b",", begin, end) + 1 if end > begin else 0
        at = line.find(name, begin)
    return lists, items


def _made(values: Mapping[str, Any], counts: tuple[int, int, int]) -> Row:
    problem, grade = values.get("problem") or {}, values.get("grade") or {}
    try:
        row = {
            "gid": str(values["group_id"]),
            "draw": int(values["rollout"]),
            "id": str(problem["id"]),
            "question": _short(str(problem["question"]), _QUESTION),
            "golds": [_short(str(gold), _ANSWER) for gold in problem["answers"][:_GOLDS]],
            "answer": None if values["answer"] is None else _short(str(values["answer"]), _ANSWER),
            "outcome": str(values["outcome"]),
            "reward": grade.get("value"),
            "reason": grade.get("reason"),
            "parts": dict(grade.get("breakdown") or {}),
            "events": dict(Counter(str(event["kind"]) for event in values["events"])),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a line is no episode ({type(error).__name__}: {error})") from None
    row["turns"], row["prompt_tokens"], row["sampled_tokens"] = counts
    return row


def _short(text: str, most: int) -> str:
    """
    >>> _short("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"
