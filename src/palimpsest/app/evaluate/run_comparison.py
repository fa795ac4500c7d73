"""Comparison of runs and evaluations: their folders, and differences with intervals.

The samples of an evaluation are in samples.jsonl. Its configuration is in evaluation.json, with the configuration of
the run whose model it played as `run.KEY`, if that run still exists. A quickstart has the logs under `evaluations/` and
its config.yaml.

Guaranteed: the samples are those of the last request, as in summary.json; others, and unreadable lines, are counted; a
folder without samples is rejected by name.
Not covered: logs of a quickstart that were set aside (`.old-1`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.app.python_calls import Table
from palimpsest.errors import ConfigError, PalimpsestError, RunError
from palimpsest.evaluation import comparison
from palimpsest.evaluation.comparison import Flip, SideBySide, as_one_agent, settings_of_evaluation, settings_of_run
from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY, Cell, logs_below, read_identity, read_log, read_object
from palimpsest.evaluation.summary import interval_notes
from palimpsest.notes import Note
from palimpsest.runs.run_folder import CONFIG, load_config

# ---- A folder of an evaluation or of a run, as a side of a comparison ----------------------------------------


Folder = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun(comparison.Side):
    """What one folder holds; its name is its path, without what all sides have in common."""

    folder: Path


def read_sides(folders: Sequence[Folder]) -> list[ComparedRun]:
    """The sides, by names that tell them apart. Raises RunError."""
    paths = [Path(folder) for folder in folders]
    names = short_names([str(path) for path in paths])
    return [_side(path, name) for path, name in zip(paths, names, strict=True)]


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths without the folders that all of them begin with; the last part always stays.

    >>> short_names(["runs/a/eval", "runs/b/eval"]), short_names(["evals/a", "evals/b"]), short_names(["x/y"])
    (['a/eval', 'b/eval'], ['a', 'b'], ['y'])
    """
    components = [Path(path).parts for path in paths]
    shared = 0
    while all(len(names) > shared + 1 for names in components) and len({names[shared] for names in components}) == 1:
        shared += 1
    return [str(Path(*names[shared:])) for names in components]


def _side(folder: Path, name: str) -> ComparedRun:
    logs = list(_logs(folder))
    if not logs:
        raise RunError(
            f"{folder}: holds neither {SAMPLES} nor a quickstart's evaluations: give the --out of palimpsest eval, or "
            f"make one with palimpsest eval {folder} --out DIR"
            if folder.is_dir()
            else f"{folder}: no such folder; give folders that palimpsest eval or quickstart wrote"
        )
    read = [read_log(log.parent) for log in logs]
    samples = as_one_agent({sample.key: sample for log in read for sample in log.samples}.values())
    if not samples:
        raise RunError(f"{folder}: no episode in it has ended yet; run the same palimpsest eval again")
    return ComparedRun(
        name=name,
        folder=folder,
        samples=tuple(sample for sample in samples if not sample.baseline),
        baselines=tuple(sample for sample in samples if sample.baseline),
        unreadable=sum(log.unreadable for log in read),
        not_asked=sum(log.not_asked for log in read),
        settings=_settings(folder),
    )


def _logs(folder: Path) -> Iterator[Path]:
    if (folder / SAMPLES).is_file():
        yield folder / SAMPLES
    yield from logs_below(folder).values()


def _settings(folder: Path) -> dict[str, Any]:
    if (folder / CONFIG).is_file():
        return settings_of_run(_run_settings(folder) or {})
    return settings_of_evaluation(read_identity(folder), _summary(folder).get("model"), _run_settings)


def _run_settings(run: Path) -> Mapping[str, Any] | None:
    if not (run / CONFIG).is_file():
        return None
    try:
        return load_config(run).model_dump(mode="json")
    except PalimpsestError:  # of another version: what it was configured as can't be told
        return {}


def _summary(folder: Path) -> dict[str, Any]:
    """What an evaluation wrote at its end; empty where nothing can be read."""
    return read_object(folder / SUMMARY) or {}


# ---- Folders of evaluations side by side (evaluation/comparison.py) -----------------------------------------


FORMAT = 2
"""Of `to_json`: raised where a key goes or means something else; keys may be added."""


@dataclass(frozen=True)
class Comparison(SideBySide):
    """Two or more sides; differences are against the first."""

    sides: tuple[ComparedRun, ...]

    @property
    def flips(self) -> dict[str, tuple[Flip, ...]]:
        """Name of each further side to the problems on which its value is another than the first's."""
        return {name: pairing.flips for name, pairing in self.pairings.items()}

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """What a reader has to know beside the figures."""
        kinds = interval_notes(
            {f"{self.label(cell)}, {name}": row for cell, sides in self.figures.items() for name, row in sides.items()}
        )
        return (*self.side_notes(), *kinds, *self.pairing_notes())

    @cached_property
    def table(self) -> Table:
        """A row a cell and side; shares, not percent. `difference` is that of the problems both sides graded."""
        rows = [self._row(cell, name) for cell, sides in self.figures.items() for name in sides]
        return Table.of(rows)

    def _row(self, cell: Cell, name: str) -> dict[str, Any]:
        figure = self.figures[cell][name]
        pairing = self.cell_pairings.get(cell, {}).get(name)
        difference = pairing.difference if pairing else None
        values = {
            "": self.label(cell),
            "side": name,
            "problems": figure.problems,
            "ungraded": figure.ungraded or None,
            "accuracy": figure.accuracy.mean,
            "low": figure.accuracy.low,
            "high": figure.accuracy.high,
            "difference": difference and difference.mean,
            "difference low": difference and difference.low,
            "difference high": difference and difference.high,
            "p": difference and difference.p,
            "turns": figure.turns_per_document,
            "tokens": round(figure.tokens_per_document),
        }
        return {key: value for key, value in values.items() if value is not None}

    def __repr__(self) -> str:
        lines = [f"Comparison of {', '.join(side.name for side in self.sides)}", str(self.table), *self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.table._repr_html_()

    def to_json(self, flips: int | None = None) -> dict[str, Any]:
        """Everything, with the first `flips` flips of each side (None: all); docs/compare.md tells the keys."""
        return {
            "format": FORMAT,
            "sides": [_side_json(side) for side in self.sides],
            "differs": {key: list(values) for key, values in self.differs.items()},
            "cells": [self._cell_json(cell, flips) for cell in self.cells],
            "pairs": [
                {"first": self.sides[0].name, "second": name, **pairing.to_json(flips)}
                for name, pairing in self.pairings.items()
            ],
            "seeds": [
                {
                    **asdict(band.cell),
                    "sides": list(band.sides),
                    "mean": band.mean,
                    "low": band.low,
                    "high": band.high,
                    "deviation": band.deviation,
                }
                for band in self.bands
            ],
            "notes": [note.to_json() for note in self.notes],
        }

    def _cell_json(self, cell: Cell, flips: int | None) -> dict[str, Any]:
        pairs = self.cell_pairings.get(cell, {})
        return {
            **asdict(cell),
            "sides": {name: figures.to_json() for name, figures in self.figures[cell].items()},
            "pairs": {name: pairing.to_json(0) for name, pairing in pairs.items()},
        }


def compare(*folders: Folder, quiet: bool = False) -> Comparison:
    """Evaluations, or runs of a quickstart, side by side; differences are against the first.

    `folders`: what `palimpsest eval --out` or `palimpsest quickstart` wrote, two or more.

    `quiet`: as in the other calls; nothing is shown in any case.

    Raises ConfigError for too few, RunError for a folder that holds no evaluation.
    """
    if len(folders) < 2:
        raise ConfigError(f"compare: {len(folders)} folder given; two or more are needed")
    twice = [folder for index, folder in enumerate(folders) if Path(folder) in map(Path, folders[:index])]
    if twice:
        raise ConfigError(f"compare: {twice[0]} is given twice")
    sides = tuple(read_sides(folders))
    titles: dict[str, str] = {}
    for side in sides:
        titles |= (_run_settings(side.folder) or {}).get("evaluation", {}).get("labels", {})
    return Comparison(sides, titles=titles)


def _side_json(side: ComparedRun) -> dict[str, Any]:
    return {"name": side.name, "folder": str(side.folder), **side.counts(), "seeds": side.seeds}
