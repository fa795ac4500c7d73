"""Results of a quickstart: report.html, summary.json.

The report is that of an evaluation, plus the training.

Not covered: missing results (a curve without points is missing from its figure, its table shows a dash).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.train.training_summary import told_of_last_step
from palimpsest.config.load import dump_config
from palimpsest.config.schema import RunConfig
from palimpsest.evaluation.sample_log import SUMMARY, Cell, Sample, write_json
from palimpsest.evaluation.summary import EvalSummary, summarise
from palimpsest.provenance import MADE_WITH, facts
from palimpsest.report.axis_labels import Point, times
from palimpsest.report.page import ToldStory, view_command
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
            return "sentences dropped by the rule", dropped
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


# ---- report.html ---------------------------------------------------------------------------------------------


def write_report(folder: Path, results: Results) -> None:
    """Write report.html and plots/*.png into `folder`: those of an evaluation, plus the training."""
    write_evaluation_report(folder, evaluation_results(results))


def evaluation_results(results: Results) -> EvaluationResults:
    """Contents of the report."""
    words = results.grid.axis
    title = words.title.format(trained=words.sized(results.trained), last=results.sized(results.points[-1]))
    players = {
        results.label(name): {results.heading(point): cell for point, cell in sorted(row.items())}
        for name, row in results.cells.items()
    }
    return EvaluationResults(
        title=f"{results.grid.method}: {title}",
        accuracy=results.cells[results.grid.agent][results.points[0]].accuracy,
        lead=lead(results),
        facts=list(_facts(results)),
        players=players,
        notes=results.fewer,
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
    return text


def _facts(results: Results) -> Iterator[tuple[str, str]]:
    yield "seed", str(results.grid.config.seed)
    yield results.grid.axis.trained, results.grid.axis.sized(results.trained)
    yield "training", f"{len(results.rewards)} steps"
    yield "time of the last call", f"{results.wall_s / 60:.1f} minutes, evaluation included"
    if (copied := results.copied()) is not None:
        name, figures = copied
        before, after = ("–" if figure is None else f"{figure:.2f}" for figure in figures)
        yield name, f"{before} before, {after} after RL ({_MEANING[name]})"
    yield from results.made


_MEANING = {
    "copy fidelity": "share of the sentences written into memory that are in the prompt",
    "sentences dropped by the rule": "share of the written sentences that the prompt does not support",
}


def _evaluation_plots(results: Results) -> list[dict[str, Any]]:
    from palimpsest.report.plots import accuracy_figure, tokens_figure  # matplotlib takes a second to import

    words, note = results.grid.axis, visible(results.grid.config.evaluation.note)
    accuracy, tokens = dict[str, list[Point]](), dict[str, list[Point]]()
    for name, row in results.cells.items():
        cells = [(results.grid.size(point), cell) for point, cell in sorted(row.items())]
        scores = [(size, cell.accuracy) for size, cell in cells]
        accuracy[results.label(name)] = [Point(size, s.mean, *s.ends) for size, s in scores if s.mean is not None]
        same = words.reads and name == f"{results.grid.agent}_before"  # it reads as much as the trained agent
        costs = [(size, cell.tokens_per_document) for size, cell in cells if not same]
        tokens[results.label(name)] = [Point(size, cost, cost, cost) for size, cost in costs]
    caption = f"{words.accuracy_caption.format(trained=words.sized(results.trained))} {note}"
    image = accuracy_figure(accuracy, training_length=results.trained, words=words)
    figures = [{"name": "accuracy", "png": image, "caption": caption, "alt": f"accuracy against {words.alt}"}]
    image = tokens_figure(tokens, training_length=results.trained, words=words)
    alt = f"tokens against {words.alt}"
    return [*figures, {"name": "tokens", "png": image, "caption": words.cost_caption, "alt": alt}]


# ---- Summaries -----------------------------------------------------------------------------------------------


def publish(folder: Path, results: Results) -> None:
    """Write report and summaries into the folder of the run."""
    write_report(folder, results)
    cells = {name: {str(point): one.to_json() for point, one in row.items()} for name, row in results.cells.items()}
    write_json(folder / "evaluations" / SUMMARY, cells)
    write_json(folder / SUMMARY, summary_json(results) | {MADE_WITH: made_with(folder)})


def summary_json(results: Results) -> dict[str, Any]:
    """Contents of summary.json; keys of the inner maps are points of the axis."""
    grid = results.grid
    return {
        "method": grid.method,
        "seed": grid.config.seed,
        f"training_{grid.axis.key}": results.trained,
        f"planned_{grid.axis.key}": grid.planned,
        "wall_s": round(results.wall_s, 1),
        "accuracy": {
            name: {str(point): row[point].accuracy.mean for point in results.points}
            for name, row in results.cells.items()
        },
        **_figures(results),
    }


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
