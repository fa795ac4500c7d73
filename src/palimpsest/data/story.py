"""A question about facts that stand among other text, before the length of the text is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from palimpsest.types import Problem


@dataclass(frozen=True, slots=True)
class Story:
    """One question with a context of any size."""

    id: str
    question: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    """Sentences of the context that the answer follows from, in their order."""
    context: Callable[[int], str]
    """The facts among so many units of other text, from 0; the same for the same number."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, context: str) -> Problem:
        """The problem with this context."""
        return Problem(self.id, self.question, self.answers, context, {**self.metadata, "evidence": self.evidence})
