"""`palimpsest train`, `sft` and `export`."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import (
    INPUT,
    OUTPUT,
    DryRun,
    Force,
    Overrides,
    Seed,
    on_gpus,
    resumed,
    resuming,
)
from palimpsest.cli.plan import PRICE, Gpus, Nodes, show_plan
from palimpsest.cli.recipes import print_recipes_of
from palimpsest.errors import ConfigError
from palimpsest.progress.displays import Terminal
from palimpsest.runs.resume_rules import Imitated, origin_of, resume_command
from palimpsest.text.display_text import printable, visible

if TYPE_CHECKING:
    from palimpsest.app.config_resolution import ResolvedRun, RunRequest
    from palimpsest.app.model_export_job import ExportedModel
    from palimpsest.report.run_reports import TrainingResults
    from palimpsest.runs.driver import Finished


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
    from palimpsest.app.config_resolution import RunRequest, resolve_run

    if print_recipes_of(recipe, "palimpsest train", dry_run=dry_run):
        return
    if gpus is None and nodes > 1:
        raise ConfigError(f"--nodes {nodes}: divides --gpus N over machines; add it")
    request = RunRequest(recipe, overrides, seed, out, resume)
    resolved = resolve_run(request if gpus is None else _with_layout(request, gpus, nodes, dry_run=dry_run))
    if dry_run:
        print_plan(resolved, force, elsewhere=gpus is not None)
        return
    with resuming(resumed(resolved.folder, force=force)):
        Terminal().message(f"loading {resolved.config.model.path}")
        from palimpsest.app.train.training_run import run_training  # after the configuration is known to be right

        finished, results = run_training(resolved, force=force, progress=Terminal())
    _show_end(finished, resolved.folder, resolved.config.train.max_steps)
    _print_summary(resolved.folder, results)


def _show_end(finished: Finished, folder: Path, steps: int) -> None:
    again = f"; resume with {resume_command(folder)}" if finished.interrupted else ""
    Terminal().message(f"{finished.step} of {steps} steps, newest checkpoint {finished.checkpoint}{again}")


def _with_layout(request: RunRequest, gpus: int, nodes: int, *, dry_run: bool) -> RunRequest:
    """`request` with the keys of the best layout; prints the plan."""
    from palimpsest.app.train.training_plan import hardware_for, planned
    from palimpsest.planning.hardware import this_machine

    request, made = planned(request, hardware_for(gpus, nodes, this_machine(), dry_run=dry_run), dry_run=dry_run)
    shown = made.to_json(PRICE, "")
    show_plan({name: shown[name] for name in ("overrides", "memory_gb", "seconds_per_step", "days")})
    return request


def print_plan(resolved: ResolvedRun, force: bool, *, elsewhere: bool = False) -> None:
    from palimpsest.app.train.dry_run import check_run

    rows = check_run(resolved, force=force, elsewhere=elsewhere)
    for name, value in rows.items():
        typer.echo(f"{name:10s} {printable(value)}")
    typer.echo(f"checked{', except for what is missing' if 'missing' in rows else ''}; nothing was started or written")


def _print_summary(folder: Path, results: TrainingResults) -> None:
    """Print the gain, three episodes as text, and the next commands."""
    from palimpsest.report.page import REPORT

    lines = [results.gain]
    for episode in results.episodes:
        lines += ["", f"question  {episode.question}"]
        lines += [f"memory    {text}" for text in episode.memories[-6:]]
        gold = f"gold: {episode.gold}; " if episode.gold else ""  # an environment has none
        lines += [f"answer    {episode.answer}   ({gold}{episode.grade})"]
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
    from palimpsest.app.config_resolution import SFT, RunRequest, resolve_run

    if gpus is not None:
        if resume:
            raise ConfigError("--gpus: a run resumes with its layout; omit --gpus")
        overrides = [*on_gpus(gpus, "nll"), *(overrides or [])]
    resolved = resolve_run(RunRequest(recipe, overrides, seed, out, resume, SFT))
    recorded = origin_of(resolved.folder).detail if resolved.resume else {}
    if recorded and not (records or data or min_grade or best or memory_first or drop_too_long):
        imitated: Imitated | None = Imitated.from_json(recorded)
    else:
        imitated = read_imitated(records, min_grade, best, data, memory_first, drop_too_long)
    from palimpsest.app.train import supervised_training as training  # after the configuration is known to be right

    config, folder = resolved.config, resolved.folder
    with resuming(resumed(folder, force=force)):
        finished = training.imitate(config, imitated, folder, resume=resolved.resume, force=force, progress=Terminal())
    _show_end(
        finished, folder, (config.cold_start if imitated is None and config.cold_start else config.train).max_steps
    )


def read_imitated(
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


# ---- palimpsest export ----------------------------------------------------------------------------------------


def export(
    run: Annotated[str, typer.Argument(help="A run's folder, or a model's.")],
    out: Annotated[Path, OUTPUT(help="Folder to write the Hugging Face model to.")],
    step: Annotated[int | None, typer.Option(help="Step of the checkpoint; default: the newest.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; default: unchanged.")] = None,
    untied: Annotated[bool, typer.Option("--untied", help="Write a tied output projection separately (vLLM).")] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="Write only the adapters, not merged.")] = False,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="Evaluation folder whose figures README.md gets too; repeatable.")
    ] = None,
) -> None:
    """Export a checkpoint as a Hugging Face model; adapters are merged.

    Its README.md has the accuracy of every evaluation of these weights in the run's folder. `hf upload` publishes the
    folder on the Hugging Face hub.

    \b
    Examples:
      palimpsest export runs/quickstart --out my-agent
      palimpsest export runs/quickstart --step 40 --dtype bfloat16 --out my-agent
      palimpsest export runs/first --evaluation evals/hotpot --out my-agent
      palimpsest export runs/quickstart --untied --out served
    """
    from palimpsest.app.model_export_job import export as export_model

    warn, places = partial(typer.echo, err=True), evaluation or ()
    _show_export(
        export_model(run, out, step=step, dtype=dtype, untied=untied, adapter=adapter, evaluations=places, warn=warn)
    )


def _show_export(done: ExportedModel) -> None:
    """Print the files and how to load them."""
    after = "" if done.step is None else f" after step {done.step}"
    typer.echo(f"{done.path.resolve()}: the model{after}, {done.size:,} bytes")
    for name, size in done.files.items():
        typer.echo(f"  {size:>15,}  {name}")
    typer.echo("to load it:")
    for program, line in done.loading.items():
        typer.echo(f"  {program:<16}  {line}")
