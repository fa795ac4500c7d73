"""Whether what a record says has the types that everything behind the reader counts on.

The reader (rollout/record.py) trusts what this library wrote. A viewer is also shown what others wrote: a group of
other types is told in one line instead of failing somewhere behind it.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from palimpsest.errors import DataError
from palimpsest.events import Event, Plain
from palimpsest.types import Grade, Group, Problem, Trajectory, Turn

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
