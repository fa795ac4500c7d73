"""Options that several commands share, how a command that a signal ended is resumed, and tables on the terminal.

Guaranteed: text of models and documents is escaped before it reaches a terminal.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from palimpsest.config.data import check_columns, columns_of
from palimpsest.config.keys import is_key_name, nearest_key, similar
from palimpsest.errors import ConfigError, DataError, Interrupted
from palimpsest.progress.displays import Terminal
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.resume_rules import EVENTS, how_to_resume
from palimpsest.text.display_text import counted, printable

if TYPE_CHECKING:
    from palimpsest.engines.protocol import Objective
    from palimpsest.evaluation.summary import Score
    from palimpsest.runs.folder_guard import Made


# ---- The form of every command -------------------------------------------------------------------------------


_WIDTH = 120  # columns of help on a terminal that has them


def _check_options(command: TyperCommand, words: Iterable[str]) -> None:
    """Raise ConfigError for an unknown option that resembles one, or is a key of the configuration."""
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    takes_keys = any("KEY=" in (parameter.metavar or "") for parameter in command.params)
    for option in (word.partition("=")[0] for word in itertools.takewhile("--".__ne__, words)):
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or option in known or option == "--help":
            continue
        if near := similar(option, known):
            raise ConfigError(f"{command.name}: no option {option}; did you mean {near}?")
        if takes_keys and is_key_name(name):
            raise ConfigError(
                f"{command.name}: no option {option}{nearest_key(name)} Write KEY=VALUE without an option"
            )


class Command(TyperCommand):
    """A command whose help groups its options, and that rejects keys written as options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _check_options(self, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """In errors about data.columns, name --map if the command has it, or `data build` if it has no keys either."""
        try:
            return super().invoke(ctx)
        except (ConfigError, DataError) as error:
            mapped = any("--map" in each.opts for each in self.params)
            keys = any("KEY=" in (each.metavar or "") for each in self.params)
            if "data.columns" not in str(error) or (keys and not mapped):
                raise
            option = "--map " if mapped else "palimpsest data build FILE --out DIR --map "
            raise type(error)(re.sub(r"data\.columns[ =]?", option, str(error))) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(formatter, ((_panel(p), p.get_help_record(ctx)) for p in self.get_params(ctx)))


class CommandGroup(TyperGroup):
    """A group of commands, whose help has sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        rows = [(_panel(c, "Commands"), (c.name or "", c.get_short_help_str(limit=80))) for c in commands]
        _write_groups(formatter, rows)


def _panel(part: Any, default: str = "") -> str:
    name = getattr(part, "rich_help_panel", None)
    return str(name or default or ("Arguments" if part.param_type_name == "argument" else "Options"))


def _write_groups(formatter: Any, rows: Iterable[tuple[str, tuple[str, str] | None]]) -> None:
    groups = dict[str, list[tuple[str, str]]]()
    for name, row in rows:
        if row is not None:
            groups.setdefault(name, []).append(row)
    for name, members in groups.items():
        with formatter.section(name):
            formatter.write_dl(members)


class App(typer.Typer):
    """Commands in this form."""

    def __init__(self, **options: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH}
        super().__init__(
            cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, context_settings=settings, **options
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """As typer's."""
        return super().command(name, cls=Command, **options)


# ---- Options that several commands share ---------------------------------------------------------------------


INPUT, OUTPUT, ENDPOINT, SERVER = (
    partial(typer.Option, rich_help_panel=section) for section in ("Input", "Output", "Endpoint", "Server")
)
"""Options in a section of the help."""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE...]", help="Configuration keys to change; values as YAML."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [KEY=VALUE...]",
        help="The model, and keys to change: options of the policy (chunk_size=2048) or dotted configuration keys.",
    ),
]
ModelName = Annotated[
    str, typer.Argument(help="A run (with its configuration), a Hugging Face folder or hub id, or embedded.")
]
Out = Annotated[Path, OUTPUT("--out", help="Folder to write to.")]
Force = Annotated[bool, OUTPUT("--force", help="Start over; the old folder becomes NAME.old-1.")]
Json = Annotated[bool, OUTPUT("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check configuration, data and budgets, print them, and exit.")]
Columns = Annotated[
    list[str] | None,
    INPUT(
        "--map",
        metavar="OURS=THEIRS,...",
        help="Columns of the file: question=q,answers=reward.gold; for one of several files b.csv:question=text; "
        "repeatable.",
    ),
]
Policy = Annotated[
    str | None, typer.Option(help="A shipped policy or my_module:MyPolicy; default: the run's, otherwise overwrite.")
]
BaseUrl = Annotated[
    str | None,
    ENDPOINT(
        metavar="URL",
        help="Base URL of an OpenAI-compatible endpoint that serves MODEL, e.g. http://127.0.0.1:8000/v1.",
    ),
]
ApiKeyEnv = Annotated[str | None, ENDPOINT(metavar="NAME", help="Environment variable with the endpoint's key.")]
Tokenizer = Annotated[
    str | None, ENDPOINT(metavar="ID", help="The endpoint's tokenizer: a folder or hub id; default: MODEL's.")
]
Host = Annotated[str, SERVER(help="Address; any other than loopback needs --server-key-env.")]
Port = Annotated[int, SERVER(min=0, max=65535, help="Port; 0 takes a free one.")]
ServerKeyEnv = Annotated[
    str | None, SERVER(metavar="NAME", help="Environment variable with the key that clients must send.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")]


def named_columns(texts: list[str] | None, files: Iterable[str | Path] | None = None) -> dict[str, str]:
    """Column names by our name, from texts such as question=q,answers=gold. Raises ConfigError."""
    try:
        columns: dict[str, str] = columns_of(",".join(texts or ()))
        if files is not None:
            check_columns(columns, files)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return columns


_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")


def models_and_overrides(words: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Words of a command line as models and KEY=VALUE overrides; a path that exists is a model.

    >>> models_and_overrides(["runs/first", "chunk_size=48", "reward.name=f1"])
    (['runs/first'], ['chunk_size=48', 'reward.name=f1'])
    """
    models, overrides = list[str](), list[str]()
    for word in words or ():
        (overrides if _OVERRIDE.match(word) and not os.path.exists(word) else models).append(word)
    return models, overrides


def print_made(made: Made, left_out: Iterable[str] = ()) -> None:
    """Print the files of a data set and the omitted rows."""
    for name, count in made.problems.items():
        typer.echo(f"{made.folder / name}: {counted(count, 'problem')}")
    for line in left_out:
        typer.echo(line)
    typer.echo(f"edition {made.edition}")


def numbers(option: str, what: str, texts: str | list[str]) -> tuple[int, ...]:
    """Whole numbers from 1, from a text such as 4,64,256, or several. Raises ConfigError.

    >>> numbers("--chunks", "lengths", "4,64"), numbers("--chunks", "lengths", ["4,64", "256"])
    ((4, 64), (4, 64, 256))
    """
    text = texts if isinstance(texts, str) else ",".join(texts)
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = (0,)
    if min(values) < 1:
        raise ConfigError(f"{option} {text}: expected {what} such as 4,64,256")
    return values


def shares(option: str, text: str | None) -> tuple[float, ...]:
    """Numbers from 0.1,0.9; () for None. Raises ConfigError.

    >>> shares("--positions", "0,0.5,1")
    (0.0, 0.5, 1.0)
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{option} {text}: expected numbers such as 0.1,0.9") from None


# ---- How to resume a command that a signal ended -------------------------------------------------------------


START, RERUN = "run the same command to start over", "run the same command to resume"
NOT_STARTED = f"nothing was started; {START}"


@contextmanager
def resuming(again: Callable[[], str]) -> Iterator[None]:
    """If a signal ends the block, its message is that of `again`: how to resume."""
    try:
        yield
    except Interrupted as end:
        end.again = again()
        raise


def resumed(run: Path, *, force: bool) -> Callable[[], str]:
    """The message for a command that writes a run folder."""

    def again() -> str:
        rows = read_rows(run / EVENTS)
        started_here = any(row.get("pid") == os.getpid() for row in rows)
        return how_to_resume(run) if started_here or (rows and not force) else NOT_STARTED

    return again


# ---- Tables --------------------------------------------------------------------------------------------------


def stdout(width: int = 120) -> Console:
    """Console for results; wide enough for a table when piped."""
    console = Console(emoji=False)
    return console if console.is_terminal else Console(width=width, emoji=False)


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
        first = index == 0  # folds: keys that are cut look alike
        made.add_column(
            Text(printable(column)), justify="left" if first else "right", no_wrap=not first, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def percent(value: float | None) -> str:
    """One decimal, or a dash for an unknown value."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval(score: Score) -> str:
    """Both ends of a 95% interval in percent."""
    return "–" if score.low is None or score.high is None else f"{100 * score.low:.0f}–{100 * score.high:.0f}"


def on_gpus(gpus: int, objective: Objective | None, overrides: Sequence[str] = ()) -> list[str]:
    """The overrides of --gpus for evaluation (`objective` None) and supervised training; prints them."""
    from palimpsest.engines.open import layout_on

    added = layout_on(gpus, objective, overrides)
    Terminal().message(" ".join([f"--gpus {gpus}:", *(added or ["one process on one GPU"])]))
    return added


def print_line(line: str) -> None:
    """Print the address, the only line on stdout."""
    typer.echo(line)
    sys.stdout.flush()
