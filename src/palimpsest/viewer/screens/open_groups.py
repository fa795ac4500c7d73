"""Groups that are looked at, kept open with what was computed of their episodes.

Guaranteed: a group that takes long to open or to tell keeps nobody from another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from palimpsest.config.schema import CreditConfig
from palimpsest.errors import DataError
from palimpsest.text.codec import Codec
from palimpsest.types import Group
from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.prefix_forest import Advantages, Computed, advantages, computed, tokens_of, trained_rows
from palimpsest.viewer.analysis.token_words import Spelling, SpeltTexts
from palimpsest.viewer.analysis.word_origins import Unfounded
from palimpsest.viewer.records.recorded_episodes import MOST_TURNS, Decoders, Records, record_path, run_of
from palimpsest.viewer.records.run_facts import RunFacts
from palimpsest.viewer.records.sources import NotThere, Source, SourceKind

# ---- An open group -------------------------------------------------------------------------------------------


class Opened:
    """One group. What is worked out is kept as long as this is: take a few and let them go."""

    def __init__(self, group: Group, codec: Codec, credit: CreditConfig | None = None) -> None:
        """`credit`: by which the run gives credit, where it is known."""
        self.group = group
        self.codec = codec
        self.credit = credit
        self.texts = SpeltTexts(Spelling(codec))
        self._stories: dict[int, Story] = {}
        self._unfounded: dict[int, Unfounded] = {}

    @cached_property
    def advantages(self) -> Advantages:
        """What training learns from each rollout."""
        return advantages(self.group, self.credit)

    @cached_property
    def computed(self) -> Computed | None:
        """What training computes of the group; None where that isn't known."""
        rows = trained_rows(self.group, self.credit)
        return None if rows is None else computed(rows)

    def story(self, rollout: int) -> Story:
        """The episode at a place of the group's. Raises IndexError, DataError for one of more than `MOST_TURNS`."""
        if not 0 <= rollout < len(self.group.trajectories):
            raise IndexError(f"rollout {rollout}: the group has {len(self.group.trajectories)}, counted from 0")
        if rollout not in self._stories:
            if (turns := len(self.group.trajectories[rollout].turns)) > MOST_TURNS:
                raise DataError(
                    f"rollout {rollout} has {turns:,} turns, too many to be told turn by turn ({MOST_TURNS:,} at the "
                    "most); the table of episodes has its counts, palimpsest view --export FILE.jsonl its lines"
                )
            self._stories[rollout] = Story(self.group.problem, self.group.trajectories[rollout], self.texts)
        return self._stories[rollout]

    def unfounded(self, rollout: int) -> Unfounded:
        """What the memories of an episode hold that an earlier turn invented. Raises as `story` does."""
        story = self.story(rollout)
        return self._unfounded.setdefault(rollout, Unfounded(story))


# ---- The open groups -----------------------------------------------------------------------------------------


MOST_GROUPS, MOST_TOKENS = 4, 6_000_000
"""What is kept beside the newest; a token takes some 40 bytes."""
T = TypeVar("T")
_Key = tuple[Path, int, int, int]


@dataclass(slots=True)
class _CachedGroup:
    opened: Opened | None = None
    """None until the first look has read it."""
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class OpenedGroups:
    """Groups by source, step and place. Threads may share it."""

    def __init__(self, records: Records, decoders: Decoders, facts: RunFacts) -> None:
        self._records, self._decoders, self._facts = records, decoders, facts
        self._lock = threading.Lock()
        self._groups: OrderedDict[_Key, _CachedGroup] = OrderedDict()

    def look(self, source: Source, step: str, index: int, at: Callable[[Opened], T]) -> T:
        """What `at` finds in a group. Raises NotThere for what isn't in it, DataError for what can't be read."""
        key, entry = self._of(source, step, index)
        with entry.lock:
            if entry.opened is None:
                entry.opened = self._open(source, step, index, key)
                entry.tokens = sum(map(tokens_of, entry.opened.group.trajectories))
                self._shrink()
            try:
                return at(entry.opened)
            except IndexError as error:
                raise NotThere(f"{source.name}, group {index}: {error}") from None

    def _of(self, source: Source, step: str, index: int) -> tuple[_Key, _CachedGroup]:
        path = record_path(source, step)
        state = path.stat()
        key = (path, index, state.st_size, state.st_mtime_ns)
        with self._lock:
            entry = self._groups.setdefault(key, _CachedGroup())
            self._groups.move_to_end(key)
            return key, entry

    def _open(self, source: Source, step: str, index: int, key: _Key) -> Opened:
        """Raises NotThere and DataError as a record's index does; the group is then forgotten."""
        try:
            group = self._records.index(source, step).group(index)
            return Opened(group, self._decoders.of(source).codec, self._credit(source))
        except BaseException:
            with self._lock:
                self._groups.pop(key, None)
            raise

    def _shrink(self) -> None:
        with self._lock:
            while self._full():
                self._groups.popitem(last=False)

    def _full(self) -> bool:
        several = len(self._groups) > 1
        return several and (
            len(self._groups) > MOST_GROUPS or sum(entry.tokens for entry in self._groups.values()) > MOST_TOKENS
        )

    def _credit(self, source: Source) -> CreditConfig | None:
        """By which a run gives credit; None where it is of no run, or of one of another version."""
        run = run_of(source)
        if run is None:
            return None
        try:
            return CreditConfig.model_validate(
                self._facts.config(Source("", SourceKind.RUN, run, "")).get("credit", {})
            )
        except ValidationError:
            return None
