"""Rows of recorded episodes for lists, and type checks of a record.

Lines of rollout/trajectory_file.py have their keys in order, `turns` last. What precedes `turns` is parsed; the rest is
searched for the beginnings of its lists. A line of another form is parsed whole.

The reader (rollout/trajectory_file.py) trusts what this library wrote. The viewer also opens files of others: a group
with other types is reported in one line instead of failing later.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from palimpsest.errors import DataError
from palimpsest.events import Event, Plain
from palimpsest.rollout.trajectory_file import FORMAT, is_known, unknown_format
from palimpsest.types import Grade, Group, Problem, Trajectory, Turn

Row = dict[str, Any]
_QUESTION, _ANSWER, _GOLDS = 240, 240, 4
"""Characters of a text, and golds, that a row holds; the episode itself has all."""
_TURNS = b',"turns":['
_PROMPT, _SAMPLED, _STOPPED = b'"prompt_ids":[', b'"token_ids":[', b'"stop_reason":"'


class UnknownFormat(ValueError):
    """A line is of a format that this version cannot read."""


def row_of(line: bytes) -> Row:
    """The episode in a JSON line; `gid` is its group's id, `draw` its rollout. Raises ValueError for what is none,
    UnknownFormat for an episode of an unknown format."""
    head = _head(line)
    if head is not None:
        values, start = head
        counts = _counts(line, start)
        if counts is not None:
            return _made(values, counts)
    values = orjson.loads(line)
    if not isinstance(values, dict):
        raise ValueError("a line is no object")
    if not is_known(values.get("format")):
        raise UnknownFormat(unknown_format(values.get("format")))
    turns = values.get("turns")
    if not isinstance(turns, list):
        raise ValueError("a line has no turns")
    try:
        prompt = sum(_length(turn["prompt_ids"]) for turn in turns)
        sampled = sum(_length(turn["token_ids"]) for turn in turns)
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
        return (values, at) if type(number := values.get("format")) is int and number == FORMAT else None
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
    """What is of another type than a record's is left out of the row; the episode itself is told as unreadable."""
    problem, grade = values.get("problem") or {}, values.get("grade") or {}
    try:
        row = {
            "gid": str(values["group_id"]),
            "draw": int(values["rollout"]),
            "id": str(problem["id"]),
            "question": _short(str(problem["question"]), _QUESTION),
            "golds": [_short(str(gold), _ANSWER) for gold in _list(problem["answers"])[:_GOLDS]],
            "answer": None if values["answer"] is None else _short(str(values["answer"]), _ANSWER),
            "outcome": str(values["outcome"]),
            "reward": _number(grade.get("value")),
            "reason": _reason(grade),
            "parts": _parts(grade.get("breakdown")),
            "events": dict(Counter(str(event["kind"]) for event in _list(values["events"]))),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a line is no episode ({type(error).__name__}: {error})") from None
    row["turns"], row["prompt_tokens"], row["sampled_tokens"] = counts
    return row


def _length(ids: object) -> int:
    return len(ids) if isinstance(ids, list) else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts(value: object) -> Row:
    return dict(value) if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _reason(grade: Mapping[str, Any]) -> str | None:
    """Why an episode is ungraded; of a grade that is no number, what stands there."""
    value, reason = grade.get("value"), grade.get("reason")
    if value is not None and _number(value) is None:
        return f"the recorded grade is no number: {value!r:.60}"
    return None if reason is None else str(reason)


def _short(text: str, most: int) -> str:
    """
    >>> _short("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


# ---- Type checks of a record ---------------------------------------------------------------------------------


MOST_ID = 1 << 31
"""Token ids are below it."""
_MOST_NUMBER = 1e100
"""Of rewards and log-probabilities, so that no sum or square of them is too large for a float."""


def checked(path: Path, group: Group) -> Group:
    """The group as it is. Raises DataError that names the file and the first value of another type."""
    if (wrong := next(_wrong_in(group), None)) is not None:
        name = f"{group.trajectories[0].group_id!r:.60}" if group.trajectories else f"{group.problem.id!r:.60}"
        raise DataError(f"{path.name}: group {name} is no record of trajectories: {wrong}")
    return group


def _wrong_in(group: Group) -> Iterator[str]:
    yield from _problem(group.problem)
    for rollout, (trajectory, grade) in enumerate(zip(group.trajectories, group.grades, strict=True)):
        yield from (f"rollout {rollout}, {wrong}" for wrong in (*_trajectory(trajectory), *_grade(grade)))


def _problem(problem: Problem) -> Iterator[str]:
    yield from _of("problem.id", problem.id, str)
    yield from _of("problem.question", problem.question, str)
    yield from _of("problem.memory", problem.memory, str)
    yield from _texts("problem.answers", problem.answers)
    yield from _of("problem.metadata", problem.metadata, Mapping)
    if isinstance(problem.metadata, Mapping) and "evidence" in problem.metadata:
        yield from _texts("problem.metadata.evidence", problem.metadata["evidence"])


def _trajectory(trajectory: Trajectory) -> Iterator[str]:
    yield from _of("problem_id", trajectory.problem_id, str)
    yield from _of("group_id", trajectory.group_id, str)
    yield from _of("rollout", trajectory.rollout, int, str)  # text: an integer that JSON has no place for
    yield from _of("answer", trajectory.answer, str, type(None))
    for answer in trajectory.answers:
        yield from _of("answers", answer, str, type(None))
    for place, turn in enumerate(trajectory.turns):
        yield from (f"turn {place}, {wrong}" for wrong in _turn(turn))
    for place, event in enumerate(trajectory.events):
        yield from (f"event {place}, {wrong}" for wrong in _event(event))


def _turn(turn: Turn) -> Iterator[str]:
    yield from _whole("step", turn.step)
    yield from _of("name", turn.name, str)
    yield from _of("role", turn.role, str, type(None))
    yield from _of("notes", turn.notes, Mapping)
    yield from _whole("policy_version", turn.completion.policy_version)
    yield from _whole("last_policy_version", turn.completion.last_policy_version)
    yield from _ids("prompt_ids", turn.prompt_ids)
    yield from _ids("token_ids", turn.completion.token_ids)
    yield from _numbers("logprobs", turn.completion.logprobs)


def _event(event: Event) -> Iterator[str]:
    yield from _whole("before_turn", event.before_turn)
    if isinstance(event.what, Plain):
        yield from _of("kind", event.what.kind, str)
        yield from _of("detail", event.what.detail, Mapping)
        return
    for name, adapter in _fields(cast(Hashable, type(event.what))).items():
        value = getattr(event.what, name)
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError:
            yield f"{event.what.kind}.{name} is {value!r:.60}"
            continue
        if isinstance(value, tuple) and value and type(value[0]) is int:  # events hold no other integers in rows
            yield from _ids(f"{event.what.kind}.{name}", value)


@cache
def _fields(kind: Hashable) -> Mapping[str, TypeAdapter[Any]]:
    """Of a type of events."""
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind).items() if name != "kind"}


def _grade(grade: Grade) -> Iterator[str]:
    if grade.value is not None:
        yield from _numbers("grade.value", (grade.value,))
    yield from _of("grade.reason", grade.reason, str, type(None))
    yield from _of("grade.breakdown", grade.breakdown, Mapping)
    for name in ("per_turn", "turn_weights"):
        yield from _numbers(f"grade.{name}", getattr(grade, name) or ())
    for span in grade.spans:
        yield from _numbers("grade.spans", (span.turn, span.start, span.end, span.value))


def _of(name: str, value: object, *types: type) -> Iterator[str]:
    if not isinstance(value, types):
        yield f"{name} is {value!r:.60}"


def _whole(name: str, value: object) -> Iterator[str]:
    if type(value) is not int or not 0 <= value < MOST_ID:
        yield f"{name} is {value!r:.60}, no whole number from 0 on"


def _texts(name: str, values: object) -> Iterator[str]:
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        yield f"{name} is {values!r:.60}, no list of texts"


def _ids(name: str, ids: Sequence[Any]) -> Iterator[str]:
    """In one pass, as they are most of a record; true and false count as 1 and 0."""
    if ids and not _are_ids(ids):
        wrong = next(each for each in ids if not isinstance(each, int) or not 0 <= each < MOST_ID)
        yield f"{name} holds {wrong!r:.60}, no token id"


def _are_ids(ids: Sequence[Any]) -> bool:
    try:
        return bool(np.frombuffer(array("i", ids), np.intc).min() >= 0)  # a C int is below `MOST_ID`
    except (TypeError, OverflowError):
        return False


def _numbers(name: str, values: Sequence[Any]) -> Iterator[str]:
    if not set(map(type, values)) <= {int, float} or not all(abs(each) < _MOST_NUMBER for each in values):
        wrong = next(each for each in values if type(each) not in (int, float) or not abs(each) < _MOST_NUMBER)
        yield f"{name} holds {wrong!r:.60}, no number"
