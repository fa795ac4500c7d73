"""`palimpsest rescore`: new grades for the answers of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.app.evaluate.rescoring import Rescoring


def rescore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What palimpsest eval --out wrote.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A dotted key of reward: reward.name=f1.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the folder under DIR/rescored; default: the reward's.")] = None,
) -> None:
    """Grade an evaluation's answers anew, without its model; the new grades stand beside the old ones.

    What is there stays as it is: DIR/rescored/NAME is an evaluation of its own, which palimpsest compare takes.

    \b
    Examples:
      palimpsest rescore evals/first --set reward.name=f1
      palimpsest rescore evals/first --set reward.name=boxed --set reward.strict=true --name published
    """
    from palimpsest.app.evaluate.rescoring import rescore as rescore_folder
    from palimpsest.cli.output import stdout, table

    done = rescore_folder(folder, settings or (), name=name)
    columns = ["", "problems", "ungraded", "logged", done.reward.name, "95%"]
    console = stdout()
    console.print(table(str(folder), columns, _rows(done)))
    for line in done.told:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    typer.echo(str(done.out), err=True)


def _rows(done: Rescoring) -> list[list[str]]:
    from palimpsest.cli.output import interval, percent

    rows = []
    for old, new in zip(done.before, done.summaries, strict=True):
        row = [new.name, str(new.problems), str(new.ungraded), percent(old.accuracy.mean)]
        rows.append([*row, percent(new.accuracy.mean), interval(new.accuracy)])
    return rows
