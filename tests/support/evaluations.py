"""Folders of evaluations, and tables of their reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from palimpsest.evaluation.sample_log import SAMPLES, Cell, Sample, SampleLog, write_json

DEFAULT_IDENTITY: Mapping[str, Any] = {"weights": "w", "reward": {"name": "boxed"}, "seed": 0}
CHUNKS = Cell("synthetic", 2, "chunks", "agent")


def sample(id: str, value: float | None, **fields: Any) -> Sample:
    """A sample of the agent on two chunks that answered its gold, or something else."""
    gold, answered = fields.pop("gold", "Rome"), value is not None
    texts = {"question": f"Where is {id}?", "answers": (gold,), "answer": f"\\boxed{{{gold if value else 'Oslo'}}}"}
    counts = {"length": 2, "turns": 3, "prompt_tokens": 90, "sampled_tokens": 10}
    end = {"outcome": "answered", "reason": None, "metrics": {"em": value}}
    if not answered:
        end = {"outcome": "timed_out", "reason": "episode ended as timed_out", "metrics": {}}
    return Sample(id=id, value=value, **{**asdict(CHUNKS), **texts, "memory": None, **counts, **end, **fields})


def write_evaluation(folder: Path, samples: Iterable[Sample], identity: Mapping[str, Any] | None = None) -> Path:
    """A folder as palimpsest eval leaves it, without summary.json."""
    with SampleLog(folder, {**DEFAULT_IDENTITY, **(identity or {})}) as log:
        for row in samples:
            log.append(row)
    assert (folder / SAMPLES).is_file()
    write_json(folder / "summary.json", {"model": "somewhere"})
    return folder


class ReportTables(HTMLParser):
    """[table][row][cell] text of a page's tables; text of <small> follows a line break."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.in_cell = True
        elif tag in ("small", "br") and self.in_cell:
            self.tables[-1][-1][-1] += "\n"

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.tables[-1][-1][-1] += data


def report_tables(html: str) -> list[list[list[str]]]:
    return ReportTables(html).tables
