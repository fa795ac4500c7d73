"""What is imitated, as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from palimpsest.errors import ConfigError


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

    def to_json(self) -> dict[str, Any]:
        """What a run folder keeps of it."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Imitated:
        """What `to_json` gave. Raises ConfigError for anything else.

        >>> asked = Imitated(Path("runs/first"), min_grade=0.5)
        >>> Imitated.from_json(asked.to_json()) == asked
        True
        """
        try:
            imitated = TypeAdapter(cls).validate_python(dict(row))
        except ValidationError:
            imitated = cls()
        if (imitated.records is None) == (imitated.data is None):
            raise ConfigError("the run's events.jsonl doesn't say what it imitates: give --from or --data again")
        return imitated
