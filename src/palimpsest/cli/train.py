"""`palimpsest train`, `sft` and `quickstart`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import Force, Overrides, Seed, going_on, numbers, resumed
from palimpsest.config.load import quickstart_names
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.runs.resume_rules import origin_of, resume_command
from palimpsest.training.supervised.imitation_source import Imitated

if TYPE_CHECKING:
    from palimpsest.app.quickstart.quickstart_results import Results
    from palimpsest.app.quickstart.quickstart_run import Quickstart
    from palimpsest.evaluation.summary import EvalSummary


Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint: --resume RUN needs nothing else.")
]
RecipeOrRun = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help="A shipped recipe or a YAML file; with --resume a run's folder.")
]
RunOut = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/RECIPE-seedS.")]


def train(
    recipe: RecipeOrRun = None,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    seed: Seed = None,
) -> None:
    """Train an agent with reinforcement learning.

    The resolved configuration is written first, to config.yaml in the run folder. SIGINT, SIGTERM or SIGHUP finish
    the step, save and exit with 0; a second one exits at once.

    \b
    Examples:
      palimpsest train memagent-quickstart --out runs/first
      palimpsest train memagent-quickstart train.max_steps=200 optim.learning_rate=1e-4 --seed 1
      palimpsest train --resume runs/first
      palimpsest train my_recipe.yaml data.train_files=hotpot_train.json data.documents=20
    """
    from palimpsest.app.resume import RunRequest, resolve_run

    resolved = resolve_run(RunRequest(recipe, overrides, seed, out, resume))
    with going_on(resumed(resolved.folder, force=force)):
        Terminal().message(f"loading {resolved.config.model.path}")
        from palimpsest.app.train.training_run import train as train_run  # after the configuration is known to be right

        run = train_run(resolved.config, out=resolved.folder, resume=resolved.resume, force=force)
    again = "" if run.finished else f"; {resume_command(run)} goes on"
    Terminal().message(f"{run.steps} of {run.config.train.max_steps} steps, newest checkpoint {run.checkpoint}{again}")
    _print_summary(run.folder)


def _print_summary(folder: Path) -> None:
    """What was gained, three episodes in words, what to do next."""
    from palimpsest.app.train.training_summary import REPORT, training_results
    from palimpsest.cli.options import stdout
    from palimpsest.text.display_text import visible

    results, console = training_results(folder), stdout()
    lines = [results.gain]
    for episode in results.episodes:
        lines += ["", f"question  {episode.question}"]
        lines += [f"memory    {text}" for text in episode.memories[-6:]]
        lines += [f"answer    {episode.answer}   (gold: {episode.gold}; {episode.grade})"]
    lines += ["", f"{folder / REPORT}", "next:", *(f"  {step}" for step in results.next_steps)]
    for line in lines:
        console.print(visible(line).replace("\n", " "), markup=False, highlight=False, soft_wrap=True)


def sft(
    recipe: RecipeOrRun = None,
    overrides: Overrides = None,
    records: Annotated[
        Path | None, typer.Option("--from", help="Recorded episodes: a run, a folder of records, one .jsonl[.zst].")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Of those: all, correct (a grade of 1), or the least grade. Default all.")
    ] = None,
    per_problem: Annotated[int | None, typer.Option(min=1, help="Of those: so many of a problem, the best.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Conversations with tool calls: parquet or JSON with messages, tools.")
    ] = None,
    memory_first: Annotated[
        bool, typer.Option("--memory-first", help="Of those: write a prune's memory before its delete_ids.")
    ] = False,
    drop_too_long: Annotated[
        bool, typer.Option("--drop-too-long", help="Of those: leave out, and count, what the context can't hold.")
    ] = False,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    seed: Seed = None,
) -> None:
    """Supervised cold start: on recorded or scripted episodes, on conversations with tool calls, or on the recipe's
    lessons (cold_start) where neither is given.

    Segments and masks are those of training with rewards: every sampled token is learnt once, in its context. Of a
    conversation the assistant messages after its last surviving prune are learnt.

    \b
    Examples:
      palimpsest sft rememr1-quickstart --out runs/lessons
      palimpsest train rememr1-quickstart model.path=runs/lessons/checkpoints/step-000400 cold_start=null
      palimpsest sft memagent-quickstart --from runs/first --keep correct --out runs/cold-start
      palimpsest sft memagent-quickstart --from runs/first --keep 0.5 --per-problem 2 train.max_steps=50
      palimpsest sft my_recipe.yaml --from scripted.jsonl optim.learning_rate=1e-5
      palimpsest sft my_recipe.yaml --data sft_train.parquet --drop-too-long
      palimpsest sft --resume runs/cold-start
    """
    from palimpsest.app.resume import SFT, RunRequest, resolve_run

    resolved = resolve_run(RunRequest(recipe, overrides, seed, out, resume, SFT))
    recorded = origin_of(resolved.folder).detail if resolved.resume else {}
    imitated: Imitated | None
    if recorded and records is None and data is None:
        imitated = Imitated.from_json(recorded)
    else:
        imitated = read_imitated(
            records=records,
            keep=keep,
            per_problem=per_problem,
            data=data,
            memory_first=memory_first,
            drop_too_long=drop_too_long,
        )
    from palimpsest.app.train import supervised_training as training  # after the configuration is known to be right

    config, folder, done = resolved.config, resolved.folder, Terminal()
    with going_on(resumed(folder, force=force)):
        if imitated is None:
            finished = training.learn_lessons(config, folder, resume=resolved.resume, force=force, progress=done)
        else:
            finished = training.imitate(config, imitated, folder, resume=resolved.resume, force=force, progress=done)
    again = f"; {resume_command(folder)} goes on" if finished.interrupted else ""
    steps = (config.cold_start if imitated is None and config.cold_start else config.train).max_steps
    Terminal().message(f"{finished.step} of {steps} steps, newest checkpoint {finished.checkpoint}{again}")


def read_imitated(
    *,
    records: Path | None,
    keep: str | None,
    per_problem: int | None,
    data: Path | None,
    memory_first: bool,
    drop_too_long: bool,
) -> Imitated | None:
    """What the options of `sft` ask for; None: the recipe's lessons. Raises ConfigError for options that don't go
    together."""
    if records is not None and data is not None:
        raise ConfigError("palimpsest sft: give --from RUN (recorded episodes) or --data FILE (conversations), one")
    if records is None and (keep is not None or per_problem is not None):
        raise ConfigError(
            "--keep and --per-problem choose recorded episodes: they need --from, conversations have no grade"
        )
    if data is None and (memory_first or drop_too_long):
        raise ConfigError("--memory-first and --drop-too-long are about conversations: they need --data")
    if records is None and data is None:
        return None
    return Imitated(records, _least_grade(keep or "all"), per_problem, data, memory_first, drop_too_long)


def _least_grade(keep: str) -> float | None:
    """
    >>> _least_grade("all"), _least_grade("correct"), _least_grade("0.5")
    (None, 1.0, 0.5)
    """
    if keep in ("all", "correct"):
        return None if keep == "all" else 1.0
    try:
        least = float(keep)
    except ValueError:
        least = math.nan
    if math.isnan(least):
        raise ConfigError(f"--keep {keep}: give correct (a grade of 1), all, or the least grade to keep")
    return least


# ---- palimpsest quickstart -----------------------------------------------------------------------------------


def quickstart(
    method: Annotated[
        str | None,
        typer.Argument(
            help=f"What to train: {', '.join(quickstart_names())} (memagent); with --resume the run to go on with."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b=c ...]", help="Recipe keys to change, values as YAML.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw; 0 without it.")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="S,S,...", help="Several seeds, into DIR/seed-S each, with one report in DIR.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/quickstart without it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run, which says itself what it is.")] = False,
    force: Force = False,
) -> None:
    """Train an agent on this machine's CPU, evaluate it beyond what it was trained on, write a report.

    Minutes on two cores, no GPU, no network. Ends with a table and DIR/report.html; figures in DIR/summary.json.

    \b
    Examples:
      palimpsest quickstart
      palimpsest quickstart memagent --seed 1 --out runs/seed-1
      palimpsest quickstart train.max_steps=20 'evaluation.sizes=[1,16]' --out runs/short
      palimpsest quickstart --resume runs/seed-1
      palimpsest quickstart rememr1 --seed 0 --out runs/recall
      palimpsest quickstart memact --seed 0 --out runs/prune
      palimpsest quickstart memagent --seeds 0,1,2 --out runs/three
    """
    from palimpsest.app.config_resolution import check_quickstart

    method, settings = _method_and_settings(method, settings or [])
    several = None if seeds is None else numbers("--seeds", "seeds", seeds, least=0)
    if not resume or several:
        check_quickstart(method or "memagent")
    again = resumed(_folder(method, out, resume), force=force) if several is None else lambda: _RESUME_SEEDS
    with going_on(again):
        Terminal().message("loading the model")
        from palimpsest.app.quickstart.quickstart_run import quickstart as run

        done = run(method, settings, seed=seed, seeds=several, out=out, resume=resume, force=force)
    _show(done)


def _method_and_settings(method: str | None, settings: list[str]) -> tuple[str | None, list[str]]:
    """Method and keys to change: what is given without a method is a key of the default one.

    >>> _method_and_settings("train.max_steps=2", ["seed=1"]), _method_and_settings("rememr1", [])
    ((None, ['train.max_steps=2', 'seed=1']), ('rememr1', []))
    """
    if method and "=" in method and not Path(method).is_dir():
        return None, [method, *settings]
    return method, settings


def _folder(method: str | None, out: Path | None, resume: bool) -> Path:
    """Where the run is: with --resume what is named may be the run itself."""
    return Path(method) if resume and method and Path(method).is_dir() else out or Path("runs/quickstart")


_RESUME_SEEDS = "the same command with --resume continues the seeds"


def _show(done: Quickstart) -> None:
    if not done.finished:
        again = _RESUME_SEEDS if done.seeds else f"{resume_command(done.run)} goes on"
        Terminal().message(f"stopped after step {done.run.steps} of {done.run.folder}; {again}")
        return
    from palimpsest.cli.options import interval, percent, stdout, table

    results = done.results
    assert results is not None
    points = results.points
    interval_of = f", mean of {len(done.seeds)} seeds" if done.seeds else ""
    columns = [f"accuracy in %, 95% interval{interval_of}", *map(results.heading, points)]
    rows = [
        [results.label(name), *(f"{percent(row[p].accuracy.mean)}  {interval(row[p].accuracy)}" for p in points)]
        for name, row in results.cells.items()
    ]
    cost = results.grid.axis.cost.replace(" processed", "")
    tokens = [
        [f"{cost}, {label}", *(f"{row[p].tokens_per_document:,.0f}" for p in points)] for label, row in _costs(results)
    ]
    stdout().print(table("", columns, [*rows, *tokens]))
    time_taken = f"{results.wall_s / 60:.1f} minutes"
    if (copied := results.copied()) is not None:
        name, (before, after) = copied
        time_taken = f"{name}: {percent(before)}% before, {percent(after)}% after; {time_taken}"
    Terminal().message(time_taken)
    Terminal().message(f"{done.report}, {done.report.with_name('summary.json')}")


def _costs(results: Results) -> list[tuple[str, Mapping[int, EvalSummary]]]:
    """Whose tokens the table shows: the agent's, or everybody's where they don't follow from the size."""
    if results.grid.axis.reads:
        return [("agent", results.cells[results.grid.agent])]
    return [(results.label(name), row) for name, row in results.cells.items()]
