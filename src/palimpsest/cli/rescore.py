"""`palimpsest rescore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.text.printable import printable

if TYPE_CHECKING:
    from palimpsest.jobs.rescoring import Rescoring


def rescore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What palimpsest eval --out wrote.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A dotted key of reward: reward.name=f1.")
    ] = None,
    errata: Annotated[
        Path | None, typer.Option(help="JSON list of known errors of the data; both scores are printed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the folder under DIR/rescored; default: the reward's.")] = None,
) -> None:
    """Grade an evaluation's answers anew, without its model; the new grades stand beside the old ones.

    What is there stays as it is: DIR/rescored/NAME is an evaluation of its own, which palimpsest compare takes.

    \b
    Examples:
      palimpsest rescore evals/first --set reward.name=f1
      palimpsest rescore evals/first --set reward.name=boxed --set reward.strict=true --name published
      palimpsest rescore evals/first --errata errata.json
    """
    from palimpsest.cli.show import stdout, table
    from palimpsest.jobs.rescoring import rescore as rescore_folder

    done = rescore_folder(folder, settings or (), errata=errata, name=name)
    columns = ["", "problems", "ungraded", "logged", done.reward.name, "95%"]
    rows = _rows(done)
    if done.beside.errata:
        columns += ["corrected", "95%", "of"]
    console = stdout()
    console.print(table(str(folder), columns, rows))
    for line in done.told:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    typer.echo(str(done.out), err=True)


def _rows(done: Rescoring) -> list[list[str]]:
    from palimpsest.cli.show import interval, percent

    rows = []
    fixed = {summary.name: summary for summary in done.beside.corrected}
    for old, new in zip(done.before, done.summaries, strict=True):
        row = [new.name, str(new.problems), str(new.ungraded), percent(old.accuracy.mean)]
        row += [percent(new.accuracy.mean), interval(new.accuracy)]
        if done.beside.errata and (own := fixed.get(new.name)):
            row += [percent(own.accuracy.mean), interval(own.accuracy), str(own.problems)]
        elif done.beside.errata:
            row += ["–", "–", "0"]
        rows.append(row)
    return rows
