"""`palimpsest base-model` and `palimpsest check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force


def base_model(
    out: Annotated[Path, typer.Option(help="Folder to write the Hugging Face model to.")],
    seed: Annotated[int, typer.Option(help="Seed of initialisation and data.")] = 0,
    force: Force = False,
) -> None:
    """Make the embedded base model again from scratch.

    \b
    Example:
      palimpsest base-model --out my-base-model
      palimpsest quickstart memagent model.path=my-base-model
    """
    from palimpsest.jobs.models import run_base_model

    run_base_model(out, seed=seed, force=force)


def check(
    policy: Annotated[str, typer.Argument(help="my_module:MyPolicy, or a shipped policy.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the policy.")
    ] = None,
) -> None:
    """Play a memory policy against the contract and say in words what it breaks; exits with 1 if anything.

    \b
    Examples:
      palimpsest check my_module:MyPolicy
      palimpsest check overwrite --set chunk_size=48
    """
    from palimpsest.jobs.models import run_check

    raise typer.Exit(run_check(policy, tuple(settings or ())))
