"""Questions and answers from a CSV file, each row with paragraphs for assembling long contexts.

    question,answer,gold,others
    Who painted it?,Anna,Anna painted the bridge.,Boris sold it. | Clara saw it.

    palimpsest data inspect bridge.csv --format examples.own_format:CsvFormat --documents 3
    palimpsest train memagent-quickstart data.train_files=bridge.csv data.format=examples.own_format:CsvFormat \\
        data.documents=3 data.curriculum=null cold_start=null
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from palimpsest.data.record import Record


@dataclass(frozen=True)
class CsvFormat:
    """`data.format_options={separator: ";"}` sets another separator of paragraphs."""

    separator: str = " | "

    def recognises(self, path: Path) -> bool:
        """Read other files, such as data.val_files, by their columns."""
        return path.suffix == ".csv"

    def read(self, path: Path) -> Iterator[Record]:
        """One record per row; an empty id becomes the file's name and the row's number."""
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield Record(
                    id="",
                    question=row["question"],
                    answers=(row["answer"],),
                    paragraphs=(row["gold"], *row["others"].split(self.separator)),
                    gold=(row["gold"],),
                )
