"""Episodes as they were recorded before turns had spans and events had types: format 1, as format 2.

A turn told where its section stands in its notes, if at all, and no other piece; an event had `step` for `before_turn`
and a dictionary of no declared form. So what needs to know where the memory stood in a prompt is absent of such
episodes; what was told by events, and all that is tokens, is as it was.

Not covered: events of a declared kind that some other hand wrote with other details. They are kept as plain ones,
` (format 1)` behind their kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.events import event_of

_RENAMED = {"recall": {"found": "chunk"}, "retrieved": {"found": "chunk"}, "tool_error": {"kind": "error"}}
"""Kind to old and new names of its details."""


def as_format_2(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of format 1 as one of format 2. Raises KeyError, TypeError or ValueError for anything else.

    >>> turn = {"step": 0, "notes": {"chunk": 0, "section": [4, 9]}}
    >>> event = {"kind": "recall", "step": 1, "detail": {"query": "Anna", "found": 3, "text": "Anna ran."}}
    >>> row = as_format_2({"format": 1, "turns": [turn], "events": [event]})
    >>> row["turns"][0]["notes"], row["turns"][0]["spans"]
    ({'chunk': 0}, {'section': [4, 9]})
    >>> row["events"]
    [{'kind': 'recall', 'before_turn': 1, 'detail': {'query': 'Anna', 'chunk': 3, 'text': 'Anna ran.'}}]
    """
    turns, events = map(_turn, row["turns"]), map(_event, row["events"])
    return {**row, "format": 2, "turns": list(turns), "events": list(events)}


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    notes = dict(turn["notes"])
    section = notes.pop("section", None)
    is_span = isinstance(section, list) and len(section) == 2 and all(type(place) is int for place in section)
    if section is not None and not is_span:
        notes["section"] = section  # a note of somebody else's
    return {**turn, "notes": notes, "spans": {"section": section} if is_span else {}}


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    kind, names = event["kind"], _RENAMED.get(event["kind"], {})
    detail = {names.get(name, name): value for name, value in event["detail"].items()}
    try:
        event_of(kind, detail)
    except ValueError:
        kind, detail = f"{kind} (format 1)", dict(event["detail"])
    return {"kind": kind, "before_turn": event["step"], "detail": detail}
