"""`palimpsest data`: what is in a data file, and data sets that are made."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli import data_build
from palimpsest.cli.options import Columns, named_columns


class MissingGold(StrEnum):
    refuse = "refuse"
    skip = "skip"


OnMissingGold = Annotated[
    MissingGold, typer.Option(help="What becomes of a row whose gold paragraph isn't among its own.")
]

app = typer.Typer(help="Look into data files, make data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Look into data files, make data sets."""


@app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(help="A data file of any format that training and evaluation read.")],
    documents: Annotated[int | None, typer.Option(min=1, help="Assemble contexts of so many documents first.")] = None,
    corpus: Annotated[str | None, typer.Option(help="File whose paragraphs join the distractors.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    format: Annotated[str | None, typer.Option(help="By name, or my_module:MyFormat; default: by columns.")] = None,
    columns: Columns = None,
    on_missing_gold: OnMissingGold = MissingGold.refuse,
) -> None:
    """Show format, lengths, golds, evidence positions and one worked sample of a data file.

    \b
    Examples:
      palimpsest data inspect hotpot_dev.json
      palimpsest data inspect hotpot_dev.json --documents 50 --limit 20
      palimpsest data inspect faq.csv --map question=q,answers=gold
      palimpsest data inspect faq.xml --format my_module:MyFormat
    """
    from palimpsest.cli.show import stdout
    from palimpsest.data.inspect import inspect_source, render
    from palimpsest.data.problems import Reading
    from palimpsest.data.source import named_format

    named = named_columns(columns, file)
    reading = Reading(named_format(format), corpus, named, on_missing_gold is MissingGold.skip)
    stdout().print(render(inspect_source(file, reading, documents=documents, limit=limit)))


@app.command("assemble")
def assemble(
    file: Annotated[str, typer.Argument(help="HotpotQA, 2WikiMultiHopQA or MuSiQue: questions with their paragraphs.")],
    out: Annotated[Path, typer.Option(help="The eval_{N}.json to write.")],
    documents: Annotated[int, typer.Option(min=1, help="Documents per context.")],
    order: Annotated[str, typer.Option(help="Of the gold paragraphs: any, forward, reverse.")] = "any",
    min_distance: Annotated[int, typer.Option(min=0, help="Documents between gold paragraphs at the least.")] = 0,
    corpus: Annotated[str | None, typer.Option(help="File whose paragraphs join the distractors.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    format: Annotated[str | None, typer.Option(help="By name, or my_module:MyFormat; default: by columns.")] = None,
    columns: Columns = None,
    on_missing_gold: OnMissingGold = MissingGold.refuse,
    seed: Annotated[int, typer.Option(help="Of the draw of distractors and places.")] = 0,
) -> None:
    """Write an evaluation file with MemAgent's and ReMemR1's fields: long contexts, evidence where it is wanted.

    \b
    Examples:
      palimpsest data assemble hotpot_dev.json --documents 200 --limit 128 --out eval_hotpotqa_200.json
      palimpsest data assemble 2wiki_dev.json --documents 400 --order reverse --min-distance 100 \\
        --out eval_2wiki_400_min_distance_100.json
    """
    from palimpsest.data.source import left_out
    from palimpsest.jobs.inspection import assemble_file
    from palimpsest.progress.terminal import Terminal

    written = assemble_file(
        file,
        out=out,
        documents=documents,
        order=order,
        min_distance=min_distance,
        corpus=corpus,
        limit=limit,
        format=format,
        map=named_columns(columns, file),
        on_missing_gold=on_missing_gold.value,
        seed=seed,
    )
    if written.skipped:
        Terminal().message(left_out(written.skipped))
    Terminal().message(f"{out}: {written.count} problems of {documents} documents")


app.command("build")(data_build.build)
