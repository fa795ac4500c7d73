"""Episode record of an evaluation on disk, token for token: `episodes.jsonl.zst`.

The format is that of a run's record with its index (rollout/trajectory_file.py), one frame per episode, written before
its line in samples.jsonl. `group_id` is NAME/ID of the sample, `rollout` its draw.

Guaranteed: the file never exceeds its limit and contains only whole episodes; the first episode without room, or a
disk error, ends the record with one message, and the evaluation continues; a killed process leaves at most one torn
frame, and the next writer truncates it and rebuilds the index; a repeated episode adds a frame, and its last frame
counts; only the process that locked the log (sample_log.py) writes.
Not covered: the order of episodes (they are stored as they end); power loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import orjson
import zstandard

from palimpsest import files
from palimpsest.errors import DataError
from palimpsest.notes import Note
from palimpsest.rollout.trajectory_file import (
    EPISODES as EPISODES,
)
from palimpsest.rollout.trajectory_file import (
    Recording,
    encode_groups,
    frame_spans,
    groups_in,
    index_line,
    index_lines,
    index_of,
    read_groups,
    unpacked,
)
from palimpsest.seeding import Key
from palimpsest.types import Grade, Group, Problem, Trajectory

Selection = Literal["wrong", "all"]
"""Episodes to record: all, or wrong ones (value below 1 or ungraded)."""
MOST_BYTES = 64_000_000
"""Limit of a record of wrong episodes."""
EpisodeKey = tuple[str, int]
"""Group id and rollout."""


class EpisodeFile:
    """Record of one evaluation, opened by the first episode. Only the process that locked the log may use it."""

    def __init__(
        self,
        folder: Path,
        selection: Selection,
        on_end: Callable[[str], None] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """`on_end`: called once when the file is full. `tokenizer`: `Codec.digest` of the tokenizer of the ids."""
        self.path = folder / EPISODES
        self._selection, self._on_end = selection, on_end
        self._tokenizer = tokenizer
        self._held: set[EpisodeKey] | None = None
        self._full = False

    def add(self, problem: Problem, trajectory: Trajectory, grade: Grade, key: tuple[Key, ...] = ()) -> None:
        """Write an episode and its index line, if it is selected and fits. `key`: seed key of its group."""
        if self._held is None:
            self._held = _recover_frames(self.path)
        episode_key = (trajectory.group_id, trajectory.rollout)
        right = grade.value is not None and grade.value >= 1
        if self._full or (self._selection == "wrong" and right and episode_key not in self._held):
            return
        group = Group(problem, (trajectory,), (grade,), key)
        frame = encode_groups([group], self._tokenizer)
        size = self.path.stat().st_size if self.path.exists() else 0
        if self._selection == "wrong" and size + len(frame) > MOST_BYTES:
            self._end(Note("episode_record_full", path=str(self.path), megabytes=MOST_BYTES / 1e6))
            return
        if self._written(frame, size):
            self._held.add(episode_key)
            with suppress(OSError):  # a missing line is rebuilt from the frames
                _append(index_of(self.path), index_lines([group], frame, size))

    def _written(self, frame: bytes, size: int) -> bool:
        """Append `frame` at `size` and return whether that worked. A disk error ends the record, not the evaluation."""
        try:
            _append(self.path, frame)
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            self._end(Note("episode_record_unwritable", path=str(self.path), reason=error.strerror))
            return False
        return True

    def _end(self, note: Note) -> None:
        self._full = True
        if self._on_end is not None:
            self._on_end(note)


def read_episodes(path: Path) -> Recording:
    """The record of an evaluation: one group per problem, in the order of first ended episodes. Raises DataError."""
    recording = read_groups(path)
    return Recording(merged(recording.groups), recording.torn, recording.tokenizers)


def first_episodes(path: Path, most_bytes: int = 4 << 20) -> tuple[Group, ...]:
    """Groups in the whole frames of a record's first bytes, one per problem; empty without a record."""
    try:
        with files.open_regular(path) as file:
            data = file.read(most_bytes)
    except OSError:
        return ()
    groups = list[Group]()
    for start, end in frame_spans(data):
        try:
            groups += groups_in(path, unpacked(path, data[start:end]))
        except (zstandard.ZstdError, DataError):
            break  # damaged: later frames are skipped too
    return merged(groups)


def merged(groups: Iterable[Group]) -> tuple[Group, ...]:
    """One group per group id, with the last episode of each rollout, in the order of rollouts."""
    last: dict[str, Group] = {}
    played: dict[str, dict[int, tuple[Trajectory, Grade]]] = {}
    for group in groups:
        for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
            last[trajectory.group_id] = group
            played.setdefault(trajectory.group_id, {})[trajectory.rollout] = (trajectory, grade)
    groups = []
    for name, draws in played.items():
        trajectories, grades = zip(*(episode for _, episode in sorted(draws.items())), strict=True)
        groups.append(replace(last[name], trajectories=trajectories, grades=grades))
    return tuple(groups)


def _append(path: Path, data: bytes) -> None:
    with open(files.open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        file.write(data)


def _recover_frames(path: Path) -> set[EpisodeKey]:
    """Keys of the episodes in the file; truncates it after the last whole frame and rebuilds the index."""
    data = files.read_regular(path) if path.exists() else b""
    held, valid_end, index = set[EpisodeKey](), 0, list[bytes]()
    for start, end in frame_spans(data):
        try:
            rows = list(map(orjson.loads, unpacked(path, data[start:end]).splitlines()))
            held |= {(row["group_id"], row["rollout"]) for row in rows}
        except (zstandard.ZstdError, DataError, orjson.JSONDecodeError, LookupError, TypeError):
            break  # damaged: later frames are unreadable too
        with suppress(ValueError):
            index.append(index_line(data[start:end], start, rows))
        valid_end = end
    if valid_end < len(data):
        with files.naming(path):
            os.truncate(path, valid_end)
    if data:
        with suppress(OSError):
            files.write_file(index_of(path), b"".join(index))
    return held
