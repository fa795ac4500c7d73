"""What `palimpsest view RUN --export FILE` writes: one page, JSON lines, or a log of inspect's.

    FILE.html            opens from anywhere, without a server         FILE.jsonl   episodes as a record has them
    FILE.eval, .json     a log that `inspect view` opens

Guaranteed: a file is written whole or not at all, never over what is read or inside a run or evaluation that is, and
over another file with `force` alone, which moves that aside; of a page at most `MOST_BYTES`; what is damaged, or of
other types than a record's, is left out, and that is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from palimpsest import files
from palimpsest.errors import ConfigError, PalimpsestError, RunError
from palimpsest.jobs.methods import TITLES
from palimpsest.jobs.set_folder import free_file, refuse_inside
from palimpsest.progress.progress import Progress, Silent
from palimpsest.text.storable import to_json
from palimpsest.types import Group
from palimpsest.view.answers import Answers
from palimpsest.view.export import MOST_BYTES, Place, collect, left_out, worst_first
from palimpsest.view.export_lines import Described, inspect_archive, inspect_log, json_lines
from palimpsest.view.inline_page import single_page
from palimpsest.view.page_files import page_files
from palimpsest.view.records import record_path
from palimpsest.view.sources import Library, Source

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
    at = f"/api/runs/{source.key}"
    steps = [str(each) for each in answers.get(f"{at}/steps")]
    if not steps or (step is not None and step not in steps):
        raise ConfigError(f"--step {step or ''}: {source.name} has no record of episodes of it")
    chosen = step or steps[-1]
    index = answers.records.index(source, chosen)
    found = index.rows()
    rows = found.rows
    known = {(row["group"], row["rollout"]) for row in rows}
    if strays := [place for place in only if place not in known]:
        raise ConfigError(f"--only {strays[0][0]}/{strays[0][1]}: no such episode in step {chosen}")
    told = [] if len(steps) == 1 else [f"episodes are of step {chosen}"]
    told += [found.torn] if found.torn else []
    groups = _groups(only or worst_first(rows), index.group, told)
    if out.suffix == ".jsonl":
        data, episodes = json_lines(groups), sum(len(group.trajectories) for group in groups)
    else:
        described = Described(source.name, _model(answers, source), record_path(source, chosen).stat().st_mtime)
        log = inspect_log(groups, answers.decoders.of(source).codec, described)
        data = inspect_archive(log) if out.suffix == ".eval" else to_json(log)
        episodes = len(log["samples"])
    return _Made(data, episodes, told)


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
    model = answers.facts.config(source).get("model")
    path = model.get("path") if isinstance(model, dict) else None
    return path if isinstance(path, str) else "unknown"


def _written(out: Path, made: _Made, *, force: bool, progress: Progress) -> Exported:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free_file(out, force=force, progress=progress, option="--export")
        files.write_file(out, made.data)
    except OSError as error:
        raise RunError(f"--export {out}: can't be written ({error.strerror}); give another path") from None
    return Exported(out, len(made.data), made.episodes, tuple(made.told))
