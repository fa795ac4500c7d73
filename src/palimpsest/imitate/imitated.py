"""What is imitated, as it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Imitated:
    """What is imitated: recorded episodes, or a file of conversations."""

    records: Path | None = None
    """A run, a folder of records, or one file of them."""
    min_grade: float | None = None
    """Of records: the least grade to keep; None keeps all."""
    per_problem: int | None = None
    """Of records: so many of a problem, the best."""
    data: Path | None = None
    """Conversations with tool calls."""
    memory_first: bool = False
    """Of conversations: write a prune's memory before its ids."""
    drop_too_long: bool = False
    """Of conversations: leave out what the context can't hold."""
