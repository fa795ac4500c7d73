"""What the server keeps on disk: episodes turn by turn.

    episodes/ID.jsonl       head; a line a turn, written before the next begins; at the end the result

Every line has a checksum (episode_log.py).

Guaranteed: everything is readable by its owner alone; ids of clients never become paths unless they are ids of ours; a
line that a kill cut off is left out; a line in which a bit was flipped is never taken for what was written,
and an episode continues after the turns before that line; the whole stays within `Quota`: of episodes that don't
run the oldest go first; what can't be written is a `StoreFailed` and
leaves nothing behind. Beginning an episode, and telling how one ended, takes no longer the more turns or episodes
are kept.
Not covered: a machine that loses its power (lines are not flushed to the disk one by one).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.rollout.trajectory_file import turn_to_json
from palimpsest.runs.folder_guard import FolderLock
from palimpsest.servers.http_service import Refused, shown
from palimpsest.servers.openai.episode_log import EpisodeLog
from palimpsest.types import Turn

_ID = re.compile(r"ep_[0-9a-f]{32}")
_KEPT = 0.9
"""Of their share, once the oldest episodes have gone: looking for them takes time that grows with their number."""


_log = logging.getLogger("uvicorn.error")


class StoreFailed(Refused):
    """The disk takes no more, or fails."""


@contextmanager
def writing() -> Iterator[None]:
    """Raises StoreFailed where the system refuses to write; why is for the log."""
    try:
        yield
    except OSError:
        _log.exception("the store failed")
        raise StoreFailed(507, "the server can't store it; its log says why", code="store_failed") from None


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes on disk."""

    episodes: int = 10 << 30


class Store:
    """One folder, of one server. Every call is short; those that aren't are made on a thread."""

    def __init__(self, folder: Path, quota: Quota | None = None) -> None:
        """Raises RunError where another server has the folder."""
        self.folder, self.quota = folder, quota or Quota()
        for name in ("", "episodes"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FolderLock(folder)
        self._episode_bytes = self._size_of_episodes()  # at the most: what is deleted is counted on

    def close(self) -> None:
        self._lock.release()

    # ---- episodes

    def begin(self, episode: str, head: dict[str, Any], running: Collection[str] = ()) -> bool:
        """Open the log of an episode, beside those that run. True for one that was ended before its end: its log goes
        on."""
        self.keep_within({episode, *running})
        if self._log(episode).cut_torn_line():
            return True
        self.append(episode, {"head": head})
        return False

    def keep_within(self, running: Collection[str]) -> None:
        """Delete the oldest episodes where all take more than the quota, but for those that run. Raises
        Refused where that is not enough."""
        if self._episode_bytes > self.quota.episodes:
            self._make_room(set(running))

    def append(self, episode: str, line: dict[str, Any]) -> None:
        """Add a line to an episode's log. Raises StoreFailed."""
        with writing():
            self._episode_bytes += self._log(episode).append(line)

    def append_turn(self, episode: str, turn: Turn) -> None:
        self.append(episode, {"turn": turn_to_json(turn)})

    def recover(self, episode: str, head: dict[str, Any]) -> list[Turn]:
        """Turns before the first damaged line, each once. The log is cut there, and starts with a head."""
        turns = self._log(episode).cut_at_damage()
        if not self._log(episode).cut_torn_line():
            self.append(episode, {"head": head})
        return turns

    def lines(self, episode: str) -> Iterator[dict[str, Any]]:
        """Of an episode's log, those that are not damaged; none where there is none."""
        return self._log(episode).lines()

    def result(self, episode: str) -> dict[str, Any] | None:
        """How it ended, which is the last line; None where it didn't, or where that line is damaged."""
        return self._log(episode).result()

    def heads(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(id, head) of the episodes."""
        for path in sorted((self.folder / "episodes").glob("ep_*.jsonl")):
            first = next(iter(self.lines(path.stem)), {})
            if isinstance(first.get("head"), dict):
                yield path.stem, first["head"]

    def _make_room(self, running: Set[str]) -> None:
        """Delete the oldest episodes until there is room for more than one."""
        most, size = self.quota.episodes, self._size_of_episodes()
        kept = (self.folder / "episodes").glob("ep_*")
        for path in sorted(kept, key=lambda path: path.stat().st_mtime) if size > most else ():
            if size <= most * _KEPT:
                break
            if path.stem not in running:
                size -= path.stat().st_size
                path.unlink(missing_ok=True)
        self._episode_bytes = size
        if size > most:
            raise Refused(507, "the store is full of episodes that run; try again later", code="store_full")

    def _size_of_episodes(self) -> int:
        return _size(self.folder / "episodes")

    def _log(self, episode: str) -> EpisodeLog:
        return EpisodeLog(self._path(episode))

    def _path(self, name: str) -> Path:
        if not _ID.fullmatch(name):
            raise Refused(404, f"{shown(name)}: no such id", code="not_found")
        return self.folder / "episodes" / f"{name}.jsonl"


def _size(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))
