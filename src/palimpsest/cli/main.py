"""`palimpsest`: the commands, and where errors become one line.

Guaranteed: an error that the user can fix prints one red line per problem on stderr, without a traceback, and exits
with 2. SIGINT, SIGTERM and SIGHUP end the command with 128 plus their number and print how to resume; a second signal
ends it immediately (runs/signals.py). Any other exception is a bug and keeps its traceback. `palimpsest --help` imports
neither torch, transformers, matplotlib nor pyarrow.
"""

from __future__ import annotations

import errno
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from palimpsest._version import __version__
from palimpsest.cli import (
    ask,
    compare,
    datasets,
    evaluate,
    new,
    plan,
    quickstart,
    recipes,
    replay,
    retrieval,
    serve,
    train,
    view,
)
from palimpsest.cli.options import App
from palimpsest.errors import ConfigError, Interrupted, PalimpsestError
from palimpsest.runs.signals import Interrupts
from palimpsest.text.display_text import printable

_SYSTEM = {
    errno.ENOSPC: "free some room",
    errno.EDQUOT: "free some room",
    errno.EFBIG: "files of this size are not allowed; raise `ulimit -f`",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "the whole system has too many files open",
    errno.EIO: "the disk failed; see the system's log",
    errno.EROFS: "choose a writable folder",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EEXIST: "this name exists, possibly as a broken link",
    errno.ENOENT: "the file or its folder was deleted or moved",
    errno.ENOTDIR: "part of the path is a file",
    errno.EISDIR: "give the path of a file",
    errno.ENOTEMPTY: "another process writes to it",
    errno.ELOOP: "the link points to itself",
    errno.ESTALE: "the network file system lost the file; try again",
    errno.ENOMEM: "free some memory",
}
"""Fixes for errors of the system that are not bugs."""

app = App(
    help="Train and evaluate language-model agents that manage their own memory, with reinforcement learning.",
    epilog="Start with: palimpsest quickstart --out runs/quickstart",
    pretty_exceptions_enable=False,
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


_COMMANDS: dict[str, dict[str, tuple[Callable[..., None], str]]] = {
    "Start": {
        "quickstart": (quickstart.quickstart, "Train, evaluate and report on a CPU in minutes."),
        "new": (new.new, "Create a policy, tool, reward or environment from a template."),
        "doctor": (new.doctor, "Check this machine, and why a run stopped."),
        "check": (new.check, "Check a custom policy, reward or other plugin against its contract."),
    },
    "Train": {
        "plan": (plan.plan, "Predict memory, time and cost; choose a layout for your GPUs."),
        "train": (train.train, "Train an agent with reinforcement learning."),
        "sft": (train.sft, "Fine-tune on SFT examples, recorded episodes or conversations."),
        "export": (train.export, "Export a checkpoint as a Hugging Face model."),
    },
    "Evaluate": {
        "eval": (evaluate.evaluate, "Evaluate models with a memory policy and baselines."),
        "league": (compare.league, "Train and evaluate methods under equal conditions; tabulate them."),
        "compare": (compare.compare, "Compare evaluations: accuracy, cost, paired differences."),
        "probe": (compare.probe, "Measure read errors; predict accuracy at other lengths."),
    },
    "Inspect": {
        "view": (view.view, "Browse runs, evaluations and episodes in a browser."),
        "replay": (replay.replay, "Re-run an episode from a turn, optionally with an edited memory."),
    },
    "Use": {
        "ask": (ask.ask, "Ask a question about files of any length."),
        "serve": (serve.serve, "Serve an agent behind an OpenAI-compatible API."),
        "serve-openenv": (serve.serve_openenv, "Serve tasks as an OpenEnv environment."),
    },
}
for panel, commands in _COMMANDS.items():
    for name, (command, summary) in commands.items():
        app.command(name, short_help=summary, rich_help_panel=panel)(command)
app.add_typer(datasets.app, name="data", rich_help_panel="Data")
app.add_typer(retrieval.app, name="retrieval", rich_help_panel="Data")
app.add_typer(recipes.app, name="recipes", rich_help_panel="Reference")


def main() -> None:
    """Entry point of the console script."""
    warnings.formatwarning = _warned
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of few characters
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
        no_room = "temporary directory" in str(error)  # of `tempfile`, as ENOENT
        fix = "set TMPDIR to a writable folder, or raise `ulimit -f`" if no_room else _SYSTEM[error.errno]
        _fail(f"{error.filename or 'output'}: {error.strerror}; {fix}", 2)
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop from"):  # `Path.resolve` before Python 3.13
            raise
        _fail(f"{error}; {_SYSTEM[errno.ELOOP]}", 2)


def _warned(message: Warning | str, *_: object, **__: object) -> str:
    """One line, without the code that warned."""
    return f"warning: {printable(str(message))}\n"


_OPTIONS = {"policy.name": "--policy", "data.format": "--format"}
"""Configuration keys to the command options that set them."""


def _show_option(error: ConfigError, words: Sequence[str]) -> None:
    """Name the option that set a wrong value, instead of its key.

    >>> error = ConfigError("no such policy", key="policy.name", value="overwrit")
    >>> _show_option(error, ["eval", "--policy=overwrit"])
    >>> str(error)
    '--policy overwrit: no such policy'
    """
    option = _OPTIONS.get(error.key or "")
    if option and any(word.partition("=")[0] == option for word in words):
        error.at(f"{option} {error.value}:")


def _fail(message: str, code: int) -> NoReturn:
    typer.secho(f"error: {printable(message)}", fg="red", err=True)  # it may quote a name, a document or a model
    sys.exit(code)


if __name__ == "__main__":
    main()
