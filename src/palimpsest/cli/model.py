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
    from palimpsest.jobs.models import make_base_model
    from palimpsest.progress.terminal import Terminal

    make_base_model(out, seed=seed, force=force, progress=Terminal())


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
    from palimpsest.cli.show import stdout
    from palimpsest.config.load import split_override
    from palimpsest.jobs.models import check as check_contract

    findings = check_contract(policy, dict(split_override(setting) for setting in settings or ()))
    console = stdout()
    for finding in findings:
        mark = "[green]ok   [/green]" if finding.passed else "[red]FAILS[/red]"
        console.print(f"{mark} ", end="")
        console.print(f"{finding.name}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
    failed = sum(not finding.passed for finding in findings)
    console.print(f"{len(findings) - failed} of {len(findings)} points hold", highlight=False)
    raise typer.Exit(int(failed > 0))
