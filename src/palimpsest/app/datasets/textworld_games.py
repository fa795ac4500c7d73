"""TextWorld games as problems: game files, and rows that name them.

    OUT/games/coins-4-17.z8      game of a family, a difficulty and a seed
    OUT/train.jsonl              one row per game: its objective, its file, a way to win it
    OUT/test.jsonl               games of other seeds

Guaranteed: the same settings give the same rows; no game is in both files, as seeds of training are even and held-out
ones odd.
Not covered: equal bytes of game files, in which the compiler writes the date.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palimpsest.data.formats.problem_files import write_rows
from palimpsest.data.set_manifest import write_manifest
from palimpsest.errors import ConfigError, RunError, nearest
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.folder_guard import Made, new_folder
from palimpsest.seeding import derive_seed
from palimpsest.tools.textworld import GameWorker, WorkerLost
from palimpsest.tools.textworld_worker import FAMILIES, HARDEST

PATIENCE_S = 600.0
_TRIES = 5  # seeds of a game: some give a world that the generator can't build


@dataclass(frozen=True, slots=True)
class GameSet:
    """The games to make. Raises ConfigError for an unknown family or difficulty."""

    family: str = "coins"
    games: int = 20
    """For training."""
    held_out: int = 8
    difficulty: Sequence[int] = (2, 3, 4)
    """Difficulties of the games, in turn."""
    seed: int = 0

    def __post_init__(self) -> None:
        hardest = HARDEST.get(self.family)
        if hardest is None:
            hint = f"{', '.join(FAMILIES)}{nearest(self.family, FAMILIES)}"
            raise ConfigError(f"--family {self.family}: choose one of {hint}")
        if not self.difficulty or not 1 <= min(self.difficulty) <= max(self.difficulty) <= hardest:
            raise ConfigError(f"--difficulty: {self.family} has 1 to {hardest}; name one or several, e.g. 1,2")


def make_games(
    wanted: GameSet, *, out: Path, processes: int = 2, force: bool = False, progress: Progress | None = None
) -> Made:
    """Write train.jsonl, test.jsonl and their games. Raises RunError if a game can't be made."""
    shown, described = progress or Silent(), dict[str, dict[str, Any]]()
    with new_folder(out, force=force, progress=shown) as folder:
        (folder / "games").mkdir()
        total = wanted.games + wanted.held_out
        count = max(1, min(processes, total))
        with shown.count("games", total) as tick, ThreadPoolExecutor(count) as threads, _workers(count) as free:

            def row(split: str, index: int) -> dict[str, Any]:
                worker = free.pop()
                try:
                    return _row(worker, folder, wanted, split, index)
                finally:
                    free.append(worker)
                    tick()

            for split, games in (("train", wanted.games), ("test", wanted.held_out)):
                rows = threads.map(row, itertools.repeat(split, games), range(games))
                described[f"{split}.jsonl"] = {"problems": write_rows(folder / f"{split}.jsonl", rows)}
        settings = asdict(wanted) | {"difficulty": list(wanted.difficulty)}
        seed = settings.pop("seed")
        edition = write_manifest(
            folder, made_by="palimpsest data textworld", seed=seed, described=described, settings=settings
        )
    return Made(out, edition, {name: entry["problems"] for name, entry in described.items()})


@contextmanager
def _workers(count: int) -> Iterator[list[GameWorker]]:
    workers = [GameWorker() for _ in range(count)]
    try:
        yield [*workers]
    finally:
        for worker in workers:
            worker.close()


def _row(worker: GameWorker, folder: Path, wanted: GameSet, split: str, index: int) -> dict[str, Any]:
    difficulty = wanted.difficulty[index % len(wanted.difficulty)]
    about = {"family": wanted.family, "difficulty": difficulty}
    for attempt in range(_TRIES):
        drawn = derive_seed(wanted.seed, "textworld", wanted.family, difficulty, split, index, attempt) % (1 << 30)
        number = 2 * drawn + (split != "train")
        name = f"{wanted.family}-{difficulty}-{number}"
        game = f"games/{name}.z8"
        try:
            made = worker.call(PATIENCE_S, make=str(folder / game), seed=number, **about)
        except WorkerLost as error:
            if attempt == _TRIES - 1 or not worker.alive:
                raise RunError(f"game {name}: {error}") from None
            continue
        metadata = {"game": game, **about, "walkthrough": made["walkthrough"]}
        return {"id": name, "question": made["objective"], "answers": [], "metadata": metadata}
    raise AssertionError("unreachable: the last attempt returns or raises")
