"""Turns, episodes and small groups of them, and turns that read a section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Prompt, StopReason, Trajectory, Turn
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()


def make_turn(prompt: Sequence[int], sampled: Sequence[int], step: int = 0, name: str = "act", **fields: Any) -> Turn:
    """A turn whose tokens have the log-probability -0.5; `fields` are further ones of `Turn`."""
    completion = Completion(tuple(sampled), (-0.5,) * len(sampled), StopReason.STOP)
    return Turn(tuple(prompt), completion, step, name, **fields)


def make_episode(*turns: Turn, rollout: int = 0, **fields: Any) -> Trajectory:
    """An answered episode of problem p; `fields` are further ones of `Trajectory`."""
    values = {"problem_id": "p", "group_id": "g", "outcome": Outcome.ANSWERED, **fields}
    return Trajectory(rollout=rollout, turns=turns, **values)


def sample_groups(count: int = 3) -> list[Group]:
    turn = Turn((1, 2, 3), Completion((5, 6), (-0.1, -0.2), StopReason.STOP, 3), 0, "read", {"chunk": 0})
    grades = (Grade(1.0, breakdown={"em": 1.0}), Grade(None, "judge down"))

    def group(name: str) -> Group:
        played = (Trajectory(name, f"1/0/{name}", r, (turn,), Outcome.ANSWERED) for r in range(2))
        return Group(Problem(name, "who?", ("Ann", "Bo"), "a long document", {"hops": 2}), tuple(played), grades)

    return [group(f"p{i}") for i in range(count)]


def reading_turn(
    step: int, section: str, memory: str, written: str, question: str, stop: StopReason = StopReason.STOP, *,
    name: str = "read", **more: str,
) -> Turn:  # fmt: skip
    """A turn whose prompt names its pieces, one token per letter."""
    pieces = {"question": question, "memory": memory, "section": section, **more}
    names = ((CODEC.encode(f" {key}: "), Prompt.named(key, CODEC.encode(text))) for key, text in pieces.items())
    prompt = Prompt.joined(part for pair in names for part in pair)
    ids = (*CODEC.encode(written), *((0,) if stop is StopReason.STOP else ()))
    completion = Completion(ids, (-0.1,) * len(ids), stop)
    return Turn(tuple(prompt), completion, step, name, {"chunk": step}, prompt.spans)
