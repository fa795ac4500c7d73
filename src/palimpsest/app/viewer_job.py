"""The viewer as a service, and as a file: one page, or a log for inspect.

    FILE.html    opens without a server
    FILE.jsonl   ATIF, an episode per line; traces.jsonl: traces of verifiers
    FILE.eval    a log for `inspect view`; further policies and baselines have separate logs, FILE.NAME.eval

Guaranteed: scores of an evaluation are those of samples.jsonl, of recorded and unrecorded episodes alike, with agent
and baselines separate. A file appears only complete, never inside an exported run or evaluation, and replaces another
file only with `force`, which renames that. A page has at most `MOST_BYTES`. Omissions are reported: damaged or invalid
records, and episodes that were not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from palimpsest import files
from palimpsest.app.python_calls import rare_collections
from palimpsest.errors import ConfigError, RunError
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.folder_guard import free_file, refuse_inside
from palimpsest.servers.http_service import Server, bound, check_host
from palimpsest.servers.viewer_server import ViewerService
from palimpsest.viewer.export.inline_page import MOST_BYTES, Content, EpisodeIndex, collect, page_files, single_page
from palimpsest.viewer.export.inspect_log import episode_lines, inspect_logs
from palimpsest.viewer.export.trace_formats import TRACES, atif, verifiers_episode
from palimpsest.viewer.records.sources import Library, Source
from palimpsest.viewer.screens.viewer_api import ViewerApi


@dataclass(frozen=True, slots=True)
class ExportedView:
    """A written file."""

    path: Path
    content: Content


def export(
    paths: Sequence[Path],
    out: Path,
    *,
    only: str | None = None,
    step: str | None = None,
    tokenizer: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[ExportedView]:
    """Write the chosen part of the one run, evaluation or record in `paths` to `out`; logs of an evaluation's further
    policies and baselines go next to it. Raises ConfigError, RunError."""
    progress = progress or Silent()
    if out.suffix not in (".html", ".eval", ".jsonl"):
        raise ConfigError(f"--export {out}: expected a name that ends in .html, .eval or .jsonl")
    library = Library(paths)
    refuse_inside(out, [source.path for source in library.sources()], "--export")
    if not force or out.is_dir():
        free_file(out, force=False, progress=progress, option="--export")
    source = _only_source(library, paths)
    answers, chosen = ViewerApi(library, tokenizer=tokenizer), places(only)
    if out.suffix == ".html":
        made = [_page(answers, source, out, chosen, step)]
    elif out.suffix == ".jsonl":
        made = [episode_lines(answers, source, chosen, step, verifiers_episode if out.name == TRACES else atif)]
    else:
        made = inspect_logs(answers, source, chosen, step)
    return _written(out, made, force=force, progress=progress)


def places(only: str | None) -> tuple[EpisodeIndex, ...]:
    """Episodes in `--episodes`. Raises ConfigError.

    >>> places("3/2, 0/1")
    ((3, 2), (0, 1))
    """
    locations = []
    if only is not None and not only.strip(", "):
        raise ConfigError(f"--episodes {only!r}: names no episode; use GROUP/ROLLOUT, several as 0/1,3/2, or omit it")
    for item in (part.strip() for part in (only or "").split(",") if part.strip()):
        if not (match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", item)):
            raise ConfigError(f"--episodes {item}: expected GROUP/ROLLOUT, e.g. 0/1,3/2, as in the viewer's links")
        locations.append((int(match[1]), int(match[2])))
    return tuple(dict.fromkeys(locations))


def _only_source(library: Library, paths: Sequence[Path]) -> Source:
    sources = library.sources()
    named = [source for source in sources if source.path in {path.absolute() for path in paths}]
    candidates = named or list(sources)
    if len(candidates) != 1:
        names = ", ".join(source.name for source in candidates[:3])
        raise ConfigError(
            f"--export writes one run, evaluation or record, not {len(candidates)} ({names}...): name one"
        )
    return candidates[0]


def _page(answers: ViewerApi, source: Source, out: Path, only: Sequence[EpisodeIndex], step: str | None) -> Content:
    collected = collect(answers, source, only, step)
    page = single_page(page_files(), collected.answers, f"{source.name} · palimpsest").data
    if len(page) > MOST_BYTES:
        what = f"its {len(collected.episodes)} episodes" if collected.episodes else "its figures"
        raise ConfigError(
            f"--export {out}: {what} would take {len(page) / 1e6:.1f} MB, the limit is {MOST_BYTES / 1e6:.0f}; choose "
            "fewer episodes with --episodes GROUP/ROLLOUT,..."
        )
    return Content(page, len(collected.episodes), collected.notes)


def player_path(out: Path, player: str) -> Path:
    """Path of the log of a further player.

    >>> player_path(Path("logs/hotpot.eval"), "baseline: closed book").as_posix()
    'logs/hotpot.closed-book.eval'
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "-", player.partition(": ")[2]).strip("-")
    return out.with_name(f"{out.stem}.{name}{out.suffix}")


def _written(out: Path, made: Sequence[Content], *, force: bool, progress: Progress) -> list[ExportedView]:
    further = (ExportedView(player_path(out, str(content.player)), content) for content in made[1:])
    written = [ExportedView(out, made[0]), *further]
    for exported in written:
        free_file(exported.path, force=force, progress=progress, option="--export")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for exported in written:
            files.write_file(exported.path, exported.content.data)
    except OSError as error:
        raise RunError(f"--export {out}: writing failed ({error.strerror}); use another path") from None
    return written


# ---- The viewer as a service ---------------------------------------------------------------------------------


RUNS = Path("runs")
"""Default path."""


@dataclass(frozen=True, slots=True)
class View:
    """Paths and address of a viewer."""

    paths: tuple[Path, ...] = ()
    """Empty: `runs`."""
    host: str = "127.0.0.1"
    port: int = 7800
    key: str | None = None
    tokenizer: str | None = None
    """Decodes everything, instead of the tokenizers that the files name."""
    follow: bool = False
    """Refresh the page automatically."""


def view(request: View, *, on_ready: Callable[[str], None]) -> None:
    """Serve the viewer until a signal; `on_ready` gets its address.

    Raises RunError for a path without anything to show, ConfigError for an unavailable address.
    """
    check_host(request.host, request.key)
    library = Library(chosen(request.paths), wait=request.follow)
    answers = ViewerApi(library, tokenizer=request.tokenizer)
    with (
        bound(request.host, request.port) as taken,
        closing(ViewerService(answers, token=request.key, follow=request.follow)) as service,
    ):
        server = Server(service.app(), taken, grace_seconds=2)
        service.read_ahead()
        on_ready(server.url)
        with rare_collections():
            server.run()


def chosen(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The requested paths, or `runs`. Raises ConfigError for a duplicate."""
    twice = [path for index, path in enumerate(paths) if path.absolute() in map(Path.absolute, paths[:index])]
    if twice:
        raise ConfigError(f"{twice[0]} appears twice; name it once")
    return tuple(paths) or (RUNS,)
