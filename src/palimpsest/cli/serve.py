"""`palimpsest serve`."""

from __future__ import annotations

import sys
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
from palimpsest.errors import ConfigError
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


# ---- palimpsest serve-openenv --------------------------------------------------------------------------------


def serve_openenv(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file: policy, data, reward, tokenizer.")],
    overrides: Overrides = None,
    host: Annotated[str, SERVER(help="Address; OpenEnv has no keys, so loopback or a closed network.")] = "127.0.0.1",
    port: Port = 8500,
    sessions: Annotated[int, SERVER(min=1, help="Episodes at the same time.")] = 64,
) -> None:
    """Serve a recipe's tasks as an OpenEnv environment, until SIGTERM.

    Each prompt of the policy is an observation, and the action is the model's reply.

    \b
    Examples:
      palimpsest serve-openenv memagent-quickstart
      palimpsest serve-openenv memagent-7b data.train_files=train.parquet --port 8501
    """
    from palimpsest.config.load import load_recipe
    from palimpsest.servers.task_server import Tasks, serve_tasks

    serve_tasks(Tasks.open(load_recipe(recipe, overrides or ())), host, port, sessions, on_ready=print_line)
