"""What an evaluation was asked for last: `asked.json` beside its log, which may hold more.

A folder may be asked for less than before: fewer samples or problems, other lengths. What the earlier calls played
stays in the log, so that it need not be played again; figures are of what was asked last, wherever they are made:
summary.json, `rescore`, `compare`, the viewer.

Guaranteed: the file is there before the first episode of a call, so that of a call that was killed what it had played
so far counts.
Not covered: folders of earlier versions, which have no such file: everything in their log counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from palimpsest import files
from palimpsest.errors import RunError
from palimpsest.evaluation.samples import SAMPLES, Sample, read_samples

ASKED = "asked.json"


@dataclass(frozen=True, slots=True)
class AskedSet:
    """What was asked for of one set."""

    samples: int
    """Episodes of each problem."""
    problems: Iterable[str]
    """Their ids."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What a log holds."""

    samples: list[Sample]
    """Those that were asked for last."""
    not_asked: int = 0
    """Episodes of earlier calls, which the last one didn't ask for."""
    unreadable: int = 0
    """Lines."""


def write_asked(folder: Path, sets: Mapping[str, AskedSet]) -> None:
    """Say what a call asks for."""
    told = {name: {"samples": each.samples, "problems": list(each.problems)} for name, each in sets.items()}
    files.write_file(folder / ASKED, json.dumps(told, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def read_log(folder: Path) -> Logged:
    """The log in `folder`. Raises OSError, and RunError where what was asked for can't be read."""
    samples, unreadable = read_samples(folder / SAMPLES)
    asked = _asked(folder / ASKED)
    if asked is None:
        return Logged(samples, 0, unreadable)
    kept = [sample for sample in samples if sample.draw < asked.get((sample.name, sample.id), 0)]
    return Logged(kept, len(samples) - len(kept), unreadable)


def _asked(path: Path) -> dict[tuple[str, str], int] | None:
    """Episodes by name of the set and id of the problem; None where nothing says so."""
    try:
        told = json.loads(files.read_regular(path))
        asked = {(name, problem): each["samples"] for name, each in told.items() for problem in each["problems"]}
        if all(type(count) is int for count in asked.values()):
            return asked
        raise ValueError
    except FileNotFoundError:
        return None
    except (files.NoRegularFile, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise RunError(f"{path}: can't be read, so what was asked for isn't known; run palimpsest eval again") from None


def not_asked_told(count: int) -> str:
    """In a sentence."""
    return (
        f"{count:,} episodes of earlier calls stay in the log and are in no figure: the last call didn't ask for them"
    )
