"""Options that several commands share, how a command that a signal ended is resumed, and tables on the terminal.

Guaranteed: text of models and documents is escaped before it reaches a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from palimpsest.config.data import check_columns, columns_of
from palimpsest.errors import ConfigError, Interrupted
from palimpsest.text.display_text import printable

if TYPE_CHECKING:
    from palimpsest.evaluation.summary import Score
    from palimpsest.runs.folder_guard import Made


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[a.b=c ...]", help="Configuration keys to change, values as YAML."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL] [a.b=c ...]", help="What plays, and configuration keys to change."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
Force = Annotated[bool, typer.Option("--force", help="Start anew; what the folder holds is moved aside.")]
Columns = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="OURS=THEIRS,...",
        help="Columns of the file: question=q,answers=reward.gold; of one of several files b.csv:question=text.",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible endpoint that has the model, under the name MODEL; e.g. ending in /v1."),
]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Environment variable that holds the endpoint's key.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="The endpoint's tokenizer, a folder or hub id; default: what MODEL names.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")]


def named_columns(text: str | None, file: str | None = None) -> dict[str, str]:
    """Columns by our name, given as question=q,answers=gold; of `file`, where that is all that is read. Raises
    ConfigError."""
    try:
        columns: dict[str, str] = columns_of(text or "")
        if file is not None:
            check_columns(columns, [file])
    except ValueError as error:
        raise ConfigError(str(error).replace("data.columns=", "--map ").replace("data.columns", "--map")) from None
    return columns


_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")


def models_and_overrides(words: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Words of a command line as models and KEY=VALUE overrides; a path that exists is a model.

    >>> models_and_overrides(["runs/first", "chunk_size=48", "reward.name=f1"])
    (['runs/first'], ['chunk_size=48', 'reward.name=f1'])
    """
    models, overrides = list[str](), list[str]()
    for word in words or ():
        (overrides if _OVERRIDE.match(word) and not Path(word).exists() else models).append(word)
    return models, overrides


def print_made(made: Made, left_out: Iterable[str] = ()) -> None:
    """Say what a data set holds, and what it doesn't, by lines."""
    for name, count in made.problems.items():
        typer.echo(f"{made.folder / name}: {count:,} problems")
    for line in left_out:
        typer.echo(line)
    typer.echo(f"edition {made.edition}")


def numbers(option: str, what: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers of at least `least`, given as 4,64,256. Raises ConfigError.

    >>> numbers("--chunks", "lengths", "4,64")
    (4, 64)
    """
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = (least - 1,)
    if min(values) < least:
        raise ConfigError(f"{option} {text}: expected {what} such as {'4,64,256' if least else '0,1,2'}")
    return values


def shares(option: str, text: str | None) -> tuple[float, ...]:
    """Numbers given as 0.1,0.9; none for None. Raises ConfigError.

    >>> shares("--positions", "0,0.5,1")
    (0.0, 0.5, 1.0)
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{option} {text}: expected numbers such as 0.1,0.9") from None


# ---- How a command that a signal ended goes on, in words -----------------------------------------------------


BEGIN, RERUN = "the same command begins again", "the same command goes on"
NOT_STARTED = f"nothing was begun; {BEGIN}"


@contextmanager
def going_on(again: Callable[[], str]) -> Iterator[None]:
    """Have `again` say how to go on if a signal ends what is done in here."""
    try:
        yield
    except Interrupted as end:
        end.again = again()
        raise


def resumed(run: Path, *, force: bool) -> Callable[[], str]:
    """Of a command that writes a run folder: with --resume, if there is a run, and with `force` one of this process."""

    def again() -> str:
        from palimpsest.runs.jsonl_rows import read_rows
        from palimpsest.runs.resume_rules import EVENTS, how_to_resume

        rows = read_rows(run / EVENTS)
        started_here = any(row.get("pid") == os.getpid() for row in rows)
        return how_to_resume(run) if started_here or (rows and not force) else NOT_STARTED

    return again


# ---- What commands print -------------------------------------------------------------------------------------


def stdout(width: int = 120) -> Console:
    """Console for results; wide enough for a table when piped."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(
        title=Text(printable(title)),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        made.add_column(Text(printable(column)), justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def percent(value: float | None) -> str:
    """One decimal, or a dash for what is not known."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval(score: Score) -> str:
    """Both ends of a 95% interval in percent."""
    return "–" if score.low is None or score.high is None else f"{100 * score.low:.0f}–{100 * score.high:.0f}"
