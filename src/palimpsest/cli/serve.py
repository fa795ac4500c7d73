"""`palimpsest serve` and `services`."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import (
    SERVER,
    ApiKeyEnv,
    BaseUrl,
    Host,
    ModelName,
    Overrides,
    Policy,
    Port,
    ServerKeyEnv,
    Tokenizer,
    print_line,
)
from palimpsest.config.load import load_recipe
from palimpsest.errors import ConfigError, Interrupted
from palimpsest.http_services import token_from


def serve(
    model: ModelName,
    overrides: Overrides = None,
    policy: Policy = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = None,
    tokenizer: Tokenizer = None,
    host: Host = "127.0.0.1",
    port: Port = 8400,
    server_key_env: ServerKeyEnv = None,
    served_model_name: Annotated[str, SERVER(metavar="NAME", help="Model name in the API.")] = "palimpsest",
    store: Annotated[
        Path | None, SERVER(help="Folder for episodes; default: palimpsest/serve in the user's state folder.")
    ] = None,
    no_store: Annotated[bool, SERVER("--no-store", help="Store nothing on disk.")] = False,
    concurrency: Annotated[int, SERVER(min=1, help="Episodes that run at the same time.")] = 64,
    queue: Annotated[int, SERVER(min=0, help="Episodes that may wait; further requests get 429.")] = 256,
    request_log: Annotated[bool, SERVER("--request-log/--no-request-log", help="Log each request on stderr.")] = True,
    ignore_unsupported: Annotated[
        bool, SERVER("--ignore-unsupported", help="Ignore unsupported parameters and name them in a response header.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        SERVER(metavar="ORIGIN", help="Allowed origin of browser requests, e.g. https://chat.example; repeatable."),
    ] = None,
    drain_seconds: Annotated[int, SERVER(min=0, help="Time for running requests after SIGTERM, in seconds.")] = 30,
) -> None:
    """Serve an agent behind an OpenAI-compatible API, until SIGTERM.

    A document of any length is a file part of the message, text between tags or under a label, earlier messages, or a
    message together with its question. The response names the rule that found it.

    \b
    Examples:
      palimpsest serve runs/quickstart
      palimpsest serve Qwen/Qwen3-4B --policy recall chunk_size=4096 --port 8500
      palimpsest serve Qwen/Qwen3-4B --base-url http://127.0.0.1:8000/v1
      KEY=... palimpsest serve runs/first --host 0.0.0.0 --server-key-env KEY --store /var/lib/palimpsest
    """
    from palimpsest.app.agent.serve_agent import Service, default_store, serve_agent
    from palimpsest.app.config_resolution import Agent
    from palimpsest.servers.openai.agent_app import ServerOptions
    from palimpsest.servers.openai.served_episodes import ServerLimits

    if no_store and store is not None:
        raise ConfigError(f"--store {store} and --no-store exclude each other: omit one")
    token = token_from(server_key_env, "--server-key-env", strip=False)
    agent = Agent(model, policy, None, overrides or [], 0, base_url, api_key_env, tokenizer)
    for line in agent.notes():
        typer.echo(f"note: {line}", err=True)
    folder = None if no_store else store or default_store()
    storage = "nothing is stored on disk" if folder is None else f"episodes are stored in {folder}"
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


# ---- palimpsest services -------------------------------------------------------------------------------------


def services(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")],
    overrides: Overrides = None,
    corpus: Annotated[Path | None, typer.Option(help="Passages for the search service.")] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model of the judge; default: by its name in the recipe.")
    ] = None,
    logs: Annotated[Path, typer.Option(help="Folder for the output of the services.")] = Path("services"),
    show: Annotated[bool, typer.Option("--print", help="Print the commands and start nothing.")] = False,
) -> None:
    """Start the services that a recipe needs, until Ctrl-C: judge, search.

    Prints the command of each service, and the line that trains once all answer. Exits with 1 if you must start one
    yourself. CUDA_VISIBLE_DEVICES selects the GPUs of the judge.

    \b
    Examples:
      palimpsest services memact-7b --print
      CUDA_VISIBLE_DEVICES=7 palimpsest services memact-7b --corpus wiki.jsonl
      palimpsest services memact-7b reward.judge.url=http://127.0.0.1:9000/v1 --judge Qwen/Qwen3-4B --corpus wiki.jsonl
    """
    from palimpsest.app.services import services_of, supervise

    needed = list(services_of(load_recipe(recipe, overrides or [], read_files=False), corpus=corpus, judge=judge))
    if not show:
        needed = [
            replace(service, problem="") if service.problem and service.answers() else service for service in needed
        ]
    for service in needed:
        typer.echo(f"{service.name}: {service.line}" + (f"  # {service.problem}" if service.problem else ""))
    if not needed:
        typer.echo(f"{recipe} needs no service")
    able = [service for service in needed if not service.problem]
    keys = [*(overrides or ()), *(f"{service.key}={service.url}" for service in able)]
    line = shlex.join(["palimpsest", "train", recipe, *dict.fromkeys(keys)])
    if able and not show:
        with suppress(Interrupted):
            supervise(able, logs, print_line, lambda: print_line(f"train: {line}"))
    raise typer.Exit(int(len(able) < len(needed)))
