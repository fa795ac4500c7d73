"""An evaluation as items by samples, and two to six runs or evaluations side by side.

Guaranteed: samples are those that were asked for last; lines that can't be read are counted; what isn't graded is shown
as such, never as wrong; the problems about which judge and strings disagree come first, then those whose draws do.

Two to six runs or evaluations side by side: what differs in their configurations, curves, accuracy, what flipped.

Guaranteed: rows, differences, notes and settings are those of `palimpsest compare` (evaluation/comparison.py), over the
sides that were evaluated; sides that differ by their seeds alone are one band.
Not covered: a judge's card, which that command tells.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from palimpsest.errors import RunError
from palimpsest.evaluation import comparison
from palimpsest.evaluation.comparison import Band, SideBySide, differing
from palimpsest.evaluation.pairing import Cell, Pairing, cell_of
from palimpsest.evaluation.sample_log import ASKED, SAMPLES, Logged, Sample, logs_below, read_log
from palimpsest.evaluation.summary import EvalSummary, accuracy_of
from palimpsest.runs.jsonl_rows import with_number
from palimpsest.viewer.records.recorded_episodes import player_of
from palimpsest.viewer.records.run_status import Row, mean_of
from palimpsest.viewer.records.sources import Kind, NotThere, Source, kept_inside

JUDGE = "judge"
STRINGS = ("em", "sub_em", "f1", "string_match_all")
_RIGHT = 0.5
_TEXT = 400


class Samples:
    """The samples of sources, read once while their files stay the same. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[object, Logged]] = {}

    def of(self, source: Source) -> list[tuple[str, Logged]]:
        """Each log by its name: an evaluation's own, or a quickstart's."""
        return [(name, self._of(source, path)) for name, path in logs_of(source).items()]

    def all(self, source: Source) -> Logged:
        """All logs as one."""
        logs = [log for _, log in self.of(source)]
        samples = [sample for log in logs for sample in log.samples]
        return Logged(samples, sum(log.not_asked for log in logs), sum(log.unreadable for log in logs))

    def at(self, source: Source, step: str) -> Logged | None:
        """The log whose episodes are recorded under `step`; None where these are no evaluation's."""
        path = logs_of(source).get(step)
        return None if path is None else self._of(source, path)

    def _of(self, source: Source, path: Path) -> Logged:
        for each in (path, path.with_name(ASKED)):
            kept_inside(source, each)
        try:
            state = _state(path), _state(path.with_name(ASKED))
            with self._lock:
                known = self._read.get(path)
                if known is None or known[0] != state:
                    known = self._read[path] = state, read_log(path.parent)
        except OSError:
            raise NotThere(f"{path.parent.name}/{path.name} was moved or deleted while it was shown") from None
        except RunError as error:
            raise NotThere(str(error)) from None
        return known[1]


def _state(path: Path) -> tuple[int, int] | None:
    """What changes with a file; None: it isn't there."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_size, state.st_mtime_ns


def logs_of(source: Source) -> Mapping[str, Path]:
    """The logs of an evaluation or of a quickstart's, by the step that its episodes stand under."""
    if source.kind is Kind.EVALUATION:
        return {"all": source.path / SAMPLES}
    return logs_below(source.path) if source.kind is Kind.RUN else {}


EpisodePlaces = Mapping[tuple[str, str, int], tuple[int, int]]
"""(step, group id, draw) to (group, rollout) of an episode that was recorded."""


def evaluation_view(
    logs: Sequence[tuple[str, Logged]], places: EpisodePlaces, titles: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the API says of an evaluation; `titles`: what the sets of a quickstart are called."""
    titles = titles or {}
    items: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    first: dict[tuple[str, str, str], Sample] = {}
    samples = [sample for _, log in logs for sample in log.samples]
    for name, log in logs:
        for sample in log.samples:
            key = (name, sample.name, sample.id)
            first.setdefault(key, sample)
            items.setdefault(key, []).append(_draw(sample, name, places))
    rows = [
        {**_item(first[key], key[0], titles), "draws": draws, "disagree": disagreement(draws)}
        for key, draws in items.items()
    ]
    order = {
        cell: place for place, cell in enumerate(sorted({cell_of(sample) for sample in first.values()}, key=_rank))
    }
    rows.sort(key=lambda row: (-row["disagree"], order[Cell(row["set"], -1 if row["size"] is None else row["size"])]))
    return {
        "rows": rows,
        "cells": parts_view(samples, titles),
        "judged": any(JUDGE in sample.metrics for sample in samples),
        "strings": [name for name in STRINGS if any(name in sample.metrics for sample in samples)],
        "unreadable": sum(log.unreadable for _, log in logs),
        "not_asked": sum(log.not_asked for _, log in logs),
    }


def disagreement(draws: Sequence[Mapping[str, Any]]) -> int:
    """2 where judge and strings differ on a draw, 1 where draws differ in value, 0 where all agree.

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
        "set": sample.name,
        "label": cell_of(sample).set_by(titles),
        "id": sample.id,
        "size": sample.size,
        "question": sample.question[:_TEXT],
        "golds": [gold[:_TEXT] for gold in sample.answers[:4]],
        "baseline": sample.baseline,
    }


def _draw(sample: Sample, log: str, places: EpisodePlaces) -> dict[str, Any]:
    place = places.get((log, f"{sample.name}/{sample.id}", sample.draw))
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
        "episode": None if place is None else {"step": log, "group": place[0], "rollout": place[1]},
    }


def _rank(cell: Cell) -> tuple[str, int, str]:
    """Task by task, shorter ones first."""
    return cell.task, cell.size, cell.set


def parts_view(samples: Sequence[Sample], titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Accuracy of each part by each player, shorter ones first within a task; of all episodes, recorded or not."""
    parts: dict[tuple[Cell, str | None], list[Sample]] = {}
    for sample in samples:
        parts.setdefault((cell_of(sample), sample.baseline), []).append(sample)
    told = []
    for (cell, baseline), own in sorted(
        parts.items(), key=lambda each: (each[0][0].task, each[0][0].size, each[0][1] or "")
    ):
        accuracy = accuracy_of(own)
        told.append(
            {
                "set": cell.set,
                "task": cell.task_by(titles),
                "size": None if cell.size < 0 else cell.size,
                "label": cell.label_by(titles),
                "baseline": baseline,
                "player": player_of(baseline),
                "problems": len({sample.id for sample in own}),
                "episodes": len(own),
                "ungraded": sum(sample.value is None for sample in own),
                "mean": accuracy.mean,
                "low": accuracy.low,
                "high": accuracy.high,
            }
        )
    return told


# ---- Two to six runs or evaluations side by side -------------------------------------------------------------


FEWEST, MOST = 2, 6
CURVES = ("reward/mean", "memory/evidence_retention", "memory/copy_fidelity", "policy/entropy", "episode/turns")
POINTS = 400
FLIPS = 500
_COMPARED_TEXT = 300


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that are compared."""

    key: str
    name: str
    settings: Mapping[str, Any]
    """Dotted key to value."""
    metrics: Sequence[Row] = ()
    samples: Sequence[Sample] = ()
    episodes: Mapping[tuple[str, str, int], Mapping[str, Any]] = field(default_factory=dict)
    """(set, id, draw) to the place of an episode that was recorded."""
    unreadable: int = 0
    """Lines of its logs."""
    not_asked: int = 0
    """Episodes in its logs of earlier calls."""

    def named(self, name: str) -> comparison.Side:
        """What `palimpsest compare` takes it for."""
        samples = {sample.key: sample for sample in self.samples}.values()
        return comparison.Side(
            name=name,
            samples=tuple(sample for sample in samples if sample.baseline is None),
            baselines=tuple(sample for sample in samples if sample.baseline is not None),
            unreadable=self.unreadable,
            not_asked=self.not_asked,
            settings=self.settings,
        )


def comparison_view(sides: Sequence[Side], titles: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the API says of a comparison; `titles`: what the sets of a quickstart are called."""
    evaluated = [side for side in sides if side.samples]
    unique = len({side.name for side in sides}) == len(sides)
    keys = {side.name if unique else side.key: side.key for side in evaluated}
    beside = SideBySide(
        tuple(side.named(name) for name, side in zip(keys, evaluated, strict=True)), titles=titles or {}
    )
    paired = bool(sides[0].samples)
    return {
        "sides": [{"key": side.key, "name": side.name} for side in sides],
        "differs": {key: list(values) for key, values in differing([side.settings for side in sides]).items()},
        "curves": {name: bands for name in CURVES if (bands := curve(sides, name))},
        "cells": [_cell(beside, cell, keys, paired=paired) for cell in beside.cells],
        "pairs": {keys[name]: _pair_value(pairing) for name, pairing in beside.pairings.items()} if paired else {},
        "seeds": [_band_value(beside, band) for band in beside.bands],
        "flips": _flips(sides, beside),
        "notes": list(beside.notes if paired else _notes_without_the_first(sides[0], beside)),
    }


def _notes_without_the_first(first: Side, beside: SideBySide) -> Iterator[str]:
    yield from beside.side_notes()
    if beside.sides:
        yield f"{first.name} has no evaluation, so no difference to it can be told"


def curve(sides: Sequence[Side], name: str) -> list[dict[str, Any]]:
    """A band for each group of sides that differ by their seeds alone: at each step the mean, lowest and highest."""
    groups: dict[str, list[Side]] = {}
    for side in sides:
        if with_number(side.metrics, name):
            groups.setdefault(side.named(side.key).but_for_seeds, []).append(side)
    return [_band(group, name) for group in groups.values()]


def _band(group: Sequence[Side], name: str) -> dict[str, Any]:
    values: dict[int, list[float]] = {}
    for side in group:
        for row in with_number(side.metrics, name):
            values.setdefault(row["step"], []).append(float(row[name]))
    steps = sorted(values)
    every = max(1, len(steps) // POINTS)
    bins = [steps[start : start + every] for start in range(0, len(steps), every)]
    return {
        "keys": [side.key for side in group],
        "steps": [each[-1] for each in bins],
        "mean": [mean_of(value for step in each for value in values[step]) for each in bins],
        "low": [mean_of(min(values[step]) for step in each) for each in bins],
        "high": [mean_of(max(values[step]) for step in each) for each in bins],
    }


def _cell(beside: SideBySide, cell: Cell, keys: Mapping[str, str], *, paired: bool) -> dict[str, Any]:
    pairs = beside.cell_pairings.get(cell, {}) if paired else {}
    return {
        "set": cell.set,
        "task": beside.task(cell),
        "size": None if cell.size < 0 else cell.size,
        "label": beside.label(cell),
        "sides": {keys[name]: _figures(figures) for name, figures in beside.figures[cell].items()},
        "pairs": {keys[name]: _pair_value(pairing) for name, pairing in pairs.items()},
    }


def _band_value(beside: SideBySide, band: Band) -> dict[str, Any]:
    figures = {name: getattr(band, name) for name in ("mean", "low", "high", "deviation")}
    return {"label": beside.label(band.cell), "sides": list(band.sides), **figures}


def _figures(figures: EvalSummary) -> dict[str, Any]:
    return {
        **asdict(figures.accuracy),
        "n": figures.graded + figures.ungraded,
        "problems": figures.problems,
        "ungraded": figures.ungraded,
        "turns": figures.turns_per_document,
        "tokens": figures.tokens_per_document,
    }


def _pair_value(pairing: Pairing) -> dict[str, Any]:
    difference = pairing.difference
    known = None
    if difference is not None:
        known = {name: getattr(difference, name) for name in ("mean", "low", "high", "p", "test", "better", "worse")}
    return {"problems": pairing.problems, "counted": pairing.counted, "difference": known, "warning": pairing.warning}


def _flips(sides: Sequence[Side], beside: SideBySide) -> list[dict[str, Any]]:
    """The problems whose value isn't the same on all sides that graded them, those of the widest gap first."""
    values: dict[tuple[str, str, int], dict[str, Sample]] = {}
    for side in sides:
        for sample in (each for each in side.samples if each.baseline is None):
            values.setdefault(sample.key, {})[side.key] = sample
    told = []
    for key, by_side in values.items():
        graded = {sample.value for sample in by_side.values() if sample.value is not None}
        if len(graded) > 1 and len({(each.question, each.answers) for each in by_side.values()}) == 1:
            gap = max(graded) - min(graded)
            told.append(_flip(key, by_side, sides) | {"set": beside.set_label(key[0]), "gap": gap})
    return sorted(told, key=lambda flip: -flip["gap"])[:FLIPS]


def _flip(key: tuple[str, str, int], by_side: Mapping[str, Sample], sides: Sequence[Side]) -> dict[str, Any]:
    any_sample = next(iter(by_side.values()))
    return {
        "id": key[1],
        "draw": key[2],
        "question": any_sample.question[:_COMPARED_TEXT],
        "golds": [gold[:_COMPARED_TEXT] for gold in any_sample.answers[:4]],
        "sides": {
            side.key: {
                "value": sample.value,
                "answer": None if sample.answer is None else sample.answer[:_COMPARED_TEXT],
                "episode": side.episodes.get(key),
            }
            for side in sides
            if (sample := by_side.get(side.key)) is not None
        },
    }
