"""`palimpsest train`, `palimpsest cold-start` and `palimpsest sft`."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from palimpsest.cli.going_on import RERUN, going_on, resumed
from palimpsest.cli.options import Force, Overrides, Seed
from palimpsest.errors import ConfigError
from palimpsest.imitate.imitated import Imitated
from palimpsest.progress.terminal import Terminal
from palimpsest.runs.origin import origin_of, resume_command

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
      palimpsest train memagent-quickstart train.steps=200 optim.learning_rate=1e-4 --seed 1
      palimpsest train --resume runs/first
      palimpsest train my_recipe.yaml data.source=hotpot_train.json data.documents=20
    """
    from palimpsest.jobs.resuming import asked_run

    asked = asked_run(recipe, overrides, seed=seed, out=out, resume=resume)
    with going_on(resumed(asked.folder, force=force)):
        Terminal().message(f"loading {asked.config.model.path}")
        from palimpsest.jobs.training import train as train_run  # after the configuration is known to be right

        run = train_run(asked.config, out=asked.folder, resume=asked.resume, force=force)
    again = "" if run.finished else f"; {resume_command(run)} goes on"
    Terminal().message(f"{run.steps} of {run.config.train.steps} steps, newest checkpoint {run.checkpoint}{again}")
    _tell(run.folder)


def _tell(folder: Path) -> None:
    """What was gained, three episodes in words, what to do next."""
    from palimpsest.cli.show import stdout
    from palimpsest.jobs.gains import REPORT, training_results
    from palimpsest.report.report import visible

    results, console = training_results(folder), stdout()
    lines = [results.gain]
    for episode in results.episodes:
        lines += ["", f"question  {episode.question}"]
        lines += [f"memory    {text}" for text in episode.memories[-6:]]
        lines += [f"answer    {episode.answer}   (gold: {episode.gold}; {episode.grade})"]
    lines += ["", f"{folder / REPORT}", "next:", *(f"  {step}" for step in results.next_steps)]
    for line in lines:
        console.print(visible(line).replace("\n", " "), markup=False, highlight=False, soft_wrap=True)


def cold_start(
    recipe: RecipeOrRun = None,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    seed: Seed = None,
) -> None:
    """Only the lessons a recipe begins with: what a run with rewards starts from, as a model of its own.

    The model is DIR/cold-start/checkpoints/step-N. Run again, it goes on where it was.

    \b
    Examples:
      palimpsest cold-start rememr1-quickstart --out runs/lessons
      palimpsest cold-start --resume runs/lessons
      palimpsest train rememr1-quickstart model.path=runs/lessons/cold-start/checkpoints/step-000400 cold_start=null
      palimpsest cold-start memact-quickstart model.path=embedded 'cold_start={steps: 900}' --out runs/calls
    """
    from palimpsest.jobs.resuming import asked_cold_start

    asked = asked_cold_start(recipe, overrides, seed=seed, out=out, resume=resume)
    from palimpsest.jobs.cold_start import cold_start as learn

    with going_on(lambda: RERUN):
        finished = learn(asked.config, asked.folder, progress=Terminal())
    assert asked.config.cold_start is not None
    again = f"; palimpsest cold-start --resume {quote(str(asked.folder))} goes on" if finished.interrupted else ""
    Terminal().message(f"{finished.step} of {asked.config.cold_start.steps} steps, {finished.checkpoint}{again}")


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
    """Supervised cold start: on recorded or scripted episodes, or on conversations with tool calls.

    Segments and masks are those of training with rewards: every sampled token is learnt once, in its context. Of a
    conversation the assistant messages after its last surviving prune are learnt.

    \b
    Examples:
      palimpsest sft memagent-quickstart --from runs/first --keep correct --out runs/cold-start
      palimpsest sft memagent-quickstart --from runs/first --keep 0.5 --per-problem 2 train.steps=50
      palimpsest sft my_recipe.yaml --from scripted.jsonl optim.learning_rate=1e-5
      palimpsest sft my_recipe.yaml --data sft_train.parquet --drop-too-long
      palimpsest sft --resume runs/cold-start
    """
    from palimpsest.jobs.resuming import SFT, asked_run

    asked = asked_run(recipe, overrides, command=SFT, seed=seed, out=out, resume=resume)
    begun = origin_of(asked.folder).detail if asked.resume else {}
    if begun and records is None and data is None:
        imitated = Imitated.from_json(begun)
    else:
        imitated = read_imitated(
            records=records,
            keep=keep,
            per_problem=per_problem,
            data=data,
            memory_first=memory_first,
            drop_too_long=drop_too_long,
        )
    from palimpsest.jobs.imitation import imitate  # after the configuration is known to be right

    with going_on(resumed(asked.folder, force=force)):
        finished = imitate(asked.config, imitated, asked.folder, resume=asked.resume, force=force, progress=Terminal())
    again = f"; {resume_command(asked.folder)} goes on" if finished.interrupted else ""
    steps = asked.config.train.steps
    Terminal().message(f"{finished.step} of {steps} steps, newest checkpoint {finished.checkpoint}{again}")


def read_imitated(
    *,
    records: Path | None,
    keep: str | None,
    per_problem: int | None,
    data: Path | None,
    memory_first: bool,
    drop_too_long: bool,
) -> Imitated:
    """What the options of `sft` ask for. Raises ConfigError for options that have no meaning together."""
    if (records is None) == (data is None):
        raise ConfigError("palimpsest sft: give --from RUN (recorded episodes) or --data FILE (conversations), one")
    if records is None and (keep is not None or per_problem is not None):
        raise ConfigError(
            "--keep and --per-problem choose recorded episodes: they need --from, conversations have no grade"
        )
    if data is None and (memory_first or drop_too_long):
        raise ConfigError("--memory-first and --drop-too-long are about conversations: they need --data")
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
