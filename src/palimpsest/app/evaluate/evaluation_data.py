"""Evaluation data and output folder: problems from files or generators, SHA-256 of the files, `force`.

`force` renames an existing folder to `NAME.old-1`, `.old-2`...

Guaranteed: without `force`, palimpsest rejects a folder with a run, or with other files than an evaluation's, and
leaves it unchanged. It deletes nothing. It never renames a folder while a process writes in it or in a run around it,
while it contains the model, or if it contains runs or belongs to one.
Not covered: hashes of sources without files, and of files that a data file refers to, such as a corpus.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.app.python_objects import Problems, problems_of
from palimpsest.config.data import SEEDS, DataConfig, SearchDataConfig, Sources, listed
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import with_keys
from palimpsest.data.files.text_files import unpacked_name
from palimpsest.data.formats.problem_files import read_problems as file_problems
from palimpsest.data.set_manifest import MANIFEST, sets_of
from palimpsest.data.sources.file_source import FileSource, SourceProblems, build_source, rows_left_out
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.errors import ConfigError, DataError, RunError
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.evaluation.sample_log import IDENTITY, REQUESTED, SAMPLES, Cell, refuse_in_use
from palimpsest.plugins import DATA, named_objects, plain
from palimpsest.provenance import sha256s
from palimpsest.runs.folder_guard import folders, refuse_moving, visible_names
from palimpsest.runs.run_folder import CONFIG
from palimpsest.types import Problem

Data = Any
"""A file or generator, several files, or problems: `Problem`s or dicts in a list, a data set."""
DRAWN_PROBLEMS = 64
"""Problems per length of generated data without `limit`."""


def split_data(data: Data | None) -> tuple[Sources | None, list[Problem] | None]:
    """(sources to read, given problems): one of them, or neither. Raises ConfigError or DataError."""
    if data is None or isinstance(data, str | os.PathLike):
        return None if data is None else os.fspath(data), None
    rows = problems_of(data, "palimpsest.evaluate(data=...)")
    files = [os.fspath(item) for item in rows.items if isinstance(item, str | os.PathLike)]
    if files and len(files) == len(rows):
        return tuple(files), None
    return None, as_problems(rows)


def as_problems(rows: Problems) -> list[Problem]:
    """Problems from objects, with unique ids. Raises ConfigError or DataError."""
    named = Counter(item.id for item in rows.items if isinstance(item, Problem))
    if twice := [name for name, count in named.items() if count > 1]:
        raise DataError(f"{rows.called}: two problems have the id {twice[0]!r}: use unique ids")
    with named_objects({DATA: rows}):
        if len(rows) == sum(named.values()):
            return [item for item, _ in zip(rows.items, rows, strict=True)]  # iterating `rows` checks each item
        return list(file_problems(DATA))


def read_problems(
    config: RunConfig,
    chunks: Sequence[int] | None = None,
    skipped: list[str] | None = None,
    documents: Sequence[int] = (),
) -> dict[Cell, Sequence[Problem]]:
    """Problems of each part, a cell without a player; problems of files are built on access. `skipped` gains one
    message per skipped row. `documents`: several numbers per context, instead of the configuration's."""
    source, limit = config.data.val_files or config.data.train_files, config.data.limit
    if source == "synthetic":
        lengths = sorted(set(chunks or (config.data.synthetic.chunks,)))
        if lengths[0] < 1:
            raise ConfigError(f"chunks={list(lengths)}: expected lengths from 1, such as 4,64,256")
        tasks, key = config.data.synthetic.evaluated, "data.synthetic.val_task"
        by_name, count = {source: config}, limit or DRAWN_PROBLEMS
        if len(tasks) > 1:
            by_name = {task: with_keys(config, {key: (task,)}) for task in tasks}
        return {part(name, n, "chunks"): _drawn(one, n, count) for name, one in by_name.items() for n in lengths}
    if source == SEEDS:
        if chunks or documents or config.data.documents:
            raise ConfigError(f"chunks, documents: tasks of {SEEDS} have no length; omit it")
        return {part(SEEDS): _drawn(config, None, limit or DRAWN_PROBLEMS)}
    searched = source == SYNTHETIC_SEARCH or config.data.search is not None
    if chunks is not None:
        files = ", ".join(listed(source))
        takes = "search takes objectives (--objectives)" if searched else f"{files} takes documents (--documents)"
        raise ConfigError(f"chunks={','.join(map(str, chunks))}: sets the length of synthetic documents; {takes}")
    if searched:
        search = config.data.search or SearchDataConfig()
        # a file uses all: its limit counts rows
        count = (limit or DRAWN_PROBLEMS) if source == SYNTHETIC_SEARCH else sys.maxsize
        sizes = sorted(set(search.objectives))
        return {part(", ".join(listed(source)), n, "objectives"): _drawn(config, n, count) for n in sizes}
    return _of_files(config, expanded(listed(source)), [] if skipped is None else skipped, documents)


def part(name: str, size: int | None = None, unit: str | None = None) -> Cell:
    """A cell without a player."""
    return Cell(name, size, unit, player="")


def expanded(paths: Sequence[str]) -> list[str]:
    """`paths`, with each folder that `palimpsest data` wrote replaced by its sets. Raises DataError."""
    all_paths: list[str] = []
    for path in paths:
        made = (Path(path) / MANIFEST).is_file()
        all_paths += map(str, sets_of(Path(path))) if made else [path]
    return list(dict.fromkeys(all_paths))


def set_names(paths: Sequence[str]) -> dict[str, str]:
    """Name of each file's set: the file's, or the path if two files share a name."""
    stems = {path: unpacked_name(Path(plain(path))).stem for path in paths}
    names = list(stems.values())
    return {path: stem if names.count(stem) == 1 else path for path, stem in stems.items()}


def _of_files(
    config: RunConfig, paths: Sequence[str], skipped: list[str], documents: Sequence[int]
) -> dict[Cell, Sequence[Problem]]:
    """Problems by file and number of documents."""
    cells = dict[Cell, Sequence[Problem]]()
    for path, name in set_names(paths).items():
        first, *rest = documents or (config.data.documents,)
        changes = {"train_files": path, "val_files": None, "documents": first}
        source = build_source(config.data.model_copy(update=changes), config.seed, split="eval")
        assert isinstance(source, FileSource)
        skipped += [line for line in rows_left_out(source) if line not in skipped]
        for count, sized in ((first, source), *((count, source.with_documents(count)) for count in rest)):
            cell = part(name, count, "documents") if documents else part(name)
            cells[cell] = SourceProblems.all_of(sized)
    return cells


def _drawn(config: RunConfig, size: int | None, count: int) -> list[Problem]:
    return build_source(config.data, config.seed, split="eval").problems(step=0, count=count, size=size)


# ---- SHA-256 of the data files -------------------------------------------------------------------------------


def editions_of(data: DataConfig) -> dict[str, str]:
    """SHA-256 of every file that an evaluation of `data` reads problems from, computed after all episodes."""
    sources = [name for name in expanded(listed(data.val_files or data.train_files)) if Path(name).is_file()]
    return dict(zip(sources, sha256s([Path(name) for name in sources]), strict=True))


# ---- Output folder -------------------------------------------------------------------------------------------


def check_folder(out: Path | None, *, model: str, force: bool) -> None:
    """Raise RunError for a folder that an evaluation must not write into, before anything loads; None: no output."""
    if out is None:
        return
    if os.path.lexists(out) and not out.is_dir():
        raise RunError(f"{out} is {'a file' if out.exists() else 'a link to nothing'}; an evaluation needs a folder")
    names = visible_names(out)
    if force:
        if names and out.resolve() in (Path(model).resolve(), *Path(model).resolve().parents):
            raise RunError(f"{out} contains the model {model}, which --force would rename too: use another --out")
        _refuse_moving(out, names)
    elif CONFIG in names:
        raise RunError(f"{out} contains a run: use another --out, or --force to rename the run's folder")
    elif IDENTITY not in names and set(names) - {SAMPLES, REQUESTED, EPISODES}:
        raise RunError(
            f"{out} contains {', '.join(names[:3])} but no {IDENTITY}: not an evaluation; use another --out, "
            "or --force to rename it"
        )


def move_aside(out: Path | None, message: Callable[[str], None]) -> None:
    """Rename the folder before an evaluation starts over, and report its new name. Raises RunError."""
    if out is not None and (names := visible_names(out)):
        _refuse_moving(out, names)
        message(f"{out}: renamed to {files.set_aside(out)}")


def _refuse_moving(out: Path, names: list[str]) -> None:
    """Raise RunError if a process writes to `out` or runs are in or around it; a run itself may be renamed."""
    refuse_moving(out, independent=IDENTITY in names or not names)
    for folder in folders(out):
        refuse_in_use(folder)
