"""Group screen: rollouts side by side by section, points where memories diverge, tokens that training shares.

Opened groups stay cached with their results. A group that is slow to open delays no other.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from palimpsest.config.schema import CreditConfig
from palimpsest.errors import DataError
from palimpsest.text.codec import Codec
from palimpsest.types import Group, Problem
from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.event_labels import marks, replayed_in_words
from palimpsest.viewer.analysis.prefix_forest import (
    Advantages,
    Computed,
    GroupForest,
    advantages,
    computed,
    prefix_forest,
    tokens_of,
    trained_rows,
)
from palimpsest.viewer.analysis.token_words import Spelling, SpeltTexts
from palimpsest.viewer.analysis.word_origins import Unfounded
from palimpsest.viewer.records.recorded_episodes import MOST_TURNS, Decoders, Records, record_path, run_of
from palimpsest.viewer.records.run_facts import RunFacts
from palimpsest.viewer.records.sources import NotThere, Source, SourceKind

# ---- An open group -------------------------------------------------------------------------------------------


class Opened:
    """One opened group. Its results stay in memory as long as the object: open few and release them."""

    def __init__(self, group: Group, codec: Codec, credit: CreditConfig | None = None) -> None:
        self.group = group
        self.codec = codec
        self.credit = credit
        self.texts = SpeltTexts(Spelling(codec))
        self._stories: dict[int, Story] = {}
        self._unfounded: dict[int, Unfounded] = {}

    @cached_property
    def advantages(self) -> Advantages:
        return advantages(self.group, self.credit)

    @cached_property
    def computed(self) -> Computed | None:
        """The tokens that training computes; None if unknown."""
        rows = trained_rows(self.group, self.credit)
        return None if rows is None else computed(rows)

    def story(self, rollout: int) -> Story:
        """The episode at an index. Raises IndexError, and DataError above `MOST_TURNS` turns."""
        if not 0 <= rollout < len(self.group.trajectories):
            raise IndexError(f"rollout {rollout}: the group has {len(self.group.trajectories)}, counted from 0")
        if rollout not in self._stories:
            if (turns := len(self.group.trajectories[rollout].turns)) > MOST_TURNS:
                raise DataError(
                    f"rollout {rollout} has {turns:,} turns, more than the page shows ({MOST_TURNS:,}): see its counts "
                    "in the table of episodes, or its lines with palimpsest view --export FILE.jsonl"
                )
            self._stories[rollout] = Story(self.group.problem, self.group.trajectories[rollout], self.texts)
        return self._stories[rollout]

    def unfounded(self, rollout: int) -> Unfounded:
        """Earlier hallucinations in an episode's memories. Raises as `story` does."""
        story = self.story(rollout)
        return self._unfounded.setdefault(rollout, Unfounded(story))


# ---- The open groups -----------------------------------------------------------------------------------------


MOST_GROUPS, MOST_TOKENS = 4, 6_000_000
"""Limits of the cache besides the newest group; a token takes about 40 bytes."""
T = TypeVar("T")
_Key = tuple[Path, int, int, int]


@dataclass(slots=True)
class _CachedGroup:
    opened: Opened | None = None
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class OpenedGroups:
    """Groups by source, step and index. Thread-safe."""

    def __init__(self, records: Records, decoders: Decoders, facts: RunFacts) -> None:
        self._records, self._decoders, self._facts = records, decoders, facts
        self._lock = threading.Lock()
        self._groups: OrderedDict[_Key, _CachedGroup] = OrderedDict()

    def look(self, source: Source, step: str, index: int, at: Callable[[Opened], T]) -> T:
        """The result of `at` for a group. Raises NotThere for a missing item, DataError for an unreadable group."""
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
        """Read a group. Raises NotThere and DataError as a record's index does, and then forgets the group."""
        try:
            group = self._records.index(source, step).group(index)
            return Opened(group, self._decoders.of(source).codec, self._credit(source))
        except BaseException:
            with self._lock:
                self._groups.pop(key, None)
            raise

    def _shrink(self) -> None:
        with self._lock:
            groups = self._groups
            while len(groups) > 1 and (
                len(groups) > MOST_GROUPS or sum(entry.tokens for entry in groups.values()) > MOST_TOKENS
            ):
                groups.popitem(last=False)

    def _credit(self, source: Source) -> CreditConfig | None:
        """Credit section of a run; None outside of runs, and for a run of another version."""
        run = run_of(source)
        if run is None:
            return None
        try:
            return CreditConfig.model_validate(
                self._facts.config(Source("", SourceKind.RUN, run, "")).get("credit", {})
            )
        except ValidationError:
            return None


# ---- A group as its page shows it ----------------------------------------------------------------------------


_MOST = 5_000_000  # maximum tokens of prompts and completions in a forest; takes some seconds
_SHOWN = 400  # nodes
_HEAD = 24  # displayed tokens of a node
_TEXT = 400  # characters of a memory in a cell


def group_view(opened: Opened) -> dict[str, Any]:
    """The API's answer for a group.

    Each row of `rollouts` has `cells`, one per step of its memory, in reading order; equal memories after the same step
    share a `memory_id`. `parts` counts the distinct memories per step, and `first_parting` is the first step with more
    than one (None: never).
    """
    group = opened.group
    stories = [opened.story(rollout) for rollout in range(len(group.trajectories))]
    rollouts = [_rollout(opened, rollout, story) for rollout, story in enumerate(stories)]
    partings = _partings([row["cells"] for row in rollouts])
    return {
        "group": group.trajectories[0].group_id if group.trajectories else group.problem.id,
        "problem": problem_value(group.problem),
        "evidence": [one.text for one in stories[0].evidence] if stories else [],
        "advantage_is": opened.advantages.what,
        "rollouts": rollouts,
        "parts": partings,
        "first_parting": next((part["step"] for part in partings if part["memories"] > 1), None),
        "forest": _forest(opened),
    }


def problem_value(problem: Problem) -> dict[str, Any]:
    """A problem without its document."""
    return {
        "id": problem.id,
        "question": problem.question,
        "answers": list(problem.answers),
        "facts": {name: value for name, value in problem.metadata.items() if isinstance(value, str | int | float)},
    }


def rollout_value(opened: Opened, rollout: int) -> dict[str, Any]:
    """The end and the reward of an episode."""
    story, grade = opened.story(rollout), opened.group.grades[rollout]
    return {
        "rollout": rollout,
        "number": story.trajectory.rollout,
        "replayed": None if story.replayed is None else replayed_in_words(story.replayed),
        "outcome": story.trajectory.outcome.value,
        "answer": story.trajectory.answer,
        "answers": list(story.trajectory.answers),
        "grade": {"value": grade.value, "reason": grade.reason},
        "advantage": opened.advantages.of_rollouts[rollout],
        "advantage_is": opened.advantages.what,
    }


def _rollout(opened: Opened, rollout: int, story: Story) -> dict[str, Any]:
    return {
        **rollout_value(opened, rollout),
        "turns": len(story.trajectory.turns),
        "tokens": tokens_of(story.trajectory),
        "cells": [_cell(story, number) for number in range(len(story.steps))],
    }


def _cell(story: Story, number: int) -> dict[str, Any]:
    step = story.steps[number]
    labels, text = marks(story, step.turn), step.after.text
    return {
        "step": number,
        "turn": step.turn,
        "chunk": story.trajectory.turns[step.turn].notes.get("chunk"),
        "state": labels[0],
        "marks": labels,
        "memory_id": hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).hexdigest(),
        "memory": text[:_TEXT],
        "tokens": len(step.after.ids) or len(story.words(step.after).ids),
        "held": [at for at, one in enumerate(story.evidence) if one.in_text(step.after)],
        "seen": [at for at, one in enumerate(story.evidence) if step.section is not None and one.in_text(step.section)],
    }


def _partings(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Distinct memories per step, most frequent first, and the rollouts without that step."""
    partings = []
    for step in range(max(map(len, rows), default=0)):
        counts = Counter(row[step]["memory_id"] for row in rows if step < len(row))
        partings.append({"step": step, "memories": len(counts), "counts": dict(counts.most_common())})
    return partings


def _forest(opened: Opened) -> dict[str, Any]:
    trajectories = opened.group.trajectories
    tokens = sum(map(tokens_of, trajectories))
    if tokens > _MOST:
        return {"left_out": f"{tokens} tokens: the limit of a forest is {_MOST}"}
    try:
        forest = prefix_forest(trajectories)
    except ValueError as error:
        return {"left_out": str(error)}
    shown = _largest(forest)
    return {
        "logical_tokens": forest.logical_tokens,
        "physical_tokens": forest.physical_tokens,
        "computed": None if opened.computed is None else asdict(opened.computed),
        "rows": [{"rollout": row.rollout, "turns": list(row.turns), "tokens": len(row.tokens)} for row in forest.rows],
        "nodes": [_node(opened, forest, index) for index in shown],
        "nodes_left_out": len(forest.nodes) - len(shown),
    }


def _largest(forest: GroupForest) -> list[int]:
    """The displayed nodes, in order: those that save most, with all their ancestors."""

    def saved(index: int) -> int:
        node = forest.nodes[index]
        return (node.rows[1] - node.rows[0]) * (node.end - node.start)

    chosen = set[int]()
    for index in sorted(range(len(forest.nodes)), key=saved, reverse=True):
        if len(chosen) >= _SHOWN:
            break
        above: int | None = index
        while above is not None and above not in chosen:
            chosen.add(above)
            above = forest.nodes[above].parent
    return sorted(chosen)


def _node(opened: Opened, forest: GroupForest, index: int) -> dict[str, Any]:
    node = forest.nodes[index]
    ids = forest.tokens(node)
    return {
        "start": node.start,
        "end": node.end,
        "rows": list(node.rows),
        "rollouts": sorted({row.rollout for row in forest.rows[slice(*node.rows)]}),
        "trained": node.trained,
        "text": opened.texts.spelling.text(ids[:_HEAD]) + ("…" if len(ids) > _HEAD else ""),
    }
