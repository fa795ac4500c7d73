"""`palimpsest serve` and `palimpsest retrieval`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import Overrides
from palimpsest.errors import ConfigError


def serve(
    model: Annotated[
        str, typer.Argument(help="`embedded`, a run, which brings its configuration, a Hugging Face folder or hub id.")
    ],
    overrides: Overrides = None,
    policy: Annotated[
        str | None, typer.Option(help="A shipped policy, or my_module:MyPolicy; default: the run's, else overwrite.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address; other than loopback needs --api-key-env.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8400,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the key that clients have to send.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder for episodes; default: palimpsest/serve in the user's state.")
    ] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep nothing on disk.")] = False,
    engine: Annotated[
        str, typer.Option(metavar="URL", help="`embedded`, or an OpenAI-compatible endpoint that has MODEL, as vLLM's.")
    ] = "embedded",
    engine_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds that one's key.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Of the endpoint's model, a folder or hub id; default: what MODEL names.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes that run at once.")] = 64,
    queue: Annotated[int, typer.Option(min=0, help="Episodes that may wait; beyond that requests get 429.")] = 256,
    served_model_name: Annotated[
        str, typer.Option(metavar="NAME", help="The model that clients ask for.")
    ] = "palimpsest",
    request_log: Annotated[
        bool, typer.Option("--request-log/--no-request-log", help="A line on stderr for each request.")
    ] = True,
    ignore_unsupported: Annotated[
        bool,
        typer.Option(
            "--ignore-unsupported", help="Ignore parameters that can't be followed, and name them in a header."
        ),
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A page that may ask from a browser, https://chat.example; repeatable."),
    ] = None,
    drain_seconds: Annotated[int, typer.Option(min=0, help="For running requests, once SIGTERM came.")] = 30,
) -> None:
    """Serve a memory agent to every client of OpenAI's interface, until SIGTERM.

    A document of any length comes as a file of the message, between tags or under a label in
    the user's or the system's message, as earlier messages, or with its question in one message; the reply names the
    rule that was used.

    \b
    Examples:
      palimpsest serve runs/quickstart
      palimpsest serve Qwen/Qwen3-4B --policy recall chunk_size=4096 --port 8500
      palimpsest serve Qwen/Qwen3-4B --engine http://127.0.0.1:8000/v1
      KEY=... palimpsest serve runs/first --host 0.0.0.0 --api-key-env KEY --store /var/lib/palimpsest
    """
    from palimpsest.app.agent.serve_agent import Service, default_store, serve_agent
    from palimpsest.app.config_resolution import Agent, Remote
    from palimpsest.servers.openai.agent_app import ServerOptions
    from palimpsest.servers.openai.served_episodes import ServerLimits

    if no_store and store is not None:
        raise ConfigError(f"--store {store}: --no-store keeps nothing; give one of the two")
    token = None if api_key_env is None else os.environ.get(api_key_env)
    if api_key_env is not None and not token:
        raise ConfigError(
            f"--api-key-env {api_key_env}: that environment variable is empty or isn't set; put the key there"
        )
    remote = Remote.named(None if engine == "embedded" else engine, engine_key_env, tokenizer)
    agent = Agent(model, policy, None, overrides or [], 0, remote)
    for line in agent.notes():
        typer.echo(f"note: {line}", err=True)
    folder = None if no_store else store or default_store()
    storage = "nothing is kept on disk" if folder is None else f"episodes are kept in {folder}"
    limits = ServerLimits(running=concurrency, waiting=queue)
    first = iter([storage])

    def announce(line: str) -> None:
        for note in first:  # once it is true
            typer.echo(note, err=True)
        typer.echo(line)
        sys.stdout.flush()

    options = ServerOptions(request_log, ignore_unsupported, tuple(cors_origin or ()))
    service = Service(host, port, token, folder, drain_seconds, limits, served_model_name, options)
    serve_agent(agent, service, announce)


# ---- palimpsest retrieval ------------------------------------------------------------------------------------


retrieval_app = typer.Typer(help="Search over a corpus as a service.", no_args_is_help=True, rich_markup_mode=None)


@retrieval_app.callback()
def retrieval_group() -> None:
    """Search over a corpus as a service."""


@retrieval_app.command("serve")
def serve_retrieval(
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
    from palimpsest.progress.displays import Terminal
    from palimpsest.servers.retrieval_server import Address, Dense, serve_corpus

    changes = {"pooling": pooling, "query_prefix": query_prefix, "passage_prefix": passage_prefix}
    dense = Dense(encoder, preset, device, changes | {"max_tokens": max_tokens})
    address = Address(host, port, token)
    serve_corpus(corpus, index, backend, dense, address, progress=Terminal(), on_ready=_print_line)


def _print_line(line: str) -> None:
    """The address is the one line on stdout."""
    typer.echo(line)
    sys.stdout.flush()
