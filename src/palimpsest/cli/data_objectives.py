"""`palimpsest data objectives`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force, Out, numbers, tell_made


def objectives(
    source: Annotated[list[Path], typer.Option(help="Question file of any known format; may be repeated.")],
    out: Out,
    objectives: Annotated[str, typer.Option(help="Questions a problem asks: a file for each number.")] = "2,4,6,8",
    documents: Annotated[
        int | None, typer.Option(min=1, help="On one context of so many; without it, by search.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Problems of each size; all there are without it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of who is asked with whom, distractors and places.")] = 0,
    force: Force = False,
) -> None:
    """Combine the questions of files into problems of several, to be searched for or asked of one long document.

    \b
    Examples:
      palimpsest data objectives --source hotpot_dev.json --objectives 2,4,6,8 --n 200 --out sets/several
      palimpsest data objectives --source hotpot_dev.json --objectives 3 --documents 100 --out sets/three
    """
    from palimpsest.jobs.objectives import make_objectives
    from palimpsest.progress.terminal import Terminal

    sizes = numbers("--objectives", "numbers of questions", objectives)
    made = make_objectives(
        source, sizes, out=out, documents=documents, count=n, seed=seed, force=force, progress=Terminal()
    )
    tell_made(made)
