"""`palimpsest retrieval`: search over a corpus as a service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Search over a corpus as a service.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Search over a corpus as a service."""


@app.command("serve")
def serve(
    corpus: Annotated[Path, typer.Option(help="Passages (JSON, JSON lines, parquet), or HotpotQA, 2Wiki, MuSiQue.")],
    index: Annotated[
        Path | None, typer.Option(help="Folder that keeps the index; without it one for this run.")
    ] = None,
    backend: Annotated[str, typer.Option(help="bm25, or dense with --encoder.")] = "bm25",
    encoder: Annotated[str | None, typer.Option(help="Dense: Hugging Face folder or hub id.")] = None,
    preset: Annotated[str, typer.Option(help="Dense: e5, bge, plain, or auto by the encoder's name.")] = "auto",
    pooling: Annotated[str | None, typer.Option(help="Dense: mean or first; the preset's unless given.")] = None,
    query_prefix: Annotated[str | None, typer.Option(help="Dense: the preset's unless given.")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="Dense: the preset's unless given.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=8, help="Dense: of a text; 512 unless given.")] = None,
    device: Annotated[str, typer.Option(help="Dense: auto, cpu, cuda or cuda:1.")] = "auto",
    host: Annotated[str, typer.Option(help="Address; other than loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="PALIMPSEST_RETRIEVAL_TOKEN", help="Asked of every request.")
    ] = None,
) -> None:
    """Index a corpus and answer POST /retrieve until SIGTERM.

    \b
    Examples:
      palimpsest retrieval serve --corpus passages.jsonl --index indexes/passages
      palimpsest retrieval serve --corpus 2wiki_corpus.json --port 8100
      palimpsest retrieval serve --corpus passages.jsonl --backend dense --encoder intfloat/e5-base-v2
    """
    from palimpsest.jobs.retrieving import Address, Dense, serve_corpus
    from palimpsest.progress.terminal import Terminal

    changes = {"pooling": pooling, "query_prefix": query_prefix, "passage_prefix": passage_prefix}
    dense = Dense(encoder, preset, device, changes | {"max_tokens": max_tokens})
    address = Address(host, port, token)
    serve_corpus(corpus, index, backend, dense, address, progress=Terminal(), on_ready=_tell)


def _tell(line: str) -> None:
    """The address is the one line on stdout."""
    typer.echo(line)
    sys.stdout.flush()
