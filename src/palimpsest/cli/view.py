"""`palimpsest view` and `palimpsest replay`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.errors import ConfigError
from palimpsest.files import NoRegularFile, read_regular
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.app.agent.replay_run import End, Replay


def view(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN|EVAL|FILE]...", help="Runs, evaluations, folders of them, records; default: runs."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address; other than loopback needs --key-env.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7800,
    follow: Annotated[bool, typer.Option("--follow", help="Have the page take new steps as they come.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id that decodes episodes; default: what the run's files name.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write one file and end: .html opens without a server, .eval is for inspect view."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="GROUP/ROLLOUT,...", help="Its episodes; default: some that went wrong.")
    ] = None,
    step: Annotated[str | None, typer.Option(help="Whose episodes it has; default: the last that is recorded.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Move a file aside that has the name of --export's.")] = False,
    key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the key a browser is asked for.")
    ] = None,
) -> None:
    """Look at runs, evaluations and episodes in a browser, until SIGINT or SIGTERM.

    Reads files and writes none, so it can stand beside a run that trains.

    \b
    Examples:
      palimpsest view runs/quickstart
      palimpsest view runs/first --follow
      palimpsest view runs evals --port 7801
      palimpsest view runs/first/trajectories/step-000040.jsonl.zst
      palimpsest view episodes.jsonl --tokenizer Qwen/Qwen3-4B
      palimpsest view runs/first --export first.html --only 3/2,0/1 --step 40
      palimpsest view evals/hotpot --export hotpot.eval
      KEY=... palimpsest view runs --host 0.0.0.0 --key-env KEY
    """
    if export is not None:
        _export(list(paths or [Path(".")]), export, only, step, tokenizer, force)
        return
    if only is not None or step is not None or force:
        raise ConfigError(
            "--only, --step and --force are for what --export FILE writes; give that too, or leave them out"
        )
    from palimpsest.app.viewer_job import View
    from palimpsest.app.viewer_job import view as serve_view

    key = None if key_env is None else os.environ.get(key_env)
    if key_env is not None and not key:
        raise ConfigError(f"--key-env {key_env}: that environment variable is empty or isn't set; put the key there")
    serve_view(View(tuple(paths or ()), host, port, key, tokenizer, follow), on_ready=_print_address)


def _export(
    paths: list[Path], out: Path, only: str | None, step: str | None, tokenizer: str | None, force: bool
) -> None:
    from palimpsest.app.viewer_job import export as write
    from palimpsest.progress.displays import Terminal
    from palimpsest.text.display_text import counted, printable, size_of

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
    """The address is the one line on stdout."""
    typer.echo(f"viewer at {url}/")
    sys.stdout.flush()


# ---- palimpsest replay ---------------------------------------------------------------------------------------


_MOST_BYTES = 10_000_000
"""Of a file with a memory."""


def replay(
    episode: Annotated[
        str,
        typer.Argument(help="FILE.jsonl.zst#GROUP/ROLLOUT, or a run or evaluation and the viewer's link, RUN#/r/...."),
    ],
    turn: Annotated[int | None, typer.Option(help="The first turn that is sampled anew, from 0.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE", help='What that turn is to remember, "" for nothing; default: what it did.'),
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Of a run, where EPISODE doesn't say it.")] = None,
    group: Annotated[int | None, typer.Option(min=0, help="Place of the group in its file.")] = None,
    rollout: Annotated[int | None, typer.Option(min=0, help="Place of the episode in its group.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Other weights; default: those that sampled it, or the nearest kept.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object: both ends, weights, document, file.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for a record of both episodes.")] = Path("replays"),
) -> None:
    """Play a recorded episode on from a turn, with another memory if you like, and show both ends.

    Draws are keyed as in the run: with the weights that sampled it, an episode whose memory isn't changed ends in the
    tokens that were recorded. Both episodes go into a file that palimpsest view shows side by side.

    \b
    Examples:
      palimpsest replay runs/q/trajectories/step-000401.jsonl.zst#3/2 --turn 2
      palimpsest replay 'runs/q#/r/q/s/401/e/3/2/t/2' --memory "Anna lives in Rome."
      palimpsest replay evals/q --turn 7 --memory @memory.txt --json
    """
    from palimpsest.app.agent.replay_run import replay as play_on

    text = _text(memory)
    played = play_on(episode, turn=turn, memory=text, step=step, group=group, rollout=rollout, model=model, out=out)
    if json:
        from json import dumps

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
            raise typer.BadParameter(f"--memory {memory}: more than {_MOST_BYTES:,} bytes; no memory has so many")
        return data.decode("utf-8").rstrip("\n")
    except NoRegularFile:
        raise typer.BadParameter(f"--memory {memory}: is no file; give a file of text") from None
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--memory {memory}: can't be read as a text ({error})") from None


def _show(played: Replay) -> None:
    for line in (played.weights, played.document):
        typer.echo(printable(line), err=True)
    print(f"played on from turn {played.turn}{_changed(played)}")
    for name, end in (("recorded", played.recorded), ("replayed", played.replayed)):
        print(_line(name, end))
    if played.parts_at is None:
        print(f"from turn {played.turn} on every reply is the recorded one, token for token")
    else:
        print(f"turn {played.parts_at} is the first whose reply isn't the recorded one")
    if played.given:
        print("the given memory counts as input: rewards and measures count only what the agent wrote")
    command = f"palimpsest view {quote(str(played.path))} --tokenizer {quote(played.model)}"
    print(printable(command), flush=True)


def _changed(played: Replay) -> str:
    """What was put in the memory's place, and where it is first in sight."""
    if played.memory is None:
        return ""
    text = _short(played.memory) if played.memory else " nothing"
    if played.first_seen is None:
        return f", as if the turn before had written:{text}"
    if played.first_seen == played.turn:
        return f", where it remembers:{text}"
    return f"; from turn {played.first_seen} on, the first that shows it, it remembers:{text}"


def _line(name: str, end: End) -> str:
    value = f"{end.value:g}" if end.value is not None else f"ungraded ({printable(end.reason or '')})"
    memory = "" if end.memory is None else f"  memory:{_short(end.memory)}"
    return f"{name}  {value:>4}  {end.outcome}  answer: {_short(end.answer or 'none').strip()}{memory}"


def _short(text: str) -> str:
    return " " + printable(" ".join(text.split()))
