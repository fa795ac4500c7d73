"""The memories of an episode, as text: what the policy says they were, else its replies before the answer.

An agent with tools that wrote nothing down has none.
"""

from __future__ import annotations

from palimpsest.text.codec import Codec
from palimpsest.types import Trajectory, Turn

_MEMORY_EVENTS = {"memory": "text", "prune": "memory", "summary": "text"}
"""Kind of an event that tells a memory, and the key it stands under."""


def memories(trajectory: Trajectory, codec: Codec) -> tuple[str, ...]:
    """One after the other."""
    return tuple(_told(trajectory)) or tuple(_decoded(turn, codec) for turn in _before_the_answer(trajectory))


def last_memory(trajectory: Trajectory, codec: Codec) -> str | None:
    """The last of `memories`, or None; no other reply is decoded for it."""
    told, before = _told(trajectory), _before_the_answer(trajectory)
    if told:
        return told[-1]
    return _decoded(before[-1], codec) if before else None


def _told(trajectory: Trajectory) -> list[str]:
    return [str(e.detail[_MEMORY_EVENTS[e.kind]]) for e in trajectory.events if e.kind in _MEMORY_EVENTS]


def _before_the_answer(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if turn.name not in ("answer", "act")]


def _decoded(turn: Turn, codec: Codec) -> str:
    return codec.decode(turn.completion.token_ids, control=False)
