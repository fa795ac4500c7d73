"""Report of a quickstart run, or of several that differ in their seed.

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
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.config.load import dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.sample_log import Sample
from palimpsest.evaluation.summary import EvalSummary, Score, student
from palimpsest.report.axis_labels import AxisWords, times
from palimpsest.report.page import LEGEND, PlacedRow, ToldStory, embedded, evidence_table, page, write_page
from palimpsest.report.plots import Point, accuracy_figure, tokens_figure
from palimpsest.report.run_reports import interval, percent, tokens_in_words, training_plots
from palimpsest.text.display_text import visible

Change = tuple[float | None, float | None]
"""A figure before training with rewards, and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a quickstart came to: everything that its tables, figures and report show."""

    config: RunConfig
    words: AxisWords
    """What the axis is called."""
    planned: int
    """Largest size that training was to come to, of which points may be multiples."""
    trained: int
    """Largest size trained on, of the steps that were done."""
    wall_s: float
    cells: Mapping[str, Mapping[int, EvalSummary]]
    """Player, then point of the axis."""
    rewards: Sequence[float]
    """[steps] mean reward of the sampled episodes."""
    sizes: Sequence[int]
    """[steps] size of the problems trained on."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """[steps] lines of metrics.jsonl; what they hold of tools and context is drawn over training."""
    samples: Sequence[Sample] = ()
    stories: Sequence[ToldStory] = ()
    """A failure and the success beside it, memory by memory."""
    look: str = ""
    """The command that shows every episode."""
    made: Sequence[tuple[str, str]] = ()
    """Command, versions and machine, by name."""
    seeds: Sequence[Results] = ()
    """Those of each seed, where these are means over several."""

    @property
    def method(self) -> str:
        """Its name."""
        return self.config.recipe.removesuffix("-quickstart")

    @property
    def agent(self) -> str:
        """Name of the trained agent in `cells`; `{agent}_before` is the same before training with rewards."""
        return self.config.evaluation.agent

    @property
    def points(self) -> list[int]:
        """Of the axis, in order."""
        return sorted({point for row in self.cells.values() for point in row})

    def label(self, name: str) -> str:
        """What tables and figures call a player."""
        return visible(self.config.evaluation.labels.get(name, name))

    def size(self, point: int) -> int:
        """The size of problems at a point."""
        return self.words.size(point, self.planned)

    def sized(self, point: int) -> str:
        """The same with its unit."""
        return self.words.sized(self.size(point))

    def heading(self, point: int) -> str:
        """Of a table's column."""
        return self.words.heading(self.size(point), self.trained)

    def change(self, measure: str) -> Change:
        """What was measured of the agent at the first point."""
        before, after = (self.cells[name][self.points[0]] for name in (f"{self.agent}_before", self.agent))
        return before.measures.get(measure), after.measures.get(measure)

    def copied(self) -> tuple[str, Change] | None:
        """What is told of the sentences the agent wrote, with its name: those that its rule kept out, where it has
        one; None of agents that don't read documents."""
        if not self.words.reads:
            return None
        dropped = self.change("dropped_share")
        return (
            ("copy fidelity", self.change("copy_fidelity"))
            if dropped[1] is None
            else ("sentences kept out of the memory", dropped)
        )


def over_seeds(each: Sequence[Results]) -> Results:
    """The results of one recipe under several seeds as one: means and intervals over the seeds.

    What belongs to a single run (its episodes, the lines of its metrics) is left out.
    """
    first, steps = each[0], min(len(one.rewards) for one in each)
    cells = {
        name: {point: _mean([one.cells[name][point] for one in each]) for point in first.points} for name in first.cells
    }
    return Results(
        config=first.config,
        words=first.words,
        planned=first.planned,
        trained=max(one.trained for one in each),
        wall_s=sum(one.wall_s for one in each),
        cells=cells,
        rewards=[fmean(one.rewards[step] for one in each) for step in range(steps)],
        sizes=[first.trained] * steps,
        made=first.made,
        seeds=tuple(each),
    )


def _mean(cells: Sequence[EvalSummary]) -> EvalSummary:
    costs = [cell.tokens_per_correct for cell in cells]
    known = [cost for cost in costs if cost is not None]
    measured = {name: student([cell.measures.get(name) for cell in cells]).mean for name in cells[0].measures}
    return replace(
        cells[0],
        accuracy=student([cell.accuracy.mean for cell in cells]),
        tokens_per_document=fmean(cell.tokens_per_document for cell in cells),
        problems=min(cell.problems for cell in cells),
        ungraded=sum(cell.ungraded for cell in cells),
        tokens_per_correct=fmean(known) if len(known) == len(costs) else None,
        measures={name: value for name, value in measured.items() if value is not None},
        by_evidence=(),
        by_last_evidence=(),
    )


# ---- report.html ---------------------------------------------------------------------------------------------


def write_report(folder: Path, results: Results) -> None:
    """Write report.html and plots/*.png into `folder`."""
    figures = [
        *training_plots(results.rewards, results.sizes, results.metrics, results.words),
        *_evaluation_plots(results),
    ]
    write_page(folder, render(results, figures), figures)


def render(results: Results, figures: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a report."""
    words, points = results.words, results.points
    title = words.title.format(trained=words.sized(results.trained), last=results.sized(points[-1]))
    seeds = f"{len(results.seeds)} seeds"
    return page(
        "report.html.j2",
        title=f"{results.method}{f', {seeds}' if results.seeds else ''}: {title}",
        table_title=f"{words.table}{f', mean over {seeds}' if results.seeds else ''}",
        lead=lead(results),
        facts=list(_facts(results)),
        columns=[_column(results, point) for point in points],
        rows=[_row(results, name, [_cell(results, name, point) for point in points]) for name in results.cells],
        costs=_costs(results),
        table_note=_table_note(results),
        evidence=evidence_table(_placed(results)),
        figures=embedded(figures),
        samples=[_shown(sample) for sample in results.samples],
        samples_note=words.samples,
        stories=results.stories,
        legend=LEGEND,
        look=results.look,
        config=visible(dump_config(results.config)),
    )


def lead(results: Results) -> str:
    """What happened, in a few sentences of measured figures."""
    words, first, last = results.words, results.points[0], results.points[-1]
    rows = {name: {point: percent(cell.accuracy) for point, cell in row.items()} for name, row in results.cells.items()}
    after, before = rows.pop(results.agent, {}), rows.pop(f"{results.agent}_before", {})
    text = (
        f"{words.start.format(size=results.sized(first))}, the agent's accuracy went from {before.get(first, '–')} "
        f"before reinforcement learning to {after.get(first, '–')} after it."
    )
    if last != first:
        end = words.end.format(size=results.sized(last), times=times(results.size(last), results.trained))
        others = ", ".join(f"{row.get(last, '–')} ({results.label(name)})" for name, row in rows.items())
        text += f" {end} {after.get(last, '–')}" + (f"; in comparison: {others}." if others else ".")
    if results.trained < results.planned:
        text += (
            f" Training ended before its problems had grown to {words.sized(results.planned)}: the largest had "
            f"{words.sized(results.trained)}."
        )
    seeds = ", ".join(str(one.config.seed) for one in results.seeds)
    return f"Means over seeds {seeds}. {text}" if seeds else text


def _facts(results: Results) -> Iterator[tuple[str, str]]:
    each = results.seeds or [results]
    yield "seeds" if results.seeds else "seed", ", ".join(str(one.config.seed) for one in each)
    yield results.words.trained, ", ".join(dict.fromkeys(results.words.sized(one.trained) for one in each))
    yield "training", ", ".join(dict.fromkeys(f"{len(one.rewards)} steps" for one in each))
    yield "time", f"{results.wall_s / 60:.1f} minutes, evaluation included"
    if results.seeds:
        yield "reports of the seeds", ", ".join(f"seed-{one.config.seed}/report.html" for one in each)
    if (copied := results.copied()) is not None:
        name, figures = copied
        before, after = ("–" if figure is None else f"{figure:.2f}" for figure in figures)
        yield name, f"{before} before, {after} after RL ({_MEANING[name]})"
    yield from ((name, visible(value)) for name, value in results.made)


_MEANING = {
    "copy fidelity": "share of the sentences written into memory that stand in what was read",
    "sentences kept out of the memory": "share of the sentences written that nothing in sight says",
}


def _evaluation_plots(results: Results) -> list[dict[str, Any]]:
    """Accuracy and tokens against the size of problems."""
    words, over = results.words, f"Means over {len(results.seeds)} seeds; bands are intervals over seeds."
    note = over if results.seeds else visible(results.config.evaluation.note)
    accuracy, tokens = dict[str, list[Point]](), dict[str, list[Point]]()
    for name, row in results.cells.items():
        cells = [(results.size(point), cell) for point, cell in sorted(row.items())]
        if graded := [(size, cell.accuracy) for size, cell in cells if cell.accuracy.mean is not None]:
            accuracy[results.label(name)] = [_point(size, score) for size, score in graded]
        if cells and not (words.reads and name == f"{results.agent}_before"):  # reads what the trained agent reads
            costs = [(size, cell.tokens_per_document) for size, cell in cells]
            tokens[results.label(name)] = [Point(size, cost, cost, cost) for size, cost in costs]
    return [
        {
            "name": "accuracy",
            "png": accuracy_figure(accuracy, training_length=results.trained, words=words),
            "caption": f"{words.accuracy_caption.format(trained=words.sized(results.trained))} {note}",
            "alt": f"accuracy against {words.alt}",
        },
        {
            "name": "tokens",
            "png": tokens_figure(tokens, training_length=results.trained, words=words),
            "caption": words.cost_caption,
            "alt": f"tokens against {words.alt}",
        },
    ]


def _point(size: int, score: Score) -> Point:
    mean = score.mean or 0.0
    low, high = (mean if bound is None else bound for bound in (score.low, score.high))
    return Point(size, mean, low, high)


def _column(results: Results, point: int) -> dict[str, Any]:
    """The head of a table's column."""
    size, words = results.size(point), results.words
    below = f"{times(size, results.trained)}× training" if words.multiples else ""
    return {"length": size, "unit": words.unit(size), "below": below}


def _row(results: Results, name: str, cells: Sequence[Any]) -> dict[str, Any]:
    return {"label": results.label(name), "main": name == results.agent, "cells": cells}


def _cell(results: Results, name: str, point: int) -> dict[str, str]:
    """Accuracy with its interval, then that of each seed."""
    if (cell := results.cells[name].get(point)) is None:
        return {"value": "–", "interval": ""}
    singly = ", ".join(percent(one.cells[name][point].accuracy) for one in results.seeds)
    return {
        "value": percent(cell.accuracy),
        "interval": "; ".join(part for part in (interval(cell.accuracy), singly) if part),
    }


def _costs(results: Results) -> list[dict[str, Any]]:
    """Rows of what a right answer costs; empty where that isn't known of any cell."""
    costs = {name: {at: cell.tokens_per_correct for at, cell in row.items()} for name, row in results.cells.items()}
    if all(cost is None for row in costs.values() for cost in row.values()):
        return []
    points = results.points
    return [_row(results, name, [tokens_in_words(row.get(at)) for at in points]) for name, row in costs.items()]


def _placed(results: Results) -> Iterator[PlacedRow]:
    """The agent at every point, the others at the last one."""
    for name, row in results.cells.items():
        main = name == results.agent
        for point in results.points if main else results.points[-1:]:
            if (cell := row.get(point)) is not None:
                label = f"{results.label(name)}, {results.sized(point)}"
                yield PlacedRow(label, main, cell.by_evidence, cell.by_last_evidence)


def _table_note(results: Results) -> str:
    cells = [cell for row in results.cells.values() for cell in row.values()]
    counts = sorted({cell.problems for cell in cells})
    ungraded = sum(cell.ungraded for cell in cells)
    graded = f"{ungraded} episodes have no grade and are left out." if ungraded else "Every episode was graded."
    if results.seeds:
        return (
            f"{counts[0]} problems per cell and seed. Below each mean: Student's 95% interval over "
            f"{len(results.seeds)} seeds, none where they agree; then the seeds one by one. {graded}"
        )
    problems = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return f"{problems} problems a cell; below, 95% intervals. {graded}"


def _shown(sample: Sample) -> dict[str, str]:
    """An episode; a full grade needs no words."""
    kind, mark = "partly", f"graded {sample.value or 0:.0%}"
    if sample.value is None:
        kind, mark = "ungraded", f"no grade: {sample.reason or sample.outcome}"
    elif sample.value >= 1:
        kind, mark = "right", ""
    elif sample.value <= 0:
        kind, mark = "wrong", "marked wrong"
    return {
        "kind": kind,
        "mark": visible(mark),
        "question": visible(sample.question),
        "memory": visible(sample.memory or "–"),
        "answer": visible(sample.answer or "–"),
        "gold": visible(", ".join(sample.answers)),
    }
