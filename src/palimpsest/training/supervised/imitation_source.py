"""Source of the episodes to imitate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from palimpsest.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Imitated:
    records: Path | None = None
    """A run, a folder of records, one record file, or a file of questions that name their evidence."""
    min_grade: float | None = None
    """Lowest grade of records; None: all."""
    per_problem: int | None = None
    """Records per problem, best first."""
    data: Path | None = None
    """Conversations with tool calls."""
    memory_first: bool = False
    """Write a prune's memory before its ids, in conversations."""
    drop_too_long: bool = False
    """Skip conversations that exceed the context."""

    def to_json(self) -> dict[str, Any]:
        """JSON for the run folder."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Imitated:
        """Inverse of `to_json`. Raises ConfigError for other values.

        >>> asked = Imitated(Path("runs/first"), min_grade=0.5)
        >>> Imitated.from_json(asked.to_json()) == asked
        True
        """
        try:
            imitated = TypeAdapter(cls).validate_python(dict(row))
        except ValidationError:
            imitated = cls()
        if (imitated.records is None) == (imitated.data is None):
            raise ConfigError("the run's events.jsonl lacks the source of its episodes: set --from or --data again")
        return imitated
