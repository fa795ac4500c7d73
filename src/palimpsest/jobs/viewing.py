"""The viewer as a service: sources, answers, an address."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from palimpsest.errors import ConfigError
from palimpsest.jobs.methods import TITLES
from palimpsest.retrieval.search import check_token
from palimpsest.serve.bounded import ConnectionLimits
from palimpsest.serve.http import Server, bound, check_host
from palimpsest.serve.viewer import ViewerService
from palimpsest.view.answers import Answers
from palimpsest.view.row_cache import default_folder
from palimpsest.view.sources import Library

_OBJECTS = 100_000
"""Between two collections of garbage; by default 700."""
RUNS = Path("runs")
"""What is looked at where nothing is named."""


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at, and where the page is."""

    paths: tuple[Path, ...] = ()
    """Empty: `runs`, or what is here."""
    host: str = "127.0.0.1"
    port: int = 7800
    key: str | None = None
    tokenizer: str | None = None
    """Decodes everything, in place of what the files name."""
    follow: bool = False
    """Whether the page asks again by itself."""


def view(asked: View, *, on_ready: Callable[[str], None]) -> None:
    """Serve the viewer until a signal; `on_ready` is told its address.

    Raises RunError for a path with nothing to look at, ConfigError for an address that can't be taken.
    """
    check_host(asked.host, asked.key, "--key-env NAME")
    check_token(asked.key, "--key-env")
    library = Library(chosen(asked.paths), wait=asked.follow)
    answers = Answers(library, tokenizer=asked.tokenizer, cache=default_folder(), titles=TITLES)
    with (
        bound(asked.host, asked.port) as taken,
        closing(ViewerService(answers, token=asked.key, follow=asked.follow)) as service,
    ):
        server = Server(service.app(), taken, ConnectionLimits().within_descriptors(), grace_seconds=2)
        service.read_ahead()
        on_ready(server.url)
        with _rare_collections():
            server.run_here()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Opening an episode makes millions of numbers, which hold nothing: each collection would walk over all of them."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def chosen(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The paths that were named, or `runs`, or this folder. Raises ConfigError for one that is named twice."""
    twice = [path for place, path in enumerate(paths) if path.absolute() in map(Path.absolute, paths[:place])]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice; name it once")
    return tuple(paths) or ((RUNS,) if RUNS.is_dir() else (Path("."),))
