"""`palimpsest data`: what is in a data file."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Look into data files.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Look into data files."""


@app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(help="A data file of any format that training and evaluation read.")],
    documents: Annotated[int | None, typer.Option(min=1, help="Assemble contexts of so many documents first.")] = None,
    corpus: Annotated[str | None, typer.Option(help="File whose paragraphs join the distractors.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
) -> None:
    """Show format, lengths, golds, evidence positions and one worked sample of a data file.

    \b
    Examples:
      palimpsest data inspect hotpot_dev.json
      palimpsest data inspect hotpot_dev.json --documents 50 --limit 20
    """
    from palimpsest.cli.jobs.inspection import run_inspect

    run_inspect(file, documents=documents, corpus=corpus, limit=limit)
