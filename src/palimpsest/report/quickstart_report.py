"""Reports of a quickstart run, and of several quickstart runs that differ in their seed.

The report of several runs has mean and interval over the seeds. The interval is Student's t (95%), cut to [0, 1].
Training and test problems are drawn again from each seed, so it covers both.

Guaranteed: report.html loads no external resource (images are embedded, a content security policy forbids the rest) and
runs no script; text written by a model or a document is escaped, with control and bidirectional characters as escapes;
the same results give the same bytes; each seed has the same weight, however many of its problems were graded.
Not covered: missing results (a curve without points is left out of its figure, its table shows a dash); problems that
several seeds share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.summary import EvalSummary, PositionSummary, Score, student
from palimpsest.report.axis_labels import DOCUMENTS, AxisWords, times
from palimpsest.report.page import LEGEND, PlacedRow, ToldStory, embedded, evidence_table, page, write_page
from palimpsest.report.plots import Point, accuracy_figure, reward_figure, tokens_figure, training_figures
from palimpsest.text.display_text import visible


@dataclass(frozen=True, slots=True)
class TableCell:
    """One policy at one point of the axis."""

    score: Score
    tokens: float
    """Processed per episode."""
    problems: int
    ungraded: int
    tokens_per_correct: float | None = None
    """Over all episodes; None where none is right."""
    by_evidence: Sequence[PositionSummary] = ()
    """[5] as in EvalSummary; empty over several seeds."""
    by_last_evidence: Sequence[PositionSummary] = ()

    @classmethod
    def of(cls, summary: EvalSummary) -> TableCell:
        """The cell of a set of episodes."""
        return cls(
            score=summary.accuracy,
            tokens=summary.tokens_per_document,
            problems=summary.problems,
            ungraded=summary.ungraded,
            tokens_per_correct=summary.tokens_per_correct,
            by_evidence=summary.by_evidence,
            by_last_evidence=summary.by_last_evidence,
        )


@dataclass(frozen=True, slots=True)
class Results:
    """Everything a report shows."""

    method: str
    seed: int
    trained: int
    """Largest size trained on, of the steps that were done."""
    wall_s: float
    cells: Mapping[str, Mapping[int, TableCell]]
    """Policy name, then point of the axis."""
    rewards: Sequence[float]
    """[steps] mean reward of the sampled episodes."""
    lengths: Sequence[int]
    """[steps] size of the problems trained on."""
    samples: Sequence[Sample]
    config: str
    """The resolved configuration as YAML."""
    fidelity_before: float | None = None
    """Told of agents that read documents."""
    fidelity_after: float | None = None
    dropped_before: float | None = None
    """Share of the sentences written that the policy's rule kept out of the memory; None without one."""
    dropped_after: float | None = None
    words: AxisWords = DOCUMENTS
    """What the axis is called."""
    agent: str = "agent"
    """Name of the trained agent in `cells`; `{agent}_before` is the same before training."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Words for the names in `cells`."""
    others: str = "in comparison"
    """What the lead says of the other policies."""
    note: str = ""
    """What the accuracy figure's caption says of them."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """[steps] lines of metrics.jsonl; what they hold of tools and context is drawn over training."""
    planned: int | None = None
    """Largest size that training was to come to, of which points are multiples; None: it came to it."""
    stories: Sequence[ToldStory] = ()
    """A failure and the success beside it, told memory by memory."""
    look: str = ""
    """The command that shows every episode."""
    made: Sequence[tuple[str, str]] = ()
    """Command, versions and machine, by name."""

    def label(self, name: str) -> str:
        """What tables and figures call a policy."""
        return self.labels.get(name, name)

    @property
    def points(self) -> list[int]:
        """Of the axis, in order."""
        return sorted({point for row in self.cells.values() for point in row})

    def size(self, point: int) -> int:
        """The size of problems at a point."""
        return self.words.size(point, self.planned or self.trained)

    def times(self, point: int) -> str:
        """The size of problems at a point, as a multiple of the largest trained on."""
        return times(self.size(point), self.trained)

    def sized(self, point: int) -> str:
        """The same with its unit."""
        return self.words.sized(self.size(point))

    @property
    def trained_words(self) -> str:
        """The largest size trained on, with its unit."""
        return self.words.sized(self.trained)


def write_report(folder: Path, results: Results) -> None:
    """Write report.html and plots/*.png into `folder`."""
    figures = _figures(results)
    write_page(folder, render(results, figures), figures)


def render(results: Results, figures: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a report."""
    points, words = results.points, results.words
    title = words.title.format(trained=results.trained_words, last=results.sized(points[-1]))
    return page(
        "report.html.j2",
        title=f"{results.method}: {title}",
        table_title=words.table,
        lead=lead(results),
        facts=_facts(results),
        columns=[column(results, point) for point in points],
        rows=[_row(results, name, cells, points) for name, cells in results.cells.items()],
        costs=costs(results),
        table_note=_table_note(results),
        evidence=evidence_table(_placed(results)),
        figures=embedded(figures),
        samples=[_shown(sample) for sample in results.samples],
        samples_note=words.samples,
        stories=results.stories,
        legend=LEGEND,
        look=results.look,
        config=visible(results.config),
    )


def lead(results: Results) -> str:
    """What happened, in one or two sentences of measured figures."""
    after, before = results.cells.get(results.agent, {}), results.cells.get(f"{results.agent}_before", {})
    first, last = results.points[0], results.points[-1]
    text = (
        f"{results.words.start.format(size=results.sized(first))}, the agent's accuracy went from "
        f"{percent(before.get(first))} before reinforcement learning to {percent(after.get(first))} after it."
    )
    if last != first:
        end = results.words.end.format(size=results.sized(last), times=results.times(last))
        text += f" {end} {percent(after.get(last))}"
        others = [f"{percent(cells.get(last))} ({results.label(name)})" for name, cells in _baselines(results)]
        text += f"; {results.others}: {', '.join(others)}." if others else "."
    if results.planned is not None and results.trained < results.planned:
        text += (
            f" Training ended before its problems had grown to {results.words.sized(results.planned)}: "
            f"the largest had {results.trained_words}."
        )
    return text


_REWARD = (
    "Reward over training. Each step samples a batch of episodes; thin line: their mean reward, bold: its running mean."
)


def _figures(results: Results) -> list[dict[str, Any]]:
    words, figures = results.words, list[dict[str, Any]]()
    if results.rewards:
        image = reward_figure(results.rewards, results.lengths, words=words)
        alt = "mean reward over training steps"
        caption = f"{_REWARD} {words.bands}" if len(set(results.lengths)) > 1 else _REWARD
        figures.append({"name": "reward", "png": image, "caption": caption, "alt": alt})
    figures += training_figures(results.metrics)
    return figures + accuracy_and_tokens(results, results.note)


def accuracy_and_tokens(results: Results, note: str) -> list[dict[str, Any]]:
    """The figures of an evaluation; `note` ends the caption of the first."""
    words, figures = results.words, []
    caption = f"{words.accuracy_caption.format(trained=results.trained_words)} {note}"
    image = accuracy_figure(_curves(results, tokens=False), training_length=results.trained, words=words)
    figures.append({"name": "accuracy", "png": image, "caption": caption, "alt": f"accuracy against {words.alt}"})
    image = tokens_figure(_curves(results, tokens=True), training_length=results.trained, words=words)
    figures.append(
        {"name": "tokens", "png": image, "caption": words.cost_caption, "alt": f"tokens against {words.alt}"}
    )
    return figures


def _curves(results: Results, *, tokens: bool) -> dict[str, list[Point]]:
    curves = {}
    for name, cells in results.cells.items():
        if tokens and results.words.reads and name == f"{results.agent}_before":
            continue  # lies under the trained agent's line: both read the same chunks
        points = [_point(results.size(point), cell, tokens) for point, cell in sorted(cells.items())]
        curves[results.label(name)] = [point for point in points if point is not None]
    return {label: points for label, points in curves.items() if points}


def _point(length: int, cell: TableCell, tokens: bool) -> Point | None:
    if tokens:
        return Point(length, cell.tokens, cell.tokens, cell.tokens)
    score = cell.score
    if score.mean is None:
        return None
    low, high = (score.mean if bound is None else bound for bound in (score.low, score.high))
    return Point(length, score.mean, low, high)


def _facts(results: Results) -> list[tuple[str, str]]:
    facts = [
        ("seed", str(results.seed)),
        (results.words.trained, results.trained_words),
        ("training", f"{len(results.rewards)} steps"),
        ("time", f"{results.wall_s / 60:.1f} minutes, evaluation included"),
    ]
    if results.words.reads and results.dropped_after is None:
        fidelity = f"{_number(results.fidelity_before)} before, {_number(results.fidelity_after)} after RL"
        told = f"{fidelity} (share of the sentences written into memory that stand in what was read)"
        facts.append(("copy fidelity", told))
    elif results.words.reads:
        dropped = f"{_number(results.dropped_before)} before, {_number(results.dropped_after)} after RL"
        facts.append(("kept out", f"{dropped} (share of the sentences written that nothing in sight says)"))
    return facts + [(name, visible(value)) for name, value in results.made]


def column(results: Results, point: int) -> dict[str, Any]:
    """The head of a table's column."""
    size = results.size(point)
    below = f"{results.times(point)}× training" if results.words.multiples else ""
    return {"length": size, "unit": results.words.unit(size), "below": below}


def _row(results: Results, name: str, cells: Mapping[int, TableCell], points: Sequence[int]) -> dict[str, Any]:
    return {
        "label": results.label(name),
        "main": name == results.agent,
        "cells": [_cell(cells.get(point)) for point in points],
    }


def costs(results: Results) -> list[dict[str, Any]]:
    """Rows of what a right answer costs; empty where that isn't known of any cell."""
    if all(cell.tokens_per_correct is None for row in results.cells.values() for cell in row.values()):
        return []
    rows = []
    for name, cells in results.cells.items():
        found = [cells.get(point) for point in results.points]
        shown = [tokens_in_words(None if cell is None else cell.tokens_per_correct) for cell in found]
        rows.append({"label": results.label(name), "main": name == results.agent, "cells": shown})
    return rows


def tokens_in_words(count: float | None) -> str:
    """A number of tokens, a dash where there is none.

    >>> tokens_in_words(1234.4), tokens_in_words(None)
    ('1,234', '–')
    """
    return "–" if count is None else f"{count:,.0f}"


def _placed(results: Results) -> Iterator[PlacedRow]:
    """The agent at every point, the others at the last one."""
    points = results.points
    for name, cells in results.cells.items():
        main = name == results.agent
        for point in points if main else points[-1:]:
            if point in cells:
                label = f"{results.label(name)}, {results.sized(point)}"
                yield PlacedRow(label, main, cells[point].by_evidence, cells[point].by_last_evidence)


def _cell(cell: TableCell | None) -> dict[str, str]:
    if cell is None or cell.score.mean is None:
        return {"value": "–", "interval": ""}
    low, high = cell.score.low, cell.score.high
    return {"value": percent(cell), "interval": "" if low is None or high is None else f"{low:.0%} to {high:.0%}"}


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


def _shown(sample: Sample) -> dict[str, str]:
    kind, mark = _mark(sample)
    return {
        "kind": kind,
        "mark": visible(mark),
        "question": visible(sample.question),
        "memory": visible(sample.memory or "–"),
        "answer": visible(sample.answer or "–"),
        "gold": visible(", ".join(sample.answers)),
    }


def _mark(sample: Sample) -> tuple[str, str]:
    """How an episode is coloured, and what is said of its grade; a full grade needs no words."""
    if sample.value is None:
        return "ungraded", f"no grade: {sample.reason or sample.outcome}"
    if sample.value >= 1:
        return "right", ""
    return ("wrong", "marked wrong") if sample.value <= 0 else ("partly", f"graded {sample.value:.0%}")


def _baselines(results: Results) -> list[tuple[str, Mapping[int, TableCell]]]:
    own = (results.agent, f"{results.agent}_before")
    return [(name, cells) for name, cells in results.cells.items() if name not in own]


def percent(cell: TableCell | None) -> str:
    """The mean of a cell as a share in percent."""
    return "–" if cell is None or cell.score.mean is None else f"{cell.score.mean:.0%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# ---- One report of several quickstarts that differ in their seed ---------------------------------------------


def over_seeds(each: Sequence[Results]) -> Results:
    """The results of one recipe under several seeds as one: means and intervals over the seeds.

    What belongs to a single run (its episodes, the lines of its metrics) is left out.
    """
    first = each[0]
    cells = {
        name: {point: _over([one.cells[name][point] for one in each]) for point in first.points} for name in first.cells
    }
    steps = min(len(one.rewards) for one in each)
    return replace(
        first,
        cells=cells,
        trained=max(one.trained for one in each),
        wall_s=sum(one.wall_s for one in each),
        rewards=[fmean(one.rewards[step] for one in each) for step in range(steps)],
        lengths=[first.trained] * steps,
        fidelity_before=student([one.fidelity_before for one in each]).mean,
        fidelity_after=student([one.fidelity_after for one in each]).mean,
        dropped_before=student([one.dropped_before for one in each]).mean,
        dropped_after=student([one.dropped_after for one in each]).mean,
        samples=(),
        stories=(),
        metrics=(),
        look="",
    )


def _over(cells: Sequence[TableCell]) -> TableCell:
    score = student([cell.score.mean for cell in cells])
    tokens, problems = fmean(cell.tokens for cell in cells), min(cell.problems for cell in cells)
    costs = [cell.tokens_per_correct for cell in cells if cell.tokens_per_correct is not None]
    cost = fmean(costs) if len(costs) == len(cells) else None
    return TableCell(score, tokens, problems, sum(cell.ungraded for cell in cells), cost)


def write_seeds_report(folder: Path, each: Sequence[Results], runs: Sequence[str]) -> Results:
    """Write report.html and plots/*.png of several seeds into `folder`; `runs` are the folders of the seeds."""
    merged = over_seeds(each)
    figures = _seed_figures(merged, len(each))
    write_page(folder, _render(merged, each, runs, figures), figures)
    return merged


def _render(merged: Results, each: Sequence[Results], runs: Sequence[str], figures: Sequence[Mapping[str, Any]]) -> str:
    words = merged.words
    title = words.title.format(trained=merged.trained_words, last=merged.sized(merged.points[-1]))
    seeds = ", ".join(str(one.seed) for one in each)
    return page(
        "report.html.j2",
        title=f"{merged.method}, {len(each)} seeds: {title}",
        table_title=f"{words.table}, mean over {len(each)} seeds",
        lead=f"Means over seeds {seeds}. {lead(merged)}",
        facts=[
            ("seeds", seeds),
            (words.trained, ", ".join(dict.fromkeys(one.trained_words for one in each))),
            ("training", f"{', '.join(dict.fromkeys(str(len(one.rewards)) for one in each))} steps per seed"),
            ("time", f"{merged.wall_s / 60:.1f} minutes for all seeds, evaluation included"),
            ("reports of the seeds", ", ".join(f"{run}/report.html" for run in runs)),
            *((name, visible(value)) for name, value in merged.made),
        ],
        columns=[column(merged, point) for point in merged.points],
        rows=[_seed_row(merged, each, name) for name in merged.cells],
        costs=costs(merged),
        table_note=_note(merged, len(each)),
        evidence=None,
        figures=embedded(figures),
        samples=[],
        samples_note="",
        stories=(),
        legend=LEGEND,
        look="",
        config=visible(merged.config),
    )


def _seed_row(merged: Results, each: Sequence[Results], name: str) -> dict[str, Any]:
    cells = []
    for point in merged.points:
        score = merged.cells[name][point].score
        interval = "" if score.low is None else f"{score.low:.0%} to {score.high:.0%}; "
        singly = ", ".join(percent(one.cells[name][point]) for one in each)
        cells.append({"value": percent(merged.cells[name][point]), "interval": f"{interval}{singly}"})
    return {"label": merged.label(name), "main": name == merged.agent, "cells": cells}


def _note(merged: Results, seeds: int) -> str:
    all_cells = [cell for row in merged.cells.values() for cell in row.values()]
    ungraded = sum(cell.ungraded for cell in all_cells)
    graded = f"{ungraded} episodes have no grade and are left out." if ungraded else "Every episode was graded."
    return (
        f"{min(cell.problems for cell in all_cells)} problems per cell and seed. Below each mean: Student's 95% "
        f"interval over {seeds} seeds, none where they agree; then the seeds one by one. {graded}"
    )


def _seed_figures(merged: Results, seeds: int) -> list[dict[str, Any]]:
    image = reward_figure(merged.rewards, merged.lengths, words=merged.words)
    caption = (
        f"Reward over training, mean over {seeds} seeds. Each step samples a batch of episodes; thin line: their mean "
        "reward, bold: its running mean. Seeds may be at different sizes of problems in the same step."
    )
    reward = {"name": "reward", "png": image, "caption": caption, "alt": "mean reward over training steps"}
    return [reward, *accuracy_and_tokens(merged, f"Means over {seeds} seeds; bands are intervals over seeds.")]
