"""`palimpsest train`, `palimpsest cold-start` and `palimpsest sft`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force, Overrides, Seed
from palimpsest.errors import ConfigError
from palimpsest.imitate.imitated import Imitated
from palimpsest.progress.terminal import Terminal

Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the folder from its last checkpoint.")]
RunOut = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/RECIPE-seedS.")]


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")],
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    seed: Seed = None,
) -> None:
    """Train an agent with reinforcement learning.

    The resolved configuration is written first, to config.yaml in the run folder. SIGINT or SIGTERM finish the
    step, save and exit with 0; a second one exits at once.

    \b
    Examples:
      palimpsest train memagent-quickstart --out runs/first
      palimpsest train memagent-quickstart train.steps=200 optim.learning_rate=1e-4 --seed 1
      palimpsest train memagent-quickstart --out runs/first --resume
      palimpsest train my_recipe.yaml data.source=hotpot_train.json data.documents=20
    """
    from palimpsest.jobs.settings import default_folder, run_config

    config = run_config(recipe, overrides or (), seed=seed, out=out, resume=resume)
    from palimpsest.jobs.training import train as train_run  # after the configuration is known to be right

    folder = out or default_folder(config)
    run = train_run(config, out=folder, resume=resume, force=force)
    again = "" if run.finished else f"; palimpsest train {recipe} --out {folder} --resume goes on"
    Terminal().message(f"{run.steps} of {config.train.steps} steps, newest checkpoint {run.checkpoint}{again}")


def cold_start(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file with a cold_start.")],
    overrides: Overrides = None,
    out: RunOut = None,
    seed: Seed = None,
) -> None:
    """Only the lessons a recipe begins with: what a run with rewards starts from, as a model of its own.

    The model is DIR/cold-start/checkpoints/step-N. Run again, it goes on where it was.

    \b
    Examples:
      palimpsest cold-start rememr1-quickstart --out runs/lessons
      palimpsest train rememr1-quickstart model.path=runs/lessons/cold-start/checkpoints/step-000400 cold_start=null
      palimpsest cold-start memact-quickstart model.path=embedded 'cold_start={steps: 900}' --out runs/calls
    """
    from palimpsest.jobs.settings import default_folder, run_config

    config = run_config(recipe, overrides or (), seed=seed)
    from palimpsest.jobs.cold_start import cold_start as learn

    finished = learn(config, out or default_folder(config), progress=Terminal())
    assert config.cold_start is not None
    again = "; the same command goes on" if finished.interrupted else ""
    Terminal().message(f"{finished.step} of {config.cold_start.steps} steps, {finished.checkpoint}{again}")


def sft(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file: model, optimiser, batch.")],
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
    """
    from palimpsest.jobs.settings import default_folder, run_config

    imitated = read_imitated(
        records=records,
        keep=keep,
        per_problem=per_problem,
        data=data,
        memory_first=memory_first,
        drop_too_long=drop_too_long,
    )
    config = run_config(recipe, overrides or (), seed=seed, out=out, resume=resume)
    from palimpsest.jobs.imitation import imitate  # after the configuration is known to be right

    folder = out or default_folder(config)
    finished = imitate(config, imitated, folder, resume=resume, force=force, progress=Terminal())
    Terminal().message(f"{finished.step} of {config.train.steps} steps, newest checkpoint {finished.checkpoint}")


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
