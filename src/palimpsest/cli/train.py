"""`palimpsest train`, `sft` and `quickstart`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import (
    INPUT,
    OUTPUT,
    DryRun,
    Force,
    Json,
    Overrides,
    Seed,
    interval,
    numbers,
    on_gpus,
    percent,
    resumed,
    resuming,
    stdout,
    table,
)
from palimpsest.cli.plan import PRICE, Gpus, Nodes, show_plan
from palimpsest.cli.recipes import print_recipes_of
from palimpsest.config.load import PRETRAINED, quickstarts
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.runs.resume_rules import origin_of, resume_command
from palimpsest.text.display_text import printable, visible
from palimpsest.training.supervised.imitation_source import Imitated

if TYPE_CHECKING:
    from palimpsest.app.quickstart.quickstart_results import Results
    from palimpsest.app.quickstart.quickstart_run import Quickstart
    from palimpsest.app.resume import ResolvedRun, RunRequest
    from palimpsest.evaluation.summary import EvalSummary


Resume = Annotated[
    bool, OUTPUT("--resume", help="Resume a run from its newest checkpoint; needs only the run's folder.")
]
RecipeOrRun = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help="A shipped recipe or a YAML file; with --resume a run's folder.")
]
RunOut = Annotated[Path | None, OUTPUT("--out", help="Run folder; default: runs/RECIPE-seedS.")]


def train(
    recipe: RecipeOrRun = None,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    seed: Seed = None,
    gpus: Gpus = None,
    nodes: Nodes = 1,
    dry_run: DryRun = False,
) -> None:
    """Train an agent with reinforcement learning.

    Settings are KEY=VALUE after the recipe; `palimpsest recipes keys` lists them. --gpus N adds those of the fastest
    layout that fits, as `palimpsest plan` predicts, around yours. The run folder gets the resolved configuration first,
    as config.yaml. SIGINT, SIGTERM or SIGHUP finish the current step, save and exit with 0; a
    second signal exits immediately.

    \b
    Examples:
      palimpsest train memagent-quickstart --out runs/first
      palimpsest train memagent-quickstart train.max_steps=200 optim.learning_rate=1e-4 --seed 1
      palimpsest train my_recipe.yaml data.train_files=hotpot_train.json data.documents=20 --dry-run
      palimpsest train memagent-7b --gpus 8 --out runs/memagent-7b
      palimpsest train memagent                 (lists the recipes of MemAgent)
      palimpsest train --resume runs/first
    """
    from palimpsest.app.resume import RunRequest, resolve_run

    if print_recipes_of(recipe, "palimpsest train", dry_run=dry_run):
        return
    request = RunRequest(recipe, overrides, seed, out, resume)
    resolved = resolve_run(request if gpus is None else _with_layout(request, gpus, nodes, dry_run=dry_run))
    if dry_run:
        _print_plan(resolved, force, elsewhere=gpus is not None)
        return
    with resuming(resumed(resolved.folder, force=force)):
        Terminal().message(f"loading {resolved.config.model.path}")
        from palimpsest.app.train.training_run import train as train_run  # after the configuration is known to be right

        run = train_run(resolved.config, out=resolved.folder, resume=resolved.resume, force=force)
    again = "" if run.finished else f"; resume with {resume_command(run)}"
    Terminal().message(f"{run.steps} of {run.config.train.max_steps} steps, newest checkpoint {run.checkpoint}{again}")
    _print_summary(run.folder)


def _with_layout(request: RunRequest, gpus: int, nodes: int, *, dry_run: bool) -> RunRequest:
    """`request` with the keys of the best layout; prints the plan."""
    from palimpsest.app.train.training_plan import hardware_for, planned
    from palimpsest.planning.hardware import this_machine

    request, made = planned(request, hardware_for(gpus, nodes, this_machine(), dry_run=dry_run), dry_run=dry_run)
    shown = made.to_json(PRICE, "")
    show_plan({name: shown[name] for name in ("overrides", "memory_gb", "seconds_per_step", "days")})
    return request


def _print_plan(resolved: ResolvedRun, force: bool, *, elsewhere: bool = False) -> None:
    from palimpsest.app.train.training_run import check_run

    rows = check_run(resolved, force=force, elsewhere=elsewhere)
    for name, value in rows.items():
        typer.echo(f"{name:10s} {printable(value)}")
    typer.echo(f"checked{', except for what is missing' if 'missing' in rows else ''}; nothing was started or written")


def _print_summary(folder: Path) -> None:
    """Print the gain, three episodes as text, and the next commands."""
    from palimpsest.app.train.training_summary import REPORT, training_results

    results = training_results(folder)
    lines = [results.gain]
    for episode in results.episodes:
        lines += ["", f"question  {episode.question}"]
        lines += [f"memory    {text}" for text in episode.memories[-6:]]
        lines += [f"answer    {episode.answer}   (gold: {episode.gold}; {episode.grade})"]
    lines += ["", f"{folder / REPORT}", "next:", *(f"  {step}" for step in results.next_steps)]
    for line in lines:
        typer.echo(visible(line).replace("\n", " "))


def sft(
    recipe: RecipeOrRun = None,
    overrides: Overrides = None,
    records: Annotated[
        Path | None,
        INPUT("--from", help="Recorded episodes (a run, its folder, .jsonl[.zst]), or questions with evidence."),
    ] = None,
    min_grade: Annotated[
        str | None, INPUT(help="Of the episodes: the lowest grade, or correct (1); default: all.")
    ] = None,
    best: Annotated[int | None, INPUT(min=1, help="Of the episodes: the best N per problem.")] = None,
    data: Annotated[
        Path | None, INPUT("--data", help="Conversations with tool calls: parquet or JSON with messages and tools.")
    ] = None,
    memory_first: Annotated[
        bool, INPUT("--memory-first", help="In conversations: write a prune's memory before delete_ids.")
    ] = False,
    drop_too_long: Annotated[
        bool, INPUT("--drop-too-long", help="Omit and count conversations that exceed the context.")
    ] = False,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    seed: Seed = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=64, help="GPUs of this machine to train on.")] = None,
) -> None:
    """Fine-tune on recorded or scripted episodes, on conversations with tool calls, or on the recipe's own SFT examples
    (cold_start) without --from and --data.

    Segments and masks are those of reinforcement learning: every sampled token is trained once, in its context. In a
    conversation the assistant messages after its last surviving prune are trained.

    \b
    Examples:
      palimpsest sft rememr1-quickstart --out runs/warm
      palimpsest train rememr1-quickstart model.path=runs/warm cold_start=null
      palimpsest sft memagent-quickstart --from runs/first --min-grade correct --out runs/cold-start
      palimpsest sft memagent-quickstart --from runs/first --min-grade 0.5 --best 2 train.max_steps=50
      palimpsest sft my_recipe.yaml --from scripted.jsonl optim.learning_rate=1e-5
      palimpsest sft my_recipe.yaml --data sft_train.parquet --drop-too-long
      palimpsest sft memact-cold-start --data sft_train.parquet --gpus 8 --out runs/cold-start
      palimpsest sft --resume runs/cold-start
    """
    from palimpsest.app.resume import SFT, RunRequest, resolve_run

    if gpus is not None:
        if resume:
            raise ConfigError("--gpus: a run resumes with its layout; omit --gpus")
        overrides = [*on_gpus(gpus, "nll"), *(overrides or [])]
    resolved = resolve_run(RunRequest(recipe, overrides, seed, out, resume, SFT))
    recorded = origin_of(resolved.folder).detail if resolved.resume else {}
    imitated: Imitated | None
    if recorded and records is None and data is None:
        imitated = Imitated.from_json(recorded)
    else:
        imitated = read_imitated(
            records=records,
            min_grade=min_grade,
            best=best,
            data=data,
            memory_first=memory_first,
            drop_too_long=drop_too_long,
        )
    from palimpsest.app.train import supervised_training as training  # after the configuration is known to be right

    config, folder, shown = resolved.config, resolved.folder, Terminal()
    with resuming(resumed(folder, force=force)):
        finished = training.imitate(config, imitated, folder, resume=resolved.resume, force=force, progress=shown)
    again = f"; resume with {resume_command(folder)}" if finished.interrupted else ""
    steps = (config.cold_start if imitated is None and config.cold_start else config.train).max_steps
    shown.message(f"{finished.step} of {steps} steps, newest checkpoint {finished.checkpoint}{again}")


def read_imitated(
    *,
    records: Path | None,
    min_grade: str | None,
    best: int | None,
    data: Path | None,
    memory_first: bool,
    drop_too_long: bool,
) -> Imitated | None:
    """The data that the options of `sft` name; None: the recipe's SFT examples. Raises ConfigError for options that
    exclude each other."""
    if records is not None and data is not None:
        raise ConfigError("sft: --from RUN (recorded episodes) and --data FILE (conversations) exclude each other")
    if records is None and (min_grade is not None or best is not None):
        raise ConfigError("sft: --min-grade and --best select recorded episodes: add --from RUN")
    if data is None and (memory_first or drop_too_long):
        raise ConfigError("sft: --memory-first and --drop-too-long apply to conversations: add --data FILE")
    if records is None and data is None:
        return None
    return Imitated(records, _min_grade(min_grade or "all"), best, data, memory_first, drop_too_long)


def _min_grade(text: str) -> float | None:
    """
    >>> _min_grade("all"), _min_grade("correct"), _min_grade("0.5")
    (None, 1.0, 0.5)
    """
    if text in ("all", "correct"):
        return None if text == "all" else 1.0
    try:
        least = float(text)
    except ValueError:
        least = math.nan
    if math.isnan(least):
        raise ConfigError(f"--min-grade {text}: expected a number, correct (1) or all")
    return least


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
    seed: Annotated[
        str | None,
        typer.Option(metavar="S[,S...]", help="Seed; several run one after the other, with one report. Default: 0."),
    ] = None,
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
      palimpsest quickstart --model HuggingFaceTB/SmolLM2-135M-Instruct
      palimpsest quickstart memagent --seed 0,1,2 --out runs/three
    """
    from palimpsest.app.config_resolution import check_quickstart

    method, settings = _method_and_settings(method, settings or [])
    if model is not None:
        method, settings = method or PRETRAINED, [f"model.path={model}", *settings]
    seeds = () if seed is None else numbers("--seed", "whole numbers", seed, least=0)
    first, several = (seeds[0] if len(seeds) == 1 else None), (seeds if len(seeds) > 1 else None)
    if not resume or several:
        check_quickstart(method or "memagent")
    if dry_run:
        from palimpsest.app.quickstart.quickstart_plan import resolve_quickstart, resolve_seeds

        if several is None:
            runs = [resolve_quickstart(method, settings, seed=first, out=out, resume=resume)]
        else:
            runs = list(resolve_seeds(method, settings, several, out=out, resume=resume, force=force))
        for resolved in runs:
            _print_plan(resolved, force)
        return
    again = resumed(_folder(method, out, resume), force=force) if several is None else lambda: _RESUME_SEEDS
    with resuming(again):
        Terminal().message("loading the model")
        from palimpsest.app.quickstart.quickstart_run import quickstart as run

        done = run(method, settings, seed=first, seeds=several, out=out, resume=resume, force=force)
    _show(done, json=json)


def _method_and_settings(method: str | None, settings: list[str]) -> tuple[str | None, list[str]]:
    """Method and keys to change; without a method the first word is a key.

    >>> _method_and_settings("train.max_steps=2", ["seed=1"]), _method_and_settings("rememr1", [])
    ((None, ['train.max_steps=2', 'seed=1']), ('rememr1', []))
    """
    if method and "=" in method and not Path(method).is_dir():
        return None, [method, *settings]
    return method, settings


def _folder(method: str | None, out: Path | None, resume: bool) -> Path:
    """The run's folder; with --resume the first word may name it."""
    return Path(method) if resume and method and Path(method).is_dir() else out or Path("runs/quickstart")


_RESUME_SEEDS = "resume with the same command and --resume"


def _show(done: Quickstart, *, json: bool) -> None:
    if not done.finished:
        again = _RESUME_SEEDS if done.seeds else f"resume with {resume_command(done.run)}"
        Terminal().message(f"stopped after step {done.run.steps} of {done.run.folder}; {again}")
        return
    if json:
        typer.echo(done.report.with_name("summary.json").read_text("utf-8"), nl=False)
        return
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
    for note in results.fewer:
        Terminal().message(note)
    time_taken = f"{results.wall_s / 60:.1f} minutes"
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
