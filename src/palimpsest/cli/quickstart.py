"""`palimpsest quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force

METHODS = ("memagent", "rememr1", "memact")


def quickstart(
    method: Annotated[str, typer.Argument(help=f"What to train: {', '.join(METHODS)}.")] = "memagent",
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b=c ...]", help="Recipe keys to change, values as YAML.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/quickstart"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    force: Force = False,
) -> None:
    """Train an agent on this machine's CPU, evaluate it beyond what it was trained on, write a report.

    Minutes on two cores, no GPU, no network. Ends with a table and DIR/report.html; figures in DIR/summary.json.

    \b
    Examples:
      palimpsest quickstart
      palimpsest quickstart memagent --seed 1 --out runs/seed-1
      palimpsest quickstart memagent --seed 1 --out runs/seed-1 --resume
      palimpsest quickstart rememr1 --seed 0 --out runs/recall
      palimpsest quickstart memact --seed 0 --out runs/prune
      palimpsest quickstart memagent train.steps=20 evaluation.multiples=[1,16] --out runs/short
    """
    from palimpsest.errors import ConfigError, nearest

    if method not in METHODS:
        raise ConfigError(f"quickstart {method}: no such method{nearest(method, METHODS)}; known: {', '.join(METHODS)}")
    from palimpsest.jobs.quickstart import run_quickstart

    run_quickstart(method, overrides=tuple(settings or ()), seed=seed, out=out, resume=resume, force=force)
