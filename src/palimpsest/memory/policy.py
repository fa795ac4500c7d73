"""The contract of a memory policy, and how one is found by name.

A policy is a dataclass of options with one coroutine, `run`. It builds prompts in token space with `model.codec`
and calls `model.generate`; every call is recorded as a turn. It knows nothing of training, so the same object runs
in training, in evaluation and behind a server. One policy object serves many episodes at once: it keeps no state
of an episode on itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Outcome, Problem


class Model(Protocol):
    """What an episode offers its policy."""

    codec: Codec
    max_context: int
    """Longest prompt plus completion, in tokens."""

    async def generate(self, prompt_ids: Sequence[int], *, name: str, max_tokens: int, **notes: Any) -> Completion:
        """Complete `prompt_ids` and record the turn under `name`, with `notes` for metrics and the viewer.

        A `Prompt`, which `Template.fill` makes, brings where its named pieces stand: `Turn.spans`. What is measured of
        a memory is measured of its pieces `memory` and `section` (measures/trace.py).

        Raises PromptTooLong if prompt and budget exceed `max_context`: the episode ends as out_of_context.
        """
        ...

    def event(self, kind: str, /, **detail: Any) -> None:
        """Record something that happened between turns."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """How a policy ends an episode."""

    text: str | None
    """Decoded answer, None if there is none."""
    outcome: Outcome = Outcome.ANSWERED


@runtime_checkable
class MemoryPolicy(Protocol):
    async def run(self, problem: Problem, model: Model) -> Answered:
        """Play one episode."""
        ...
