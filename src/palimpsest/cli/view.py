"""`palimpsest view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palimpsest.cli.options import OUTPUT, Force, Host, Port, ServerKeyEnv, print_line
from palimpsest.errors import ConfigError
from palimpsest.http_services import token_from
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import counted, printable, size_of


def view(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|EVAL|FILE]...", help="Runs, evaluations, their folders, or records; default: runs."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Load new steps while a run is training.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id to decode episodes with; default: the run's.")
    ] = None,
    export: Annotated[
        Path | None,
        OUTPUT(
            help="Write one file and exit. Forms: .html (opens without a server), .eval (for inspect view), "
            ".jsonl (ATIF), traces.jsonl (for verifiers).",
        ),
    ] = None,
    episodes: Annotated[
        str | None, OUTPUT(metavar="GROUP/ROLLOUT,...", help="Episodes in the file; default: some wrong ones.")
    ] = None,
    step: Annotated[str | None, OUTPUT(help="Step of the episodes; default: the last recorded.")] = None,
    force: Force = False,
    host: Host = "127.0.0.1",
    port: Port = 7800,
    server_key_env: ServerKeyEnv = None,
) -> None:
    """Browse runs, evaluations and episodes in a browser, until SIGINT or SIGTERM.

    Read-only: safe to use while a run is training.

    \b
    Examples:
      palimpsest view runs/quickstart
      palimpsest view runs/first --follow
      palimpsest view runs evals --port 7801
      palimpsest view runs/first/trajectories/step-000040.jsonl.zst
      palimpsest view episodes.jsonl --tokenizer Qwen/Qwen3-4B
      palimpsest view runs/first --export first.html --episodes 3/2,0/1 --step 40
      palimpsest view evals/hotpot --export hotpot.eval
      KEY=... palimpsest view runs --host 0.0.0.0 --server-key-env KEY
    """
    if export is not None:
        if follow or server_key_env or (host, port) != ("127.0.0.1", 7800):
            raise ConfigError("--export serves no page: omit --follow, --host, --port and --server-key-env")
        _export(list(paths or [Path("runs")]), export, episodes, step, tokenizer, force)
        return
    if episodes is not None or step is not None or force:
        raise ConfigError("--episodes, --step and --force apply to --export FILE: add it, or omit them")
    from palimpsest.app.viewer_job import View
    from palimpsest.app.viewer_job import view as serve_view

    key = token_from(server_key_env, "--server-key-env", strip=False)
    serve_view(
        View(tuple(paths or ()), host, port, key, tokenizer, follow),
        on_ready=lambda url: print_line(f"viewer at {url}/"),
    )


def _export(
    paths: list[Path], out: Path, only: str | None, step: str | None, tokenizer: str | None, force: bool
) -> None:
    from palimpsest.app.viewer_job import export as write

    done = Terminal()
    written = write(paths, out, only=only, step=step, tokenizer=tokenizer, force=force, progress=done)
    for line in dict.fromkeys(line for export in written for line in export.content.notes):
        typer.echo(printable(line), err=True)
    for export in written:
        content = export.content
        scored = "" if content.mean is None else f", mean score {100 * content.mean:.1f} %"
        player = "" if content.player is None else f" of the {content.player}"
        what = f"{counted(content.episodes, 'episode')}{player}{scored}"
        typer.echo(f"{printable(str(export.path))}: {printable(what)}, {size_of(len(content.data))}")
