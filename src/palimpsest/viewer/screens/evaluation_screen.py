"""Evaluation screen: problems by samples.

Guaranteed: samples are the last requested ones; unreadable lines are counted; ungraded samples are shown as ungraded,
never as wrong; problems with a disagreement between judge and strings come first, then those whose draws differ.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from palimpsest.errors import RunError
from palimpsest.evaluation.comparison import cell_at_length, labelled
from palimpsest.evaluation.sample_log import REQUESTED, SAMPLES, Cell, Logged, Sample, logs_below, read_log
from palimpsest.evaluation.summary import accuracy_of
from palimpsest.viewer.records.recorded_episodes import player_of
from palimpsest.viewer.records.sources import NotThere, Source, SourceKind, checked_inside

JUDGE = "judge"
STRINGS = ("em", "sub_em", "f1", "string_match_all")
_RIGHT = 0.5
_TEXT = 400


class Samples:
    """Samples of sources, read again only when files change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[object, Logged]] = {}

    def of(self, source: Source) -> list[tuple[str, Logged]]:
        """Logs by name: an evaluation's log, or those of a quickstart."""
        return [(name, self._of(source, path)) for name, path in logs_of(source).items()]

    def all(self, source: Source) -> Logged:
        """All logs merged."""
        logs = [log for _, log in self.of(source)]
        samples = [sample for log in logs for sample in log.samples]
        return Logged(samples, sum(log.not_asked for log in logs), sum(log.unreadable for log in logs))

    def at(self, source: Source, step: str) -> Logged | None:
        """The log for the episodes recorded under `step`; None outside of evaluations."""
        path = logs_of(source).get(step)
        return None if path is None else self._of(source, path)

    def _of(self, source: Source, path: Path) -> Logged:
        for file in (path, path.with_name(REQUESTED)):
            checked_inside(source, file)
        try:
            state = _state(path), _state(path.with_name(REQUESTED))
            with self._lock:
                entry = self._read.get(path)
                if entry is None or entry[0] != state:
                    entry = self._read[path] = state, read_log(path.parent)
        except OSError:
            raise NotThere(f"{path.parent.name}/{path.name} was moved or deleted") from None
        except RunError as error:
            raise NotThere(str(error)) from None
        return entry[1]


def _state(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_size, state.st_mtime_ns


def logs_of(source: Source) -> Mapping[str, Path]:
    """Logs of an evaluation or a quickstart, by the step of its recorded episodes."""
    if source.kind is SourceKind.EVALUATION:
        return {"all": source.path / SAMPLES}
    return logs_below(source.path) if source.kind is SourceKind.RUN else {}


EpisodePlaces = Mapping[tuple[str, str, int], tuple[int, int]]
"""(step, group id, draw) to (group, rollout) of a recorded episode."""


def evaluation_view(
    logs: Sequence[tuple[str, Logged]], places: EpisodePlaces, titles: Mapping[str, str]
) -> dict[str, Any]:
    """The API's answer for an evaluation; `titles`: names of the agents of a quickstart."""
    titles = titles or {}
    items: dict[tuple[str, str], list[dict[str, Any]]] = {}
    first: dict[tuple[str, str], Sample] = {}
    samples = [sample for _, log in logs for sample in log.samples]
    for name, log in logs:
        for sample in log.samples:
            key = (name, sample.group_id)
            first.setdefault(key, sample)
            items.setdefault(key, []).append(_draw(sample, name, places))
    entries = [
        (first[key], {**_item(first[key], key[0], titles), "draws": draws, "disagree": disagreement(draws)})
        for key, draws in items.items()
    ]
    entries.sort(key=lambda entry: (-entry[1]["disagree"], cell_at_length(entry[0]).order))
    rows = [row for _, row in entries]
    return {
        "rows": rows,
        "cells": cells_view(samples, titles),
        "judged": any(JUDGE in sample.metrics for sample in samples),
        "strings": [name for name in STRINGS if any(name in sample.metrics for sample in samples)],
        "unreadable": sum(log.unreadable for _, log in logs),
        "not_asked": sum(log.not_asked for _, log in logs),
    }


def disagreement(draws: Sequence[Mapping[str, Any]]) -> int:
    """2 if judge and strings differ on a draw, 1 if draws differ in value, 0 if all agree.

    >>> disagreement([{"value": 1.0, "judge": 1.0, "metrics": {"sub_em": 0.0}}])
    2
    >>> disagreement([{"value": 1.0, "judge": None, "metrics": {}}, {"value": 0.0, "judge": None, "metrics": {}}])
    1
    """
    for draw in draws:
        strings = [draw["metrics"][name] >= _RIGHT for name in ("em", "sub_em") if name in draw["metrics"]]
        if draw["judge"] is not None and strings and (draw["judge"] >= _RIGHT) != any(strings):
            return 2
    return int(len({draw["value"] for draw in draws}) > 1)


def _item(sample: Sample, log: str, titles: Mapping[str, str]) -> dict[str, Any]:
    return {
        "log": log,
        **asdict(sample.cell),
        "label": labelled(sample.cell, sample.cell.part, titles),
        "id": sample.id,
        "length": sample.length,
        "question": sample.question[:_TEXT],
        "golds": [gold[:_TEXT] for gold in sample.answers[:4]],
    }


def _draw(sample: Sample, log: str, places: EpisodePlaces) -> dict[str, Any]:
    index = places.get((log, sample.group_id, sample.draw))
    return {
        "draw": sample.draw,
        "answer": None if sample.answer is None else sample.answer[:_TEXT],
        "value": sample.value,
        "reason": sample.reason,
        "outcome": sample.outcome,
        "judge": sample.metrics.get(JUDGE),
        "metrics": {name: sample.metrics[name] for name in STRINGS if name in sample.metrics},
        "measures": sample.measures,
        "memory": None if sample.memory is None else sample.memory[:_TEXT],
        "turns": sample.turns,
        "tokens": sample.tokens,
        "episode": None if index is None else {"step": log, "group": index[0], "rollout": index[1]},
    }


def cells_view(samples: Sequence[Sample], titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Accuracy per part and agent over all episodes, recorded or not; shorter parts first within a task."""
    by_cell: dict[Cell, list[Sample]] = {}
    for sample in samples:
        by_cell.setdefault(cell_at_length(sample), []).append(sample)
    rows = []
    for cell, cell_samples in sorted(by_cell.items(), key=lambda item: item[0].order):
        accuracy = accuracy_of(cell_samples)
        rows.append(
            {
                "set": cell.set,
                "task": cell.task,
                "size": cell.size,
                "label": cell.part,
                "baseline": cell.baseline,
                "player": player_of(cell, titles),
                "problems": len({sample.id for sample in cell_samples}),
                "episodes": len(cell_samples),
                "ungraded": sum(sample.value is None for sample in cell_samples),
                "mean": accuracy.mean,
                "low": accuracy.low,
                "high": accuracy.high,
            }
        )
    return rows
