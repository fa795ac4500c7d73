"""`palimpsest view` and `palimpsest replay`."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import OUTPUT, Force, Host, Json, Port, ServerKeyEnv
from palimpsest.errors import ConfigError
from palimpsest.files import NoRegularFile, read_regular
from palimpsest.http_services import token_from
from palimpsest.progress.displays import Terminal
from palimpsest.text.display_text import counted, ordinal, printable, size_of

if TYPE_CHECKING:
    from palimpsest.app.agent.replay_run import End, Replay


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
        Path | None, OUTPUT(help="Write one file and exit: .html opens without a server, .eval is for inspect view.")
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
        _export(list(paths or [Path("runs")]), export, episodes, step, tokenizer, force)
        return
    if episodes is not None or step is not None or force:
        raise ConfigError("--episodes, --step and --force apply to --export FILE: add it, or omit them")
    from palimpsest.app.viewer_job import View
    from palimpsest.app.viewer_job import view as serve_view

    key = token_from(server_key_env, "--server-key-env", strip=False)
    serve_view(View(tuple(paths or ()), host, port, key, tokenizer, follow), on_ready=_print_address)


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


def _print_address(url: str) -> None:
    """Print the address, the only line on stdout."""
    typer.echo(f"viewer at {url}/")
    sys.stdout.flush()


# ---- palimpsest replay ---------------------------------------------------------------------------------------


_MOST_BYTES = 10_000_000
"""Limit of a memory file."""


def replay(
    episode: Annotated[
        str,
        typer.Argument(help="FILE.jsonl.zst#GROUP/ROLLOUT, or a run or evaluation with the viewer's link, RUN#/r/..."),
    ],
    turn: Annotated[int | None, typer.Option(min=1, help="First turn to sample again, from 1.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE", help='Memory at that turn, "" for an empty one; default: unchanged.'),
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the run, unless EPISODE names it.")] = None,
    group: Annotated[int | None, typer.Option(min=0, help="Index of the group in the file.")] = None,
    rollout: Annotated[int | None, typer.Option(min=0, help="Index of the rollout in the group.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Other weights; default: those that sampled it, or the nearest saved.")
    ] = None,
    json: Json = False,
    out: Annotated[Path, OUTPUT(help="Folder for a record of both episodes.")] = Path("replays"),
) -> None:
    """Re-run a recorded episode from a turn, optionally with an edited memory, and compare both.

    Random draws are those of the run: with the same weights and an unchanged memory, the episode reproduces its
    recorded tokens. `palimpsest view` shows the file with both episodes side by side. Links and --json count turns from
    0, as records do.

    \b
    Examples:
      palimpsest replay runs/q/trajectories/step-000401.jsonl.zst#3/2 --turn 2
      palimpsest replay 'runs/q#/r/q/s/401/e/3/2/t/2' --memory "Anna lives in Rome."
      palimpsest replay evals/q --turn 7 --memory @memory.txt --json
    """
    from palimpsest.app.agent.replay_run import replay as play_on

    text = _text(memory)
    first = None if turn is None else turn - 1
    played = play_on(episode, turn=first, memory=text, step=step, group=group, rollout=rollout, model=model, out=out)
    if json:
        print(dumps(played.to_json(), ensure_ascii=False), flush=True)
        return
    _show(played)


def _text(memory: str | None) -> str | None:
    if memory is None or not memory.startswith("@"):
        return memory
    file = Path(memory[1:])
    try:
        data = read_regular(file, _MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"--memory {memory}: more than {_MOST_BYTES:,} bytes; give a smaller file")
        return data.decode("utf-8").rstrip("\n")
    except NoRegularFile:
        raise ConfigError(f"--memory {memory}: not a file; give a text file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--memory {memory}: not readable as text ({error})") from None


def _show(played: Replay) -> None:
    for line in (played.weights, played.document):
        typer.echo(printable(line), err=True)
    print(f"re-run from turn {ordinal(played.turn)}{_changed(played)}")
    for name, end in (("recorded", played.recorded), ("replayed", played.replayed)):
        print(_line(name, end))
    if played.parts_at is None:
        print(f"every reply from turn {ordinal(played.turn)} equals the recorded one, token for token")
    else:
        print(f"turn {ordinal(played.parts_at)} is the first with another reply")
    if played.given:
        print("the edited memory counts as input: rewards and measures count only text of the agent")
    command = f"palimpsest view {quote(str(played.path))} --tokenizer {quote(played.model)}"
    print(printable(command), flush=True)


def _changed(played: Replay) -> str:
    """The edited memory and the first turn that shows it."""
    if played.memory is None:
        return ""
    text = _short(played.memory) if played.memory else " nothing"
    if played.first_seen is None:
        return f", as if the previous turn had written:{text}"
    if played.first_seen == played.turn:
        return f", with the memory:{text}"
    return f"; from turn {ordinal(played.first_seen)}, with the memory:{text}"


def _line(name: str, end: End) -> str:
    value = f"{end.value:g}" if end.value is not None else f"ungraded ({printable(end.reason or '')})"
    memory = "" if end.memory is None else f"  memory:{_short(end.memory)}"
    return f"{name}  {value:>4}  {end.outcome}  answer: {_short(end.answer or 'none').strip()}{memory}"


def _short(text: str) -> str:
    return " " + printable(" ".join(text.split()))
