"""`palimpsest`: the commands, and the border at which errors become one line.

Guaranteed: an error the user can fix prints one red line per problem on stderr, without a traceback, and exits with
2; SIGINT, SIGTERM and SIGHUP end tidily with 128 and their number, say how to go on, and a second one ends at once
(runs/signals.py); anything else is a bug and keeps its traceback. `palimpsest --help` imports neither
torch, transformers, matplotlib nor pyarrow.
"""

from __future__ import annotations

import errno
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from palimpsest._version import __version__
from palimpsest.cli import ask, compare, datasets, evaluate, models, recipes, serve, train, view
from palimpsest.cli import recipes as new
from palimpsest.cli import serve as retrieval
from palimpsest.cli import train as quickstart
from palimpsest.cli import view as replay
from palimpsest.errors import ConfigError, Interrupted, PalimpsestError
from palimpsest.runs.signals import Interrupts
from palimpsest.text.display_text import printable

_SYSTEM = {
    errno.ENOSPC: "free some room",
    errno.EDQUOT: "free some room",
    errno.EFBIG: "a file may not be so large here; raise `ulimit -f`",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "the whole system has too many files open",
    errno.EIO: "the disk fails; look at the system's log",
    errno.EROFS: "give a place that can be written to",
    errno.EACCES: "give a place that is yours",
    errno.EPERM: "give a place that is yours",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EEXIST: "something of that name is in the way, perhaps a link to nothing",
    errno.ENOENT: "it was deleted or moved meanwhile, or its folder was",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "give the path of a file",
    errno.ENOTEMPTY: "another process writes there",
    errno.ELOOP: "a link leads back to itself",
    errno.ESTALE: "the network disk lost it; try again",
    errno.ENOMEM: "free some memory",
}
"""What the user can do about an error of the system, which is then no bug."""

app = typer.Typer(
    help="Train, with reinforcement learning, and evaluate language-model agents that manage their own memory.",
    epilog="Begin with: palimpsest quickstart --out runs/quickstart",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # subcommands inherit it
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"palimpsest {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("quickstart", short_help="Train on a CPU in minutes, evaluate, report.")(quickstart.quickstart)
app.command("train", short_help="Reinforcement learning from a recipe.")(train.train)
app.command("sft", short_help="Supervised cold start: on episodes, conversations or lessons.")(train.sft)
app.command("eval", short_help="Play a policy on a data file and grade it.")(evaluate.evaluate)
app.command("compare", short_help="Put evaluations side by side.")(compare.compare)
app.command("ask", short_help="Have an agent read your files and answer.")(ask.ask)
app.command("serve", short_help="Serve an agent to clients of OpenAI's interface.")(serve.serve)
app.command("view", short_help="Look at runs and episodes in a browser.")(view.view)
app.command("replay", short_help="Play a recorded episode on with another memory.")(replay.replay)
app.command("export", short_help="Copy a run's model into a folder of its own.")(models.export)
app.command("probe", short_help="Say why accuracy falls with length.")(compare.probe)
app.command("new", short_help="Files to begin a policy, tool or reward with.")(new.new)
app.add_typer(recipes.app, name="recipes")
app.add_typer(datasets.app, name="data")
app.add_typer(retrieval.retrieval_app, name="retrieval")
app.command("check", short_help="Try a policy, reward or credit rule against its contract.")(models.check)


def main() -> None:
    """Entry point of the console script."""
    warnings.formatwarning = _warned
    try:
        with Interrupts().watching():
            app(standalone_mode=True, prog_name="palimpsest")  # under `python -m` too
    except PalimpsestError as error:
        if isinstance(error, ConfigError):
            _show_option(error, sys.argv)
        _fail("; ".join((str(error), *getattr(error, "__notes__", ()))), 2)
    except Interrupted as end:
        typer.echo(f"interrupted by {signal.Signals(end.number).name}; {end.again}", err=True)
        sys.exit(128 + end.number)
    except OSError as error:
        if error.errno not in _SYSTEM:
            raise
        _fail(f"{error.filename or 'output'}: {error.strerror}; {_SYSTEM[error.errno]}", 2)


def _warned(message: Warning | str, *_: object, **__: object) -> str:
    """A line, as errors have one, without the code that warned."""
    return f"warning: {printable(str(message))}\n"


_OPTIONS = {"policy.name": "--policy", "data.format": "--format"}
"""Options of commands, by the keys that they set."""


def _show_option(error: ConfigError, words: Sequence[str]) -> None:
    """Put the option that set a wrong value in the place of its key.

    >>> error = ConfigError("no such policy", key="policy.name", value="overwrit")
    >>> _show_option(error, ["eval", "--policy=overwrit"])
    >>> str(error)
    '--policy overwrit: no such policy'
    """
    option = _OPTIONS.get(error.key or "")
    if option and any(word.partition("=")[0] == option for word in words):
        error.at(f"{option} {error.value}:")


def _fail(message: str, code: int) -> NoReturn:
    for line in message.splitlines() or [""]:
        typer.secho(f"error: {printable(line)}", fg="red", err=True)  # it may quote a document or a model
    sys.exit(code)


if __name__ == "__main__":
    main()
