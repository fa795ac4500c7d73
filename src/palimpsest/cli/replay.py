"""`palimpsest replay`."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from palimpsest.cli.options import OUTPUT, Json
from palimpsest.errors import ConfigError
from palimpsest.files import NoRegularFile, read_regular
from palimpsest.text.display_text import ordinal, printable

if TYPE_CHECKING:
    from palimpsest.app.agent.replay_run import End, Replay


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
        print(dumps(played.to_json()), flush=True)
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
        return data.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n")
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
    from palimpsest.text.answers import unboxed

    value = f"{end.value:g}" if end.value is not None else f"ungraded ({printable(end.reason or '')})"
    memory = "" if end.memory is None else f"  memory:{_short(end.memory)}"
    return f"{name}  {value:>4}  {end.outcome}  answer: {_short(unboxed(end.answer or 'none')).strip()}{memory}"


def _short(text: str) -> str:
    return " " + printable(" ".join(text.split()))
