"""`palimpsest retrieval serve`."""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import typer

from palimpsest.errors import ConfigError
from palimpsest.tools.bm25 import Bm25Index


def run_serve(corpus: Path, folder: Path | None, host: str, port: int, token: str | None) -> None:
    """Build or open the index, then serve. The address is the one line on stdout."""
    try:
        from palimpsest.serve.retrieval import RetrievalService, check_host, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'palimpsest[search]'") from None
    check_host(host, token)
    with ExitStack() as stack:
        before = signal.signal(signal.SIGTERM, _leave)  # while building: temporary folders go on the way out
        stack.callback(signal.signal, signal.SIGTERM, before)
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-"))) / "index"
        index = Bm25Index.of_corpus(corpus, folder)

        def ready(url: str) -> None:
            typer.echo(f"{len(index)} passages at {url}/retrieve")
            sys.stdout.flush()

        serve(RetrievalService(index, token=token), host, port, ready)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
