"""Comparison of runs and evaluations: their folders, and differences with intervals.

An evaluation has its samples in samples.jsonl and its configuration in evaluation.json, with the configuration of the
model's run as `run.KEY`, if that run still exists. A quickstart has the logs under `evaluations/` and its config.yaml.

Guaranteed: the samples are those of the last request, as in summary.json; other samples and unreadable lines are
counted; a folder without samples is an error that names it.
Not covered: renamed logs of a quickstart (`.old-1`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.errors import ConfigError, PalimpsestError, RunError
from palimpsest.evaluation.comparison import (
    Flip,
    Side,
    SideBySide,
    as_one_agent,
    settings_of_evaluation,
    settings_of_run,
)
from palimpsest.evaluation.sample_log import SAMPLES, SUMMARY, Cell, logs_below, read_identity, read_log, read_object
from palimpsest.evaluation.summary import interval_notes
from palimpsest.notes import Note
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.text.display_text import Table

# ---- Sides of a comparison -----------------------------------------------------------------------------------


Folder = str | os.PathLike[str]


def read_sides(folders: Sequence[Folder]) -> list[Side]:
    """The sides, with distinct names. Raises RunError."""
    paths = [Path(folder) for folder in folders]
    names = short_names([str(path) for path in paths])
    return as_one_agent([_side(path, name) for path, name in zip(paths, names, strict=True)])


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths without their common leading folders; the last part always stays.

    >>> short_names(["runs/a/eval", "runs/b/eval"]), short_names(["evals/a", "evals/b"]), short_names(["x/y"])
    (['a/eval', 'b/eval'], ['a', 'b'], ['y'])
    """
    components = [Path(path).parts for path in paths]
    shared = 0
    while all(len(names) > shared + 1 for names in components) and len({names[shared] for names in components}) == 1:
        shared += 1
    return [str(Path(*names[shared:])) for names in components]


def _side(folder: Path, name: str) -> Side:
    logs = list(_logs(folder))
    if not logs:
        raise RunError(
            f"{folder}: contains neither {SAMPLES} nor a quickstart's evaluations: pass the --out of palimpsest eval, "
            f"or create one with palimpsest eval {folder} --out DIR"
            if folder.is_dir()
            else f"{folder}: no such folder; pass folders that palimpsest eval or quickstart wrote"
        )
    read = [read_log(log.parent) for log in logs]
    samples = {sample.key: sample for log in read for sample in log.samples}.values()
    if not samples:
        raise RunError(f"{folder}: no episode in it has ended yet; run the same palimpsest eval again")
    return Side(
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
    except PalimpsestError:  # of another version: its settings are unknown
        return {}


def _summary(folder: Path) -> dict[str, Any]:
    return read_object(folder / SUMMARY) or {}


# ---- Folders of evaluations side by side (evaluation/comparison.py) ------------------------------------------


FORMAT = 2
"""Version of `to_json`; increases if a key disappears or changes its meaning, not for new keys."""


@dataclass(frozen=True)
class Comparison(SideBySide):
    """Two or more sides; differences are against the first."""

    @property
    def flips(self) -> dict[str, tuple[Flip, ...]]:
        """For each further side, the problems whose value differs from the first side's."""
        return {name: pairing.flips for name, pairing in self.pairings.items()}

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """Notes on the figures."""
        kinds = interval_notes(
            {f"{self.label(cell)}, {name}": row for cell, sides in self.figures.items() for name, row in sides.items()}
        )
        return (*self.side_notes(), *kinds, *self.pairing_notes())

    @cached_property
    def table(self) -> Table:
        """One row per cell and side; fractions, not percent. `difference` covers problems that both sides graded."""
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
            **figure.costs,
        }
        return {key: value for key, value in values.items() if value is not None}

    def __repr__(self) -> str:
        lines = [f"Comparison of {', '.join(side.name for side in self.sides)}", str(self.table), *self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    def to_json(self, flips: int | None = None) -> dict[str, Any]:
        """Everything, with the first `flips` flips of each side (None: all); docs/reference/files.md lists the keys."""
        return {
            "format": FORMAT,
            "sides": [
                {"name": side.name, "folder": str(side.folder), **side.counts(), "seeds": side.seeds}
                for side in self.sides
            ],
            "differs": {key: list(values) for key, values in self.differs.items()},
            "cells": [self._cell_json(cell) for cell in self.cells],
            "pairs": [
                {"first": self.sides[0].name, "second": name, **pairing.to_json(flips)}
                for name, pairing in self.pairings.items()
            ],
            "seeds": [{**(fields := asdict(band)).pop("cell"), **fields} for band in self.bands],
            "notes": [note.to_json() for note in self.notes],
        }

    def _cell_json(self, cell: Cell) -> dict[str, Any]:
        pairs = self.cell_pairings.get(cell, {})
        return {
            **asdict(cell),
            "sides": {name: figures.to_json() for name, figures in self.figures[cell].items()},
            "pairs": {name: pairing.to_json(0) for name, pairing in pairs.items()},
        }


def compare(*folders: Folder, quiet: bool = False) -> Comparison:
    """Compare evaluations, or runs of a quickstart, against the first.

    `folders`: two or more outputs of `palimpsest eval --out` or `palimpsest quickstart`.

    `quiet`: accepted for uniformity; `compare` never shows progress.

    Raises ConfigError for fewer than two folders, RunError for a folder without an evaluation.
    """
    if len(folders) < 2:
        raise ConfigError(f"compare: got {len(folders)} folder; pass two or more")
    twice = [folder for index, folder in enumerate(folders) if Path(folder) in map(Path, folders[:index])]
    if twice:
        raise ConfigError(f"compare: {twice[0]} appears twice")
    sides = tuple(read_sides(folders))
    titles: dict[str, str] = {}
    for side in sides:
        titles |= (_run_settings(side.folder) or {}).get("evaluation", {}).get("labels", {})
    return Comparison(sides, titles=titles)
