"""`palimpsest train` and `palimpsest sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force, Overrides, Seed

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
    from palimpsest.cli.requests import TrainRequest

    request = TrainRequest.resolve(recipe, overrides, out=out, seed=seed, resume=resume, force=force)
    from palimpsest.cli.jobs.training import run_training  # after the configuration is known to be right

    run_training(request)


def sft(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file: model, optimiser, batch.")],
    records: Annotated[Path, typer.Argument(help="Trajectories: a .jsonl or .jsonl.zst file, or a folder of them.")],
    overrides: Overrides = None,
    min_grade: Annotated[float | None, typer.Option(help="Only episodes with a grade of at least this.")] = None,
    out: RunOut = None,
    resume: Resume = False,
    force: Force = False,
    seed: Seed = None,
) -> None:
    """Supervised cold start on recorded or scripted trajectories.

    Segments and masks are those of training with rewards: every sampled token is learnt once, in its context.

    \b
    Examples:
      palimpsest sft memagent-quickstart runs/first/trajectories --out runs/cold-start
      palimpsest sft memagent-quickstart runs/first/trajectories --min-grade 1 train.steps=50
      palimpsest sft my_recipe.yaml scripted.jsonl optim.learning_rate=1e-5
    """
    from palimpsest.cli.requests import TrainRequest

    request = TrainRequest.resolve(recipe, overrides, out=out, seed=seed, resume=resume, force=force)
    from palimpsest.cli.jobs.training import run_sft  # after the configuration is known to be right

    run_sft(request, records, min_grade)
