"""`palimpsest new`: files to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    kind: Annotated[str, typer.Argument(help="policy, tool or reward.")],
    name: Annotated[str, typer.Argument(help="Of the module, e.g. my_policy.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path(),
) -> None:
    """Write a policy, tool or reward to begin with: the file, a recipe that trains it, a test.

    It learns with the model inside the package, in minutes on a CPU, before you change anything.

    \b
    Examples:
      palimpsest new policy my_policy
      palimpsest new tool my_tool --out tools
      palimpsest new reward my_reward
    """
    from palimpsest.jobs.scaffold import class_name, write_scaffold

    module, recipe, test = write_scaffold(kind, name, out)
    typer.echo("\n".join(map(str, (module, recipe, test))))
    steps = [] if out == Path() else [f"cd {out}"]
    if kind != "tool":
        steps.append(f"palimpsest check {name}:{name if kind == 'reward' else class_name(name)}")
    steps += [f"python -m pytest {test.name}", f"palimpsest train {recipe.name} --out runs/{name}"]
    typer.echo("next:\n" + "\n".join(f"  {step}" for step in steps))
