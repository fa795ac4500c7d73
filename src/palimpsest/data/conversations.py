"""Long conversations: dated sessions of turns, as one document that a policy can cut anywhere.

    longmemeval    LongMemEval: question, answer, haystack_sessions, haystack_dates, question_date, answer_session_ids
    sessions       a column of our own layout in place of `context`: objects with date, turns and, if wished, id

Every session is a document of the context. Every line begins with the date of its session and who speaks, and a turn
of more than `LINE` characters goes on in further lines that begin so, too: a chunk from the middle of a session still
says when it was.

    Document 1:
    [2023/05/20 (Sat) 02:21] user: I bought a car.
    [2023/05/20 (Sat) 02:21] assistant: Which one?

Guaranteed: no stretch of a session of more than `LINE` characters and two beginnings lacks its date; a session that an
answer needs and that isn't there raises MissingGold.
Not covered: the order of sessions, which is the file's; contexts of a chosen number of sessions (`data.documents`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.data import fields
from palimpsest.data.assemble import Record, document_block
from palimpsest.data.rows import Row
from palimpsest.errors import DataError
from palimpsest.text.storable import valid

LINE = 1000
"""Characters of a turn on one line, at the most."""


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation of one date."""

    id: str
    date: str
    text: str
    """As an agent reads it."""


def longmemeval(row: Row, fallback: str) -> Record:
    """The question begins with the date on which it is asked."""
    values = row.values
    listed = fields.get(row, values, "haystack_sessions")
    if not isinstance(listed, list):
        raise DataError(f"{row.where}: haystack_sessions must be a list of sessions, is {listed!r:.60}")
    dates = values.get("haystack_dates") or [""] * len(listed)
    names = values.get("haystack_session_ids") or [str(number) for number in range(1, len(listed) + 1)]
    if not all(isinstance(each, list) and len(each) == len(listed) for each in (listed, dates, names)):
        raise DataError(
            f"{row.where}: haystack_sessions, haystack_dates and haystack_session_ids must be lists of one length"
        )
    sessions = [
        _session(row, str(name), date, turns, f"haystack_sessions[{at}]")
        for at, (name, date, turns) in enumerate(zip(names, dates, listed, strict=True))
    ]
    context, metadata = together(row, sessions, values.get("answer_session_ids") or [], "answer_session_ids")
    asked = fields.text(row, fields.get(row, values, "question"), "question")
    date = values.get("question_date")
    answer = values["answer"]
    return Record(
        id=fields.identity(row, fallback),
        question=f"[{date}] {asked}" if date else asked,
        answers=fields.golds(row, str(answer) if type(answer) is int else answer, "answer"),
        context=context,
        metadata={key: values[key] for key in ("question_type", "question_date") if values.get(key)} | metadata,
    )


def own_sessions(row: Row, listed: Any, needed: Any) -> tuple[str, dict[str, Any]]:
    """Context and metadata of the column `sessions`; `needed` are the ids of those that an answer needs."""
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{row.where}: sessions must be a list of objects with date and turns, is {listed!r:.60}")
    sessions = []
    for at, session in enumerate(listed):
        place = f"sessions[{at}]"
        date, turns = (fields.get(row, session, key, place) for key in ("date", "turns"))
        sessions.append(_session(row, str(session.get("id") or at + 1), date, turns, f"{place}.turns"))
    return together(row, sessions, needed or [], "metadata.evidence_sessions")


def together(row: Row, sessions: list[Session], needed: Any, name: str) -> tuple[str, dict[str, Any]]:
    """The sessions as one context, and what is known of them."""
    positions = {session.id: number for number, session in enumerate(sessions, 1)}
    wanted = [str(each) for each in needed] if isinstance(needed, list) else [str(needed)]
    for each in wanted:
        if each not in positions:
            raise fields.MissingGold(
                f"{row.where}: {name}: no session has the id {each!r}; leave such rows out with "
                "data.on_missing_gold=skip"
            )
    return document_block([session.text for session in sessions]), {
        "sessions": [{"id": session.id, "date": session.date} for session in sessions],
        "num_docs": len(sessions),
        "evidence": [sessions[positions[each] - 1].text for each in wanted],
        "evidence_positions": [positions[each] for each in wanted],
    }


def _session(row: Row, name: str, date: Any, turns: Any, place: str) -> Session:
    if not isinstance(turns, list):
        raise DataError(f"{row.where}: {place} must be a list of turns with role and content, is {turns!r:.60}")
    told = str(date)
    lines = [line for at, turn in enumerate(turns) for line in _lines(row, told, turn, f"{place}[{at}]")]
    return Session(valid(name), valid(told), "\n".join(lines))


def _lines(row: Row, date: str, turn: Any, place: str) -> Iterator[str]:
    if not isinstance(turn, Mapping):
        raise DataError(f"{row.where}: {place} must be an object with role and content, is {turn!r:.60}")
    role = fields.text(row, fields.get(row, turn, "role", place), f"{place}.role")
    content = fields.text(row, turn.get("content") or "", f"{place}.content", blank=True)
    beginning = f"[{valid(date)}] {role}: " if date else f"{role}: "
    yield from (beginning + piece for piece in pieces(content, LINE))


def pieces(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of at most `size` characters, cut at a space or newline where the second half of one has any.

    >>> list(pieces("one two three", 8))
    ['one two', 'three']
    """
    while len(text) > size:
        cut = max(text.rfind(mark, size // 2, size) for mark in " \n")
        yield text[: cut if cut > 0 else size]
        text = text[cut + 1 if cut > 0 else size :]
    yield text
