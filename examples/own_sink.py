"""A log sink: the mean reward of every step in a CSV file of the run folder, for a spreadsheet.

palimpsest train memagent-quickstart 'logging.report_to=[console, examples.own_sink:CsvSink]'
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

COLUMNS = ("reward/mean", "episode/turns", "episode/sampled_tokens")


class CsvSink:
    """One row per step; a resumed run appends, so steps after its checkpoint may appear twice."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rewards.csv"

    def log(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(("step", *COLUMNS))
            writer.writerow((step, *(metrics.get(column, "") for column in COLUMNS)))
