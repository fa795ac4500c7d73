"""Results of a quickstart, or of several seeds: report.html, summary.json.

The report is that of an evaluation, plus the training. Results of several seeds are means and intervals over the seeds.
The interval is Student's t (95%), cut to [0, 1]. Each seed draws its training and test problems, so the interval covers
both.

Guaranteed: each seed has the same weight, regardless of its number of graded problems.
Not covered: missing results (a curve without points is missing from its figure, its table shows a dash); problems that
several seeds share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.train.training_summary import told_of_last_step
from palimpsest.config.load import dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample, write_json
from palimpsest.evaluation.summary import EvalSummary, student, summarise
from palimpsest.provenance import MADE_WITH, facts
from palimpsest.report.axis_labels import times
from palimpsest.report.page import ToldStory, view_command
from palimpsest.report.plots import Point, accuracy_figure, tokens_figure
from palimpsest.report.run_reports import EvaluationResults, percent, training_plots, write_evaluation_report
from palimpsest.runs.jsonl_rows import read_rows, whole, with_number
from palimpsest.runs.resume_rules import made_with
from palimpsest.runs.run_folder import METRICS
from palimpsest.text.display_text import visible

SHOWN_SAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Data of a quickstart's tables, figures and report."""

    grid: Grid
    trained: int
    """Largest size in the completed training steps."""
    wall_s: float
    cells: Mapping[str, Mapping[int, EvalSummary]]
    """Player, then point of the axis."""
    rewards: Sequence[float]
    """[steps] mean reward of the sampled episodes."""
    sizes: Sequence[int]
    """[steps] size of the training problems."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """[steps] lines of metrics.jsonl, for the plots of tools and context over training."""
    samples: Sequence[Sample] = ()
    stories: Sequence[ToldStory] = ()
    """A failure and a success, memory by memory."""
    look: str = ""
    """Command that shows every episode."""
    made: Sequence[tuple[str, str]] = ()
    """Command, versions and machine, by name."""
    seeds: Sequence[Results] = ()
    """Results per seed, if these are means over several."""

    @property
    def points(self) -> list[int]:
        """Points of the axis, in order."""
        return sorted(self.grid.points)

    def label(self, name: str) -> str:
        """Label of a player in tables and figures."""
        return self.grid.config.evaluation.labels.get(name, name)

    def sized(self, point: int) -> str:
        """Size of problems at a point, with its unit."""
        return self.grid.axis.sized(self.grid.size(point))

    def heading(self, point: int) -> str:
        """Heading of a table's column."""
        return self.grid.axis.heading(self.grid.size(point), self.trained)

    @property
    def fewer(self) -> list[str]:
        """A note on players with fewer problems than the agent, if any."""
        grid, first = self.grid, self.points[0]
        names = [name for name in grid.players if any(grid.count_of(name, p) < grid.count(p) for p in self.points)]
        count, players = grid.config.evaluation.baseline_problems, ", ".join(map(self.label, names))
        return [f"{count} problems per size beyond {self.sized(first)}: {players}"] if names else []

    def copied(self) -> tuple[str, tuple[float | None, float | None]] | None:
        """Name, and values before and after training at the first point, of the fraction of written sentences that the
        agent's rule drops, or otherwise of its copy fidelity. None for agents that read no documents."""
        if not self.grid.axis.reads:
            return None
        if (dropped := self._change("dropped_share"))[1] is not None:
            return "sentences dropped from the memory", dropped
        return "copy fidelity", self._change("copy_fidelity")

    def _change(self, measure: str) -> tuple[float | None, float | None]:
        before, after = (self.cells[name][self.points[0]] for name in (f"{self.grid.agent}_before", self.grid.agent))
        return before.measures.get(measure), after.measures.get(measure)


def results_of(config: RunConfig, out: Path, samples: Mapping[Cell, Sequence[Sample]], wall_s: float) -> Results:
    """Results of the quickstart in `out`."""
    rows, grid = with_number(read_rows(out / METRICS), "reward/mean"), Grid(config)
    if grid.axis.reads:
        sizes = [whole(row, "curriculum/chunks", grid.planned) for row in rows]
    else:
        sizes = [grid.planned] * len(rows)
    cells = {name: {point: grid.cell(name, point) for point in grid.points} for name in grid.players}
    last = cells[grid.agent][max(grid.points)]
    return Results(
        grid=grid,
        trained=max(sizes, default=grid.planned),
        wall_s=wall_s,
        cells={
            name: {point: summarise(each, samples.get(each, ())) for point, each in row.items()}
            for name, row in cells.items()
        },
        rewards=[float(row["reward/mean"]) for row in rows],
        sizes=sizes,
        metrics=rows,
        samples=sorted(samples.get(last, ()), key=lambda sample: sample.id)[:SHOWN_SAMPLES],
        stories=told_of_last_step(out, config),
        look=view_command(out),
        made=facts(made_with(out)),
    )


def over_seeds(each: Sequence[Results]) -> Results:
    """Results of one recipe under several seeds as one: means and intervals over the seeds.

    They omit the episodes and metrics of single runs.
    """
    first, steps = each[0], min(len(one.rewards) for one in each)
    cells = {
        name: {point: _mean([one.cells[name][point] for one in each]) for point in first.points} for name in first.cells
    }
    return Results(
        grid=first.grid,
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
        outcomes=dict(sum((Counter(cell.outcomes) for cell in cells), Counter())),
        tokens_per_document=fmean(cell.tokens_per_document for cell in cells),
        turns_per_document=fmean(cell.turns_per_document for cell in cells),
        problems=min(cell.problems for cell in cells),
        ungraded=sum(cell.ungraded for cell in cells),
        tokens_per_correct=fmean(known) if len(known) == len(costs) else None,
        measures={name: value for name, value in measured.items() if value is not None},
        by_evidence=(),
        by_last_evidence=(),
    )


# ---- report.html ---------------------------------------------------------------------------------------------


def write_report(folder: Path, results: Results) -> None:
    """Write report.html and plots/*.png into `folder`: those of an evaluation, plus the training."""
    write_evaluation_report(folder, evaluation_results(results))


def evaluation_results(results: Results) -> EvaluationResults:
    """Contents of the report."""
    words, seeds = results.grid.axis, results.seeds
    over = f", {len(seeds)} seeds" if seeds else ""
    title = words.title.format(trained=words.sized(results.trained), last=results.sized(results.points[-1]))
    players = {
        results.label(name): {results.heading(point): cell for point, cell in sorted(row.items())}
        for name, row in results.cells.items()
    }
    each = {
        (results.label(name), results.heading(point)): ", ".join(percent(s.cells[name][point].accuracy) for s in seeds)
        for name, row in results.cells.items()
        for point in row
    }
    return EvaluationResults(
        title=f"{results.grid.method}{over}: {title}",
        accuracy=results.cells[results.grid.agent][results.points[0]].accuracy,
        lead=lead(results),
        facts=list(_facts(results)),
        players=players,
        each=each,
        notes=[*([_SEEDS_NOTE] if seeds else []), *results.fewer],
        figures=[
            *_evaluation_plots(results),
            *training_plots(results.rewards, results.sizes, results.metrics, words),
        ],
        stories=results.stories,
        samples=results.samples,
        samples_note=words.samples,
        look=results.look,
        config=dump_config(results.grid.config),
    )


_SEEDS_NOTE = (
    "Accuracy: the mean over seeds with Student's 95% interval (none if they agree). "
    "Problems are per seed; ungraded episodes and outcomes are over all seeds."
)


def lead(results: Results) -> str:
    """Measured results, in a few sentences."""
    words, first, last = results.grid.axis, results.points[0], results.points[-1]
    rows = {name: {point: percent(cell.accuracy) for point, cell in row.items()} for name, row in results.cells.items()}
    after, before = rows.pop(results.grid.agent, {}), rows.pop(f"{results.grid.agent}_before", {})
    text = (
        f"{words.start.format(size=results.sized(first))}, the agent's accuracy went from {before.get(first, '–')} "
        f"before reinforcement learning to {after.get(first, '–')} after it."
    )
    if last != first:
        end = words.end.format(size=results.sized(last), times=times(results.grid.size(last), results.trained))
        others = ", ".join(f"{row.get(last, '–')} ({results.label(name)})" for name, row in rows.items())
        text += f" {end} {after.get(last, '–')}" + (f"; in comparison: {others}." if others else ".")
    if results.trained < results.grid.planned:
        text += (
            f" Training ended before its problems reached {words.sized(results.grid.planned)}: the largest had "
            f"{words.sized(results.trained)}."
        )
    seeds = ", ".join(str(one.grid.config.seed) for one in results.seeds)
    return f"Means over seeds {seeds}. {text}" if seeds else text


def _facts(results: Results) -> Iterator[tuple[str, str]]:
    each = results.seeds or [results]
    yield "seeds" if results.seeds else "seed", ", ".join(str(one.grid.config.seed) for one in each)
    yield results.grid.axis.trained, ", ".join(dict.fromkeys(results.grid.axis.sized(one.trained) for one in each))
    yield "training", ", ".join(dict.fromkeys(f"{len(one.rewards)} steps" for one in each))
    yield "time", f"{results.wall_s / 60:.1f} minutes, evaluation included"
    if results.seeds:
        yield "reports of the seeds", ", ".join(f"seed-{one.grid.config.seed}/report.html" for one in each)
    if (copied := results.copied()) is not None:
        name, figures = copied
        before, after = ("–" if figure is None else f"{figure:.2f}" for figure in figures)
        yield name, f"{before} before, {after} after RL ({_MEANING[name]})"
    yield from results.made


_MEANING = {
    "copy fidelity": "share of the sentences written into memory that are in the prompt",
    "sentences dropped from the memory": "share of the written sentences that the prompt does not support",
}


def _evaluation_plots(results: Results) -> list[dict[str, Any]]:
    words, over = results.grid.axis, f"Means over {len(results.seeds)} seeds; bands are intervals over seeds."
    note = over if results.seeds else visible(results.grid.config.evaluation.note)
    accuracy, tokens = dict[str, list[Point]](), dict[str, list[Point]]()
    for name, row in results.cells.items():
        cells = [(results.grid.size(point), cell) for point, cell in sorted(row.items())]
        if graded := [_accuracy(size, mean, cell) for size, cell in cells if (mean := cell.accuracy.mean) is not None]:
            accuracy[results.label(name)] = graded
        if not (words.reads and name == f"{results.grid.agent}_before"):  # it reads as much as the trained agent
            costs = [(size, cell.tokens_per_document) for size, cell in cells]
            tokens[results.label(name)] = [Point(size, cost, cost, cost) for size, cost in costs]
    caption = f"{words.accuracy_caption.format(trained=words.sized(results.trained))} {note}"
    image = accuracy_figure(accuracy, training_length=results.trained, words=words)
    figures = [{"name": "accuracy", "png": image, "caption": caption, "alt": f"accuracy against {words.alt}"}]
    image = tokens_figure(tokens, training_length=results.trained, words=words)
    alt = f"tokens against {words.alt}"
    return [*figures, {"name": "tokens", "png": image, "caption": words.cost_caption, "alt": alt}]


def _accuracy(size: int, mean: float, cell: EvalSummary) -> Point:
    low, high = (mean if bound is None else bound for bound in (cell.accuracy.low, cell.accuracy.high))
    return Point(size, mean, low, high)


# ---- Summaries -----------------------------------------------------------------------------------------------


def publish(folder: Path, results: Results) -> None:
    """Write report and summaries into the folder of the run, or of several seeds."""
    write_report(folder, results)
    summary = summary_json(results)
    if not results.seeds:
        cells = {name: {str(point): one.to_json() for point, one in row.items()} for name, row in results.cells.items()}
        write_json(folder / "evaluations" / SUMMARY, cells)
        summary |= {MADE_WITH: made_with(folder)}
    write_json(folder / SUMMARY, summary)


def summary_json(results: Results) -> dict[str, Any]:
    """Contents of summary.json; keys of the inner maps are points of the axis."""
    grid, seeds = results.grid, [one.grid.config.seed for one in results.seeds]
    known = {"seeds": seeds, "runs": [f"seed-{seed}" for seed in seeds]} if seeds else {"seed": grid.config.seed}
    return {
        "method": grid.method,
        **known,
        f"training_{grid.axis.key}": [one.trained for one in results.seeds] or results.trained,
        f"planned_{grid.axis.key}": grid.planned,
        "wall_s": round(results.wall_s, 1),
        "accuracy": {
            name: {str(point): _accuracy_json(results, name, point) for point in results.points}
            for name in results.cells
        },
        **({} if seeds else _figures(results)),
    }


def _accuracy_json(results: Results, name: str, point: int) -> Any:
    accuracy = results.cells[name][point].accuracy
    singly = [one.cells[name][point].accuracy.mean for one in results.seeds]
    return {**asdict(accuracy), "seeds": singly} if singly else accuracy.mean


_READING = (
    ("copy_fidelity", "copy_fidelity", "change", ""),
    ("dropped_share", "dropped_share", "change", "dropped_share"),
    ("tokens_per_document", "tokens_per_document", "points", ""),
    ("recall_hit_rate", "recall_hit_rate", "first", "recall_rate"),
    ("recall_hit_rates", "recall_hit_rate", "points", "recall_rate"),
)
_SEARCHING = (
    ("all_right", "all", "players", ""),
    ("answers_right", "each", "players", ""),
    ("input_tokens_per_episode", "input_tokens", "players", ""),
    ("prunes_per_episode", "prunes", "points", ""),
    ("mean_prunes_per_episode", "prunes", "mean", ""),
    ("segments_per_trajectory", "segments", "points", ""),
    ("mean_segments_per_trajectory", "segments", "mean", ""),
)
"""Key of summary.json; measure or metric; selection: every player's values at each point, the agent's at each point,
at the first, their mean, or at the first before and after training; measure that the key requires."""


def _figures(results: Results) -> dict[str, Any]:
    """Figures of reading documents, or of searching; null if not measured."""
    agent, first, found = results.grid.agent, str(results.points[0]), dict[str, Any]()
    for key, measure, which, needed in _READING if results.grid.axis.reads else _SEARCHING:
        values = {
            name: {str(point): _value(row[point], measure) for point in results.points}
            for name, row in results.cells.items()
        }
        known = [value for value in values[agent].values() if value is not None]
        chosen = {
            "players": values,
            "points": values[agent],
            "first": values[agent][first],
            "mean": fmean(known) if known else None,
            "change": {"before": values[f"{agent}_before"][first], "after": values[agent][first]},
        }
        if not needed or needed in results.cells[agent][results.points[0]].measures:
            found[key] = chosen[which]
    return found


def _value(cell: EvalSummary, name: str) -> float | None:
    return cell.tokens_per_document if name == "tokens_per_document" else {**cell.metrics, **cell.measures}.get(name)
