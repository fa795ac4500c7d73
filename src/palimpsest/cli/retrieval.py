"""`palimpsest retrieval`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import App, Host, Port, ServerKeyEnv, print_line
from palimpsest.http_services import token_from
from palimpsest.progress.displays import Terminal

app = App(help="Index a corpus and serve search.")


@app.callback()
def retrieval_group() -> None:
    """Index a corpus and serve search."""


DENSE = partial(typer.Option, rich_help_panel="Dense retrieval")
Corpus = Annotated[Path, typer.Argument(help="Passages (JSON, JSON lines, parquet), or HotpotQA, 2Wiki, MuSiQue.")]
Backend = Annotated[str, typer.Option(help="bm25, or dense with --encoder.")]
EncoderName = Annotated[str | None, DENSE("--encoder", help="Encoder: a Hugging Face folder or hub id.")]
Preset = Annotated[str, DENSE(help="e5, bge, plain, or auto (by the encoder's name).")]
Pooling = Annotated[str | None, DENSE(help="mean or first; default: the preset's.")]
QueryPrefix = Annotated[str | None, DENSE(help="Prefix of queries; default: the preset's.")]
PassagePrefix = Annotated[str | None, DENSE(help="Prefix of passages; default: the preset's.")]
MaxTokens = Annotated[int | None, DENSE(min=8, help="Tokens per text; default: 512.")]
Device = Annotated[str, DENSE(help="auto, cpu, cuda or cuda:1.")]


@app.command("serve")
def serve_retrieval(
    corpus: Corpus,
    index: Annotated[Path | None, typer.Option(help="Folder that stores the index; default: a temporary one.")] = None,
    backend: Backend = "bm25",
    encoder: EncoderName = None,
    preset: Preset = "auto",
    pooling: Pooling = None,
    query_prefix: QueryPrefix = None,
    passage_prefix: PassagePrefix = None,
    max_tokens: MaxTokens = None,
    device: Device = "auto",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    server_key_env: ServerKeyEnv = None,
) -> None:
    """Index a corpus and answer POST /retrieve, until SIGTERM.

    \b
    Examples:
      palimpsest retrieval serve passages.jsonl --index indexes/passages
      palimpsest retrieval serve 2wiki_corpus.json --port 8100
      palimpsest retrieval serve passages.jsonl --backend dense --encoder intfloat/e5-base-v2
    """
    from palimpsest.servers.retrieval_server import Address, Dense, serve_corpus

    changes = {"pooling": pooling, "query_prefix": query_prefix, "passage_prefix": passage_prefix}
    dense = Dense(encoder, preset, device, changes | {"max_tokens": max_tokens})
    address = Address(host, port, token_from(server_key_env, "--server-key-env", strip=False))
    serve_corpus(corpus, index, backend, dense, address, progress=Terminal(), on_ready=print_line)


@app.command("index")
def index_corpus(
    corpus: Corpus,
    out: Annotated[Path, typer.Option("--out", help="Folder of the index, the --index of serve.")],
    vectors: Annotated[
        Path | None,
        DENSE(help="Existing vectors of the passages, in their order: .npy, or a flat FAISS index (extra dense)."),
    ] = None,
    backend: Backend = "bm25",
    encoder: EncoderName = None,
    preset: Preset = "auto",
    pooling: Pooling = None,
    query_prefix: QueryPrefix = None,
    passage_prefix: PassagePrefix = None,
    max_tokens: MaxTokens = None,
    device: Device = "auto",
) -> None:
    """Build the index of a corpus, also from existing vectors.

    \b
    Examples:
      palimpsest retrieval index wiki.jsonl --vectors wiki.npy --backend dense --encoder intfloat/e5-base-v2 \\
        --out indexes/wiki
      palimpsest retrieval serve wiki.jsonl --index indexes/wiki --backend dense --encoder intfloat/e5-base-v2
    """
    from palimpsest.servers.retrieval_server import Dense, build_index

    changes = {"pooling": pooling, "query_prefix": query_prefix, "passage_prefix": passage_prefix}
    dense = Dense(encoder, preset, device, changes | {"max_tokens": max_tokens}, vectors)
    count = build_index(corpus, out, backend, dense, progress=Terminal())
    typer.echo(f"{out}: {count:,} passages")
