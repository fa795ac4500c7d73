"""The viewer as a service, and as a file: one page, JSON lines, a log of inspect's.

    FILE.html            opens from anywhere, without a server         FILE.jsonl   episodes as a record has them
    FILE.eval, .json     a log that `inspect view` opens; further policies and baselines have their own, FILE.NAME.eval

Guaranteed: scores of an evaluation are those of samples.jsonl, of recorded and unrecorded episodes alike, and agent and
baselines are kept apart; a file is written whole or not at all, never over what is read or inside a run or evaluation
that is, and over another file with `force` alone, which moves that aside; of a page at most `MOST_BYTES`; what is left
out is reported: what is damaged, or of other types than a record's, and episodes that were not recorded.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest import files
from palimpsest.app.quickstart_methods import TITLES
from palimpsest.errors import ConfigError, PalimpsestError, RunError
from palimpsest.evaluation.sample_log import SAMPLES, Sample, not_asked_told
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.retrieval.search import check_token
from palimpsest.runs.folder_guard import free_file, refuse_inside
from palimpsest.servers.http_service import Server, bound, check_host
from palimpsest.servers.viewer_server import ViewerService
from palimpsest.text.display_text import counted
from palimpsest.text.json_text import to_json
from palimpsest.types import Group
from palimpsest.viewer.export.export_bundle import MOST_BYTES, Place, collect, left_out, worst_first
from palimpsest.viewer.export.export_lines import (
    Described,
    Entry,
    entries_of,
    evaluation_entries,
    inspect_archive,
    inspect_log,
    json_lines,
)
from palimpsest.viewer.export.inline_page import page_files, single_page
from palimpsest.viewer.records.record_index import default_folder
from palimpsest.viewer.records.recorded_episodes import (
    AGENT,
    episode_key,
    keys_of,
    player_of,
    policy_of,
    record_path,
    unrecorded,
)
from palimpsest.viewer.records.run_status import Status
from palimpsest.viewer.records.sources import Kind, Library, Source, updated
from palimpsest.viewer.screens.viewer_api import Answers

_KINDS = (".html", ".jsonl", ".json", ".eval")


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written."""

    path: Path
    size: int
    """Bytes."""
    episodes: int
    told: tuple[str, ...] = ()
    """What was left out."""
    player: str | None = None
    """`agent`, `agent: POLICY` or `baseline: NAME`, of an evaluation's log."""
    mean: float | None = None
    """Mean score of an evaluation's log; None where nothing is graded, and of other files."""
    others: tuple[Exported, ...] = ()
    """The logs of an evaluation's further policies and of its baselines, written next to it."""


def export(
    paths: Sequence[Path],
    out: Path,
    *,
    only: str | None = None,
    step: str | None = None,
    tokenizer: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write what is chosen of the one run, evaluation or record in `paths`. Raises ConfigError, RunError."""
    progress = progress or Silent()
    if out.suffix not in _KINDS:
        raise ConfigError(f"--export {out}: expected a name that ends in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    library = Library(paths)
    refuse_inside(out, [source.path for source in library.sources()], "--export")
    if not force or out.is_dir():
        free_file(out, force=False, progress=progress, option="--export")
    source = _only_source(library, paths)
    answers, chosen = Answers(library, tokenizer=tokenizer, titles=TITLES), places(only)
    made = (_page if out.suffix == ".html" else _episodes)(answers, source, out, chosen, step)
    return _written(out, made, force=force, progress=progress)


def places(only: str | None) -> tuple[Place, ...]:
    """The episodes that `--only` names. Raises ConfigError.

    >>> places("3/2, 0/1")
    ((3, 2), (0, 1))
    """
    found = []
    if only is not None and not only.strip(", "):
        raise ConfigError(f"--only {only!r}: names no episode; give GROUP/ROLLOUT, several as 0/1,3/2, or leave it out")
    for each in (part.strip() for part in (only or "").split(",") if part.strip()):
        if not (match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", each)):
            raise ConfigError(f"--only {each}: expected GROUP/ROLLOUT, several as 0/1,3/2, as in the viewer's links")
        found.append((int(match[1]), int(match[2])))
    return tuple(dict.fromkeys(found))


def _only_source(library: Library, paths: Sequence[Path]) -> Source:
    """What is exported: the path that was given, or the one thing that lies in it."""
    sources = library.sources()
    given = [source for source in sources if source.path in {path.absolute() for path in paths}]
    found = given or list(sources)
    if len(found) != 1:
        names = ", ".join(source.name for source in found[:3])
        raise ConfigError(
            f"--export writes one run, evaluation or record; here are {len(found)} ({names}...): name one"
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class _Made:
    """What a file is to hold."""

    data: bytes
    episodes: int
    told: Sequence[str]
    player: str | None = None
    mean: float | None = None
    others: tuple[_Made, ...] = ()


def _page(answers: Answers, source: Source, out: Path, only: Sequence[Place], step: str | None) -> _Made:
    found = collect(answers, source, only, step)
    page = single_page(page_files(), found.answers, f"{source.name} · palimpsest").data
    if len(page) > MOST_BYTES:
        what = f"its {len(found.episodes)} episodes" if found.episodes else "its figures"
        raise ConfigError(
            f"--export {out}: {what} would take {len(page) / 1e6:.1f} MB, {MOST_BYTES / 1e6:.0f} are the most; give "
            "fewer episodes with --only GROUP/ROLLOUT,..., or write them to a .jsonl"
        )
    return _Made(page, len(found.episodes), found.told)


def _episodes(answers: Answers, source: Source, out: Path, only: Sequence[Place], step: str | None) -> _Made:
    """Chosen episodes of a step, or all of it."""
    if source.kind is Kind.EVALUATION and out.suffix != ".jsonl":
        return _evaluation_logs(answers, source, out, only, step)
    chosen, groups, told = _recorded(answers, source, only, step)
    if out.suffix == ".jsonl":
        if not only and (log := answers.samples.at(source, chosen)) is not None:
            told += unrecorded(log.samples, keys_of(groups), "and are not in the file")
        return _Made(json_lines(groups), sum(len(group.trajectories) for group in groups), told)
    described = Described(source.name, _model(answers, source), record_path(source, chosen).stat().st_mtime)
    entries = entries_of(groups)
    return _Made(_log_data(answers, source, out, entries, described), len(entries), told)


def _recorded(
    answers: Answers, source: Source, only: Sequence[Place], step: str | None
) -> tuple[str, list[Group], list[str]]:
    """A step, its chosen episodes, and what was left out."""
    steps = [str(each) for each in answers.get(f"/api/runs/{source.key}/steps")]
    if not steps or (step is not None and step not in steps):
        raise ConfigError(f"--step {step or ''}: {source.name} has no record of episodes of it")
    chosen = step or steps[-1]
    index = answers.records.index(source, chosen)
    found = index.rows()
    known = {(row["group"], row["rollout"]) for row in found.rows}
    if strays := [place for place in only if place not in known]:
        raise ConfigError(f"--only {strays[0][0]}/{strays[0][1]}: no such episode in step {chosen}")
    told = [] if len(steps) == 1 else [f"episodes are of step {chosen}"]
    told += [found.torn] if found.torn else []
    return chosen, _groups(only or worst_first(found.rows), index.group, told), told


def _log_data(answers: Answers, source: Source, out: Path, entries: Sequence[Entry], described: Described) -> bytes:
    log = inspect_log(entries, answers.decoders.of(source).codec, described)
    return inspect_archive(log) if out.suffix == ".eval" else to_json(log)


def _evaluation_logs(answers: Answers, source: Source, out: Path, only: Sequence[Place], step: str | None) -> _Made:
    """The agent's log, and one for each further policy and each baseline."""
    logged = answers.samples.all(source)
    groups, told = list[Group](), list[str]()
    if only or step is not None or answers.get(f"/api/runs/{source.key}/steps"):
        _, groups, told = _recorded(answers, source, only, step)
    samples = logged.samples
    if only:
        chosen = keys_of(groups)
        samples = [sample for sample in samples if episode_key(sample) in chosen]
        told.append(f"the log's score is of {counted(len(samples), 'chosen episode')}, not of the whole evaluation")
    told += [not_asked_told(logged.not_asked)] if logged.not_asked else []
    told += [f"{logged.unreadable} lines of {SAMPLES} can't be read and are left out"] if logged.unreadable else []
    policies, players = answers.facts.policies(source), dict[str, list[Sample]]()
    for sample in sorted(samples, key=lambda each: (each.baseline is not None, each.baseline or "")):
        players.setdefault(player_of(sample.baseline, policy_of(sample, policies)), []).append(sample)
    made = [_player_log(answers, source, out, player, own, groups, told) for player, own in players.items()]
    if not made:
        raise ConfigError(f"--export {out}: {source.name} holds no episode that was asked for")
    return replace(made[0], others=tuple(made[1:]))


def _player_log(
    answers: Answers,
    source: Source,
    out: Path,
    player: str,
    samples: Sequence[Sample],
    groups: Sequence[Group],
    told: Sequence[str],
) -> _Made:
    """The log of an agent, or of one baseline."""
    own = [*told, *unrecorded(samples, keys_of(groups), "and have a score without messages")]
    metadata: dict[str, Any] = {"player": player, "left_out": own}
    if samples[0].baseline is None:
        policies = answers.facts.policies(source)
        metadata["policy"] = policy_of(samples[0], policies) or ", ".join(policies) or None
    described = Described(
        source.name if player == AGENT else f"{source.name}, {player.partition(': ')[2]}",
        _model(answers, source),
        updated(source) or 0.0,
        _STATUS.get(answers.facts.row(source)["status"], "cancelled"),
        metadata,
    )
    entries = evaluation_entries(samples, groups)
    values = [sample.value for sample in samples if sample.value is not None]
    data = _log_data(answers, source, out, entries, described)
    return _Made(data, len(entries), own, player, fmean(values) if values else None)


_STATUS = {Status.FINISHED: "success", Status.RUNNING: "started"}
"""Status of an evaluation to inspect's; of any other `cancelled`."""


def _groups(chosen: Iterable[Place], group_at: Callable[[int], Group], told: list[str]) -> list[Group]:
    """The groups of the chosen episodes, in their order, with those alone; one that can't be read is left out."""
    wanted: dict[int, list[int]] = {}
    for group, rollout in sorted(chosen):
        wanted.setdefault(group, []).append(rollout)
    found = []
    for place, rollouts in wanted.items():
        try:
            whole = group_at(place)
        except PalimpsestError as error:
            told.append(left_out(f"group {place}", error))
            continue
        found.append(
            replace(
                whole,
                trajectories=tuple(whole.trajectories[each] for each in rollouts),
                grades=tuple(whole.grades[each] for each in rollouts),
            )
        )
    return found


def _model(answers: Answers, source: Source) -> str:
    return answers.facts.model(source) or "unknown"


def player_path(out: Path, player: str) -> Path:
    """Where the log of a further player lies.

    >>> player_path(Path("logs/hotpot.eval"), "baseline: closed book").as_posix()
    'logs/hotpot.closed-book.eval'
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "-", player.partition(": ")[2]).strip("-")
    return out.with_name(f"{out.stem}.{name}{out.suffix}")


def _written(out: Path, made: _Made, *, force: bool, progress: Progress) -> Exported:
    logs = {out: made, **{player_path(out, str(each.player)): each for each in made.others}}
    for path in logs:
        free_file(path, force=force, progress=progress, option="--export")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, each in logs.items():
            files.write_file(path, each.data)
    except OSError as error:
        raise RunError(f"--export {out}: can't be written ({error.strerror}); give another path") from None
    first, *others = (
        Exported(path, len(each.data), each.episodes, tuple(each.told), each.player, each.mean)
        for path, each in logs.items()
    )
    return replace(first, others=tuple(others))


# ---- The viewer as a service ---------------------------------------------------------------------------------


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
        server = Server(service.app(), taken, grace_seconds=2)
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
