"""TextWorld games (Côté et al. 2018, arXiv 1806.11532) as an environment.

    palimpsest data textworld --family coins --games 20 --out games
    environment: {name: textworld, options: {games: games}}

A problem's `metadata.game` is a file of the folder `games`. The reward of a step is the gained share of the game's
maximum score. `info`: won; invalid, 1 for a command that the game did not carry out.

Games run in worker processes (textworld_worker.py), several in each: a game that hangs or crashes ends the episodes of
its process, ungraded, and the next game starts a new process.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.config.install_hints import install_line
from palimpsest.errors import ConfigError, DataError
from palimpsest.tools import textworld_worker
from palimpsest.tools.environment import Environment, Step
from palimpsest.types import Problem

_PATIENCE_S = 20.0


class WorkerLost(Exception):
    """A worker process ended or hung, or a game raised an error."""


class GameWorker:
    """A process that makes and plays games; any thread may call it."""

    def __init__(self) -> None:
        require_textworld()
        self._lock = threading.Lock()
        command = [sys.executable, "-P", textworld_worker.__file__]  # without its folder, where a textworld.py is
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._folder = tempfile.TemporaryDirectory(prefix="palimpsest-games-", ignore_cleanup_errors=True)
        # a new session: a signal to the group of the run must not end games; the process ends with its input
        self._process = subprocess.Popen(command, text=True, cwd=self._folder.name, start_new_session=True, **pipes)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, patience_s: float = _PATIENCE_S, **request: Any) -> dict[str, Any]:
        """The answer to a request. Raises WorkerLost."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                ready, _, _ = select.select([self._process.stdout], [], [], patience_s)
                line = self._process.stdout.readline() if ready else ""
            except (OSError, ValueError):  # it ended, or was closed
                line = ""
            if not line:
                self.close()
                raise WorkerLost("the process of the game hangs or has ended")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise WorkerLost(said["error"])
        return said

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def require_textworld() -> None:
    """Raise ConfigError unless TextWorld is installed."""
    if importlib.util.find_spec("textworld") is None:
        raise ConfigError(f"needs textworld: {install_line('textworld')}", key="environment.name", value="textworld")


_WORKERS: dict[int, GameWorker] = {}
_STARTING = threading.Lock()
_NUMBERS = itertools.count()


def worker_of(number: int) -> GameWorker:
    """The process of that number, started again if it has ended."""
    with _STARTING:
        worker = _WORKERS.get(number)
        if worker is None or not worker.alive:
            worker = _WORKERS[number] = GameWorker()
        return worker


VERBS = frozenset(
    str.split("""
    look l inventory i examine x read go north south east west n s e w take get pick drop put insert open close lock
    unlock eat drink cook fry roast grill chop slice dice cut prepare enter exit wait z goal
    """)
)
"""First words of commands. Others may save, end or undo a game, write files, or steer its interpreter."""
_LONGEST = 200


def plain_command(action: str) -> str | None:
    r"""One command of `VERBS`; None for another, or for several at once.

    >>> plain_command(" Take  key "), plain_command("wait. restore"), plain_command("save"), plain_command(r"go \\n")
    ('take key', None, None, None)
    """
    command = " ".join(action.lower().split())
    plain = command.isascii() and command.isprintable() and len(command) <= _LONGEST
    if not plain or re.search(r"[\\.;,]|\bthen\b", command) or command.split(" ")[0] not in VERBS:
        return None
    return command


class TextWorldEnvironment(Environment):
    """A game."""

    def __init__(
        self, games: str = ".", commands: bool = False, most_steps: float | None = 2.0, workers: int = 2
    ) -> None:
        """`games`: folder of the problems' files; `commands`: list the valid commands after each observation;
        `most_steps`: a game ends after this multiple of the steps in `metadata.walkthrough`, null: without a limit;
        `workers`: processes for all games."""
        require_textworld()
        if most_steps is not None and most_steps < 1:
            raise ConfigError("must be at least 1, or null", key="environment.options.most_steps", value=most_steps)
        if workers < 1:
            raise ConfigError("must be at least 1", key="environment.options.workers", value=workers)
        self.games, self.commands, self.workers = Path(games), commands, workers
        if not self.games.is_dir():
            message = "no such folder; make games: palimpsest data textworld --out FOLDER"
            raise ConfigError(message, key="environment.options.games", value=games)
        self._game, self._score = next(_NUMBERS), 0
        self._factor, self._left = most_steps, math.inf
        self._worker: GameWorker | None = None

    def admit(self, problem: Problem) -> None:
        self._path(problem)

    def reset(self, problem: Problem) -> str:
        path = self._path(problem)
        self._worker = worker_of(self._game % self.workers)
        way = problem.metadata.get("walkthrough")
        if self._factor is not None and isinstance(way, list | tuple) and way:
            self._left = math.ceil(self._factor * len(way))
        return self._shown(self._worker.call(reset=str(path), game=self._game, commands=self.commands))

    def step(self, action: str) -> Step:
        assert self._worker is not None
        self._left -= 1
        if (command := plain_command(action)) is None:
            return Step("That is no command here.", 0.0, self._left < 1, {"won": 0.0, "invalid": 1.0})
        state = self._worker.call(step=command, game=self._game)
        score = state["max_score"] if state["won"] else state["score"]
        gained, self._score = score - self._score, score
        ended = bool(state["won"] or state["lost"])
        info = {"won": float(state["won"]), "invalid": float(not (ended or state["done"]))}
        return Step(self._shown(state), gained / max(1, state["max_score"]), ended or self._left < 1, info)

    def close(self) -> None:
        if self._worker is not None and self._worker.alive:
            self._worker.call(close=True, game=self._game)

    def _path(self, problem: Problem) -> Path:
        name, folder = problem.metadata.get("game"), self.games.resolve()
        path = (folder / name).resolve() if isinstance(name, str) else folder
        if path.suffix != ".z8" or not path.is_relative_to(folder) or not path.is_file():
            raise DataError(
                f"problem {problem.id}: metadata.game={name!r} is no file in environment.options.games={self.games}; "
                "make games with palimpsest data textworld, and name their folder"
            )
        return path

    def _shown(self, state: Mapping[str, Any]) -> str:
        commands = "\nCommands: " + "; ".join(state["commands"]) if self.commands else ""
        return f"{state['text']}{commands}"
