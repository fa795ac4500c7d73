"""TextWorld games as problems: game files, and rows that name them.

    OUT/games/coins-4-17.z8      game of a family, a difficulty and a seed
    OUT/train.jsonl              one row per game: its objective, its file, a way to win it
    OUT/test-4.jsonl             games of other seeds; a file for each difficulty

Guaranteed: the same settings give the same rows; no game is in two files, as seeds of training are even and held-out
ones odd.
Not covered: equal bytes of game files, in which the compiler writes the date.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.schema import RunConfig
from palimpsest.data.formats.problem_files import write_rows
from palimpsest.data.set_manifest import write_manifest
from palimpsest.errors import ConfigError, RunError, nearest
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.folder_guard import Made, new_folder
from palimpsest.seeding import derive_seed
from palimpsest.tools.textworld import WorkerLost, worker_of
from palimpsest.tools.textworld_worker import FAMILIES, HARDEST

PATIENCE_S = 600.0
_TRIES = 5  # seeds of a game: some give a world that the generator can't build


@dataclass(frozen=True, slots=True)
class GameSet:
    """The games to make. Raises ConfigError for an unknown family or difficulty."""

    family: str = "notes"
    games: int = 20
    """For training."""
    held_out: int = 8
    """For evaluation, of each difficulty."""
    difficulty: tuple[int, ...] = ()
    """Difficulties of the games for training, in turn; (): 4 and 8, of cooking 1 and 2."""
    test_difficulty: tuple[int, ...] = ()
    """Difficulties for evaluation; (): the same."""
    seed: int = 0

    def __post_init__(self) -> None:
        hardest = HARDEST.get(self.family)
        if hardest is None:
            hint = f"{', '.join(FAMILIES)}{nearest(self.family, FAMILIES)}"
            raise ConfigError(f"--family {self.family}: choose one of {hint}")
        for option, named in (("difficulty", self.difficulty), ("test-difficulty", self.test_difficulty)):
            if named and not 1 <= min(named) <= max(named) <= hardest:
                raise ConfigError(f"--{option}: {self.family} has 1 to {hardest}; name one or several, e.g. 1,2")

    @property
    def files(self) -> Mapping[str, Sequence[int]]:
        """Difficulty of each game by file."""
        difficulties = self.difficulty or ((1, 2) if self.family == "cooking" else (4, 8))
        files = {"train": [difficulties[index % len(difficulties)] for index in range(self.games)]}
        for difficulty in self.test_difficulty or difficulties:
            files[f"test-{difficulty}"] = [difficulty] * self.held_out
        return files


def make_games(
    wanted: GameSet,
    *,
    out: Path,
    processes: int = 2,
    force: bool = False,
    progress: Progress | None = None,
    ended: threading.Event | None = None,
) -> Made:
    """Write the files and their games; no further game once `ended` is set. Raises RunError if a game can't be made."""
    shown, described = progress or Silent(), dict[str, dict[str, Any]]()
    with new_folder(out, force=force, progress=shown) as folder:
        (folder / "games").mkdir()
        total = sum(map(len, wanted.files.values()))
        count = max(1, min(processes, total))
        with shown.count("games", total) as tick, ThreadPoolExecutor(count) as threads:

            def row(split: str, index: int, difficulty: int) -> dict[str, Any]:
                if ended is not None and ended.is_set():
                    raise RunError("stopped")
                made = _row(index % count, folder, wanted, split, index, difficulty)
                tick()
                return made

            for split, levels in wanted.files.items():
                rows = threads.map(row, itertools.repeat(split), range(len(levels)), levels)
                described[f"{split}.jsonl"] = {"problems": write_rows(folder / f"{split}.jsonl", rows)}
        settings = {name: value for name, value in asdict(wanted).items() if name != "seed"}
        by = "palimpsest data textworld"
        edition = write_manifest(folder, made_by=by, seed=wanted.seed, described=described, settings=settings)
    return Made(out, edition, {name: entry["problems"] for name, entry in described.items()})


QUICKSTART = GameSet(games=160, held_out=32, test_difficulty=(4, 8, 16, 32))
"""The games of recipe textworld-quickstart."""


def missing_games(config: RunConfig) -> Path | None:
    """The folder of the games of textworld-quickstart, if it does not exist."""
    if config.recipe != "textworld-quickstart" or config.environment is None:
        return None
    folder = Path(str(config.environment.options.get("games", "")))
    return None if folder.exists() or Path(str(config.data.train_files)).parent != folder else folder


async def make_missing_games(config: RunConfig, progress: Progress) -> None:
    """Make the games of textworld-quickstart, unless their folder exists."""
    if (folder := missing_games(config)) is not None:
        progress.message(f"making TextWorld games in {folder}, once")
        ended = threading.Event()
        try:
            await asyncio.to_thread(make_games, QUICKSTART, out=folder, progress=progress, ended=ended)
        finally:
            ended.set()


def _row(process: int, folder: Path, wanted: GameSet, split: str, index: int, difficulty: int) -> dict[str, Any]:
    about = {"family": wanted.family, "difficulty": difficulty}
    for attempt in range(_TRIES):
        drawn = derive_seed(wanted.seed, "textworld", wanted.family, difficulty, split, index, attempt) % (1 << 30)
        number = 2 * drawn + (split != "train")
        name = f"{wanted.family}-{difficulty}-{number}"
        game = f"games/{name}.z8"
        try:
            made = worker_of(process).call(PATIENCE_S, make=str((folder / game).resolve()), seed=number, **about)
        except WorkerLost as error:
            if attempt == _TRIES - 1:
                raise RunError(f"game {name}: {error}") from None
            continue
        metadata = {"game": game, **about, "walkthrough": made["walkthrough"]}
        return {"id": name, "question": made["objective"], "answers": [], "metadata": metadata}
    raise AssertionError("unreachable: the last attempt returns or raises")
