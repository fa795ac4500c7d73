"""`palimpsest data filter`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Force


def filter(
    file: Annotated[Path, typer.Argument(help="Question file of any known format.")],
    endpoint: Annotated[str, typer.Option(help="OpenAI-compatible, such as http://127.0.0.1:8000/v1.")],
    model: Annotated[str, typer.Option(help="Its name at the endpoint.")],
    out: Annotated[Path, typer.Option(help="File for the rows that stay.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Times each question is asked.")] = 2,
    temperature: Annotated[float, typer.Option(min=0, help="Of the replies.")] = 1.0,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the key.")] = None,
    force: Force = False,
) -> None:
    """Leave out the questions that a model answers without their document.

    \b
    Example:
      palimpsest data filter hotpot_train.json --endpoint http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B \\
        --out filtered.jsonl
    """
    from palimpsest.jobs.closed_book import endpoint_of, filter_known
    from palimpsest.progress.terminal import Terminal

    asked = endpoint_of(url=endpoint, model=model, api_key_env=api_key_env, temperature=temperature)
    done = filter_known(file, asked, out=out, asks=n, force=force, progress=Terminal())
    typer.echo(f"{out}: {done.kept:,} questions; left out, answered without the document: {done.known:,}")
    if done.unanswered:
        typer.echo(f"{done.unanswered:,} got no reply and stay: {done.failures[0]}", err=True)
