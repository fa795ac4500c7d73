"""`palimpsest data convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from palimpsest.cli.options import Force


def convert(
    file: Annotated[Path, typer.Argument(help="A data file of any format that training and evaluation read.")],
    to: Annotated[str, typer.Option(help="memagent-parquet, memagent-eval, vime, memact or palimpsest.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    indices_into: Annotated[
        Path | None, typer.Option(help="memagent-eval: contexts as numbers of this file's documents.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Of the file that is read; default: by columns.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Only problems of metadata KEY=VALUE[,VALUE].")] = None,
    force: Force = False,
) -> None:
    """Write a data file in another system's layout, or in ours.

    \b
    Examples:
      palimpsest data convert hotpotqa_train_32k.parquet --to palimpsest --out train.jsonl
      palimpsest data convert mine.jsonl --to vime --out mine-vime.jsonl
      palimpsest data convert all.parquet --to palimpsest --where source=eventqa_65536 --out eventqa_65536.jsonl
    """
    from palimpsest.jobs.converting import convert as convert_file
    from palimpsest.progress.terminal import Terminal

    read: dict[str, Any] = {"indices_into": indices_into, "format": format, "where": where or ()}
    done = convert_file(file, to, out=out, **read, force=force, progress=Terminal())
    typer.echo(f"{out}: {done.problems:,} problems as {to}")
    for what, count in done.dropped.items():
        typer.echo(f"{to} has no place for {what}: dropped of {count:,} problems", err=True)
