"""The report of a quickstart run: figures as PNG files, and one HTML file that holds everything.

Guaranteed: report.html loads nothing from anywhere (images are inside it, a content security policy forbids the
rest) and holds no script; text written by a model or a document is escaped, control and bidirectional characters
are shown as escapes; the same results give the same bytes.
Not covered: results that are not there. A curve without points is left out of its figure and its table shows a dash.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from palimpsest.evaluate.plots import Point, accuracy_figure, reward_figure, tokens_figure
from palimpsest.evaluate.samples import Sample
from palimpsest.evaluate.summary import Score


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one document length."""

    score: Score
    tokens_per_document: float
    problems: int
    ungraded: int


@dataclass(frozen=True, slots=True)
class Results:
    """Everything a report shows."""

    method: str
    seed: int
    training_chunks: int
    wall_s: float
    cells: Mapping[str, Mapping[int, Cell]]
    """Policy name, then document length as a multiple of the training length."""
    rewards: Sequence[float]
    """[steps] mean reward of the sampled episodes."""
    lengths: Sequence[int]
    """[steps] chunks of the documents trained on."""
    fidelity_before: float | None
    fidelity_after: float | None
    samples: Sequence[Sample]
    config: str
    """The resolved configuration as YAML."""
    agent: str = "agent"
    """Name of the trained agent in `cells`; `{agent}_before` is the same before training."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Words for the names in `cells`."""
    others: str = "in comparison"
    """What the lead says of the other policies."""
    note: str = ""
    """What the accuracy figure's caption says of them."""

    def label(self, name: str) -> str:
        """What tables and figures call a policy."""
        return self.labels.get(name, name)


def write_report(folder: Path, results: Results) -> None:
    """Write report.html and plots/*.png into `folder`."""
    figures = _figures(results)
    plots = folder / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        (plots / f"{figure['name']}.png").write_bytes(figure["png"])
    (folder / "report.html").write_text(render(results, figures), "utf-8", errors="replace")


def render(results: Results, figures: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a report."""
    environment = Environment(
        loader=PackageLoader("palimpsest.evaluate", "."),
        autoescape=select_autoescape(["j2"]),
        undefined=StrictUndefined,
    )
    multiples = _multiples(results)
    return environment.get_template("report.html.j2").render(
        title=f"{results.method}: an agent trained at {_chunks(results.training_chunks)}, tested far beyond",
        lead=lead(results),
        facts=_facts(results),
        columns=[{"multiple": m, "length": m * results.training_chunks} for m in multiples],
        rows=[_row(results, name, cells, multiples) for name, cells in results.cells.items()],
        table_note=_table_note(results),
        figures=[{**f, "base64": base64.b64encode(f["png"]).decode("ascii")} for f in figures],
        samples=[_shown(sample) for sample in results.samples],
        samples_note="The agent's last memory and answer on the first few documents of the longest length.",
        config=visible(results.config),
    )


def lead(results: Results) -> str:
    """What happened, in one or two sentences of measured figures."""
    multiples = _multiples(results)
    after, before = results.cells.get(results.agent, {}), results.cells.get(f"{results.agent}_before", {})
    first, last = multiples[0], multiples[-1]
    text = (
        f"At {_chunks(first * results.training_chunks)} a document, the agent's accuracy went from "
        f"{_percent(before.get(first))} before reinforcement learning to {_percent(after.get(first))} after it."
    )
    if last != first:
        text += f" On documents {last} times as long as any it was trained on it is {_percent(after.get(last))}"
        others = [f"{_percent(cells.get(last))} ({results.label(name)})" for name, cells in _baselines(results)]
        text += f"; {results.others}: {', '.join(others)}." if others else "."
    return text


def visible(text: str) -> str:
    """`text` with control, format (bidirectional) and surrogate characters written as escapes; newlines stay.

    >>> visible("a\\x1b[31m\\u202eb")
    'a\\\\x1b[31m\\\\u202eb'
    """
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _figures(results: Results) -> list[dict[str, Any]]:
    train = _chunks(results.training_chunks)
    figures = []
    if results.rewards:
        caption = (
            "Reward over training. Each step samples a batch of episodes; thin line: their mean reward, bold: its "
            "running mean. The bands name the document length trained on, which grows when the agent has learnt the "
            "present one, so drops at their edges are harder documents and not forgetting."
        )
        png = reward_figure(results.rewards, results.lengths)
        figures.append({"name": "reward", "png": png, "caption": caption, "alt": "mean reward over training steps"})
    caption = (
        "Accuracy on held-out documents, greedy decoding; bands are 95% intervals. The agent was trained at "
        f"{train} at the most. {results.note}"
    )
    png = accuracy_figure(_curves(results, tokens=False), training_length=results.training_chunks)
    figures.append({"name": "accuracy", "png": png, "caption": caption, "alt": "accuracy against document length"})
    caption = (
        "Tokens processed per document (prompts and replies of all calls). The agent's cost is proportional to the "
        "document's length, because each call sees one section and a memory of fixed size."
    )
    png = tokens_figure(_curves(results, tokens=True), training_length=results.training_chunks)
    figures.append({"name": "tokens", "png": png, "caption": caption, "alt": "tokens against document length"})
    return figures


def _curves(results: Results, *, tokens: bool) -> dict[str, list[Point]]:
    curves = {}
    for name, cells in results.cells.items():
        if tokens and name == f"{results.agent}_before":
            continue  # lies under the trained agent's line: both read the same chunks
        points = [_point(m * results.training_chunks, cell, tokens) for m, cell in sorted(cells.items())]
        curves[results.label(name)] = [point for point in points if point is not None]
    return {label: points for label, points in curves.items() if points}


def _point(length: int, cell: Cell, tokens: bool) -> Point | None:
    if tokens:
        return Point(length, cell.tokens_per_document, cell.tokens_per_document, cell.tokens_per_document)
    if cell.score.mean is None or cell.score.low is None or cell.score.high is None:
        return None
    return Point(length, cell.score.mean, cell.score.low, cell.score.high)


def _facts(results: Results) -> list[tuple[str, str]]:
    fidelity = f"{_number(results.fidelity_before)} before, {_number(results.fidelity_after)} after RL"
    return [
        ("seed", str(results.seed)),
        ("training length", _chunks(results.training_chunks)),
        ("training", f"{len(results.rewards)} steps"),
        ("time", f"{results.wall_s / 60:.1f} minutes, evaluation included"),
        (
            "copy fidelity",
            f"{fidelity} (share of the sentences written into memory that stand in what was read)",
        ),
    ]


def _row(results: Results, name: str, cells: Mapping[int, Cell], multiples: Sequence[int]) -> dict[str, Any]:
    return {
        "label": results.label(name),
        "main": name == results.agent,
        "cells": [_cell(cells.get(multiple)) for multiple in multiples],
    }


def _cell(cell: Cell | None) -> dict[str, str]:
    if cell is None or cell.score.mean is None:
        return {"value": "–", "interval": ""}
    return {"value": _percent(cell), "interval": f"{cell.score.low:.0%} to {cell.score.high:.0%}"}


def _table_note(results: Results) -> str:
    cells = [cell for row in results.cells.values() for cell in row.values()]
    counts = sorted({cell.problems for cell in cells})
    ungraded = sum(cell.ungraded for cell in cells)
    note = (
        f"{' to '.join(str(c) for c in {counts[0], counts[-1]})} problems a cell; below, 95% intervals. "
        if counts
        else ""
    )
    return note + (f"{ungraded} episodes have no grade and are left out." if ungraded else "Every episode was graded.")


def _shown(sample: Sample) -> dict[str, Any]:
    return {
        "question": visible(sample.question),
        "memory": visible(sample.memory or "–"),
        "answer": visible(sample.answer or "–"),
        "gold": visible(", ".join(sample.answers)),
        "right": (sample.value or 0) > 0,
    }


def _baselines(results: Results) -> list[tuple[str, Mapping[int, Cell]]]:
    own = (results.agent, f"{results.agent}_before")
    return [(name, cells) for name, cells in results.cells.items() if name not in own]


def _multiples(results: Results) -> list[int]:
    return sorted({multiple for cells in results.cells.values() for multiple in cells})


def _chunks(count: int) -> str:
    return f"{count:,} chunk" if count == 1 else f"{count:,} chunks"


def _percent(cell: Cell | None) -> str:
    return "–" if cell is None or cell.score.mean is None else f"{cell.score.mean:.0%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
