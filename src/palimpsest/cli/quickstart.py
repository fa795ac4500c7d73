"""`palimpsest quickstart`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import (
    OUTPUT,
    DryRun,
    Force,
    Json,
    Overrides,
    interval,
    percent,
    resumed,
    resuming,
    stdout,
    table,
)
from palimpsest.cli.train import Resume, print_plan
from palimpsest.config.load import PRETRAINED, quickstarts
from palimpsest.progress.displays import Terminal
from palimpsest.runs.resume_rules import resume_command
from palimpsest.text.display_text import cost_text

if TYPE_CHECKING:
    from palimpsest.app.quickstart.quickstart_results import Results
    from palimpsest.app.quickstart.quickstart_run import Quickstart
    from palimpsest.evaluation.summary import EvalSummary


# ---- palimpsest quickstart -----------------------------------------------------------------------------------


def quickstart(
    method: Annotated[
        str | None,
        typer.Argument(help=f"One of {', '.join(quickstarts())}; default: memagent; with --resume a run."),
    ] = None,
    settings: Overrides = None,
    model: Annotated[
        str | None,
        typer.Option(help="A pretrained model, folder or hub id; the default method is then memagent-smollm2."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; default: 0.")] = None,
    out: Annotated[Path | None, OUTPUT(help="Run folder; default: runs/quickstart.")] = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
    dry_run: DryRun = False,
) -> None:
    """Train an agent on this machine's CPU, evaluate it beyond its training length, write a report.

    Takes minutes on two cores, without a GPU or a network. Ends with a table; the page is OUT/report.html, the figures
    are in OUT/summary.json.

    \b
    Examples:
      palimpsest quickstart
      palimpsest quickstart memagent --seed 1 --out runs/seed-1
      palimpsest quickstart train.max_steps=20 'evaluation.sizes=[1,16]' --out runs/short
      palimpsest quickstart --resume runs/seed-1
      palimpsest quickstart rememr1 --out runs/recall
      palimpsest quickstart memact --out runs/prune
      palimpsest quickstart edit --out runs/edit
      palimpsest quickstart parallel --out runs/parallel
      palimpsest quickstart lead --out runs/lead
      palimpsest quickstart --model HuggingFaceTB/SmolLM2-135M-Instruct
    """
    from palimpsest.app.config_resolution import check_quickstart

    method, settings = _method_and_settings(method, settings or [])
    if model is not None:
        method, settings = method or PRETRAINED, [f"model.path={model}", *settings]
    if not resume:
        check_quickstart(method or "memagent")
    if dry_run:
        from palimpsest.app.datasets.textworld_games import missing_games
        from palimpsest.app.quickstart.quickstart_plan import Grid, resolve_quickstart

        plan = resolve_quickstart(method, settings, seed=seed, out=out, resume=resume)
        if (folder := missing_games(plan.config)) is not None:
            typer.echo(f"{folder} does not exist: the quickstart makes its games first; nothing else was checked")
            return
        grid = Grid(plan.config)
        for point in grid.points:
            grid.problems(point)  # raises ConfigError, DataError
        print_plan(plan, force)
        return
    with resuming(resumed(_folder(method, out, resume), force=force)):
        Terminal().message("loading the model")
        from palimpsest.app.quickstart.quickstart_run import quickstart as run

        done = run(method, settings, seed=seed, out=out, resume=resume, force=force)
    _show(done, json=json)


def _method_and_settings(method: str | None, settings: list[str]) -> tuple[str | None, list[str]]:
    """Method and keys to change; without a method the first word is a key.

    >>> _method_and_settings("train.max_steps=2", ["seed=1"]), _method_and_settings("rememr1", [])
    ((None, ['train.max_steps=2', 'seed=1']), ('rememr1', []))
    """
    if method and "=" in method and not os.path.isdir(method):
        return None, [method, *settings]
    return method, settings


def _folder(method: str | None, out: Path | None, resume: bool) -> Path:
    """The run's folder; with --resume the first word may name it."""
    return Path(method) if resume and method and os.path.isdir(method) else out or Path("runs/quickstart")


def _show(done: Quickstart, *, json: bool) -> None:
    if not done.finished:
        again = resume_command(done.run)
        Terminal().message(f"stopped after step {done.run.steps} of {done.run.folder}; resume with {again}")
        return
    if json:
        typer.echo(done.report.with_name("summary.json").read_text("utf-8"), nl=False)
        return
    results = done.results
    assert results is not None
    points = results.points
    columns = ["accuracy in %, 95% interval", *map(results.heading, points)]
    rows = [
        [results.label(name), *(f"{percent(row[p].accuracy.mean)}  {interval(row[p].accuracy)}" for p in points)]
        for name, row in results.cells.items()
    ]
    cost = results.grid.axis.cost.replace(" processed", "")
    tokens = [
        [f"{cost}, {label}", *(f"{row[p].tokens_per_document:,.0f}" for p in points)] for label, row in _costs(results)
    ]
    from palimpsest.evaluation.summary import cost_columns

    names = [name for name in cost_columns(results.cells[results.grid.agent].values()) if name != "computed"]
    more = [
        [f"{name}, {label}", *(cost_text(row[p].costs.get(name)) for p in points)]
        for name in names
        for label, row in _costs(results)
    ]
    stdout().print(table("", columns, [*rows, *tokens, *more]))
    for note in results.fewer:
        Terminal().message(note)
    time_taken = f"{results.wall_s / 60:.1f} minutes in this call"
    if (copied := results.copied()) is not None:
        name, (before, after) = copied
        time_taken = f"{name}: {percent(before)}% before, {percent(after)}% after; {time_taken}"
    Terminal().message(time_taken)
    Terminal().message(f"{done.report}, {done.report.with_name('summary.json')}")


def _costs(results: Results) -> list[tuple[str, Mapping[int, EvalSummary]]]:
    """The players whose tokens the table shows: the agent, or all if tokens don't follow from the size."""
    if results.grid.axis.reads:
        return [("agent", results.cells[results.grid.agent])]
    return [(results.label(name), row) for name, row in results.cells.items()]
