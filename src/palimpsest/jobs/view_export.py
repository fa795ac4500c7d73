"""What `palimpsest view RUN --export FILE` writes: one page, JSON lines, or a log of inspect's.

    FILE.html            opens from anywhere, without a server         FILE.jsonl   episodes as a record has them
    FILE.eval, .json     a log that `inspect view` opens

Guaranteed: a file is written whole or not at all; of a page at most `MOST_BYTES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from palimpsest import files
from palimpsest.errors import ConfigError
from palimpsest.types import Group
from palimpsest.view.answers import Answers
from palimpsest.view.export import MOST_BYTES, Place, collect, worst_first
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
) -> Exported:
    """Write what is chosen of the one run, evaluation or record in `paths`. Raises ConfigError, RunError."""
    if out.suffix not in _KINDS:
        raise ConfigError(f"--export {out}: expected a name that ends in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    library = Library(paths)
    source = _only_source(library, paths)
    answers, chosen = Answers(library, tokenizer=tokenizer), places(only)
    return (_page if out.suffix == ".html" else _episodes)(answers, source, out, chosen, step)


def places(only: str | None) -> tuple[Place, ...]:
    """The episodes that `--only` names. Raises ConfigError.

    >>> places("3/2, 0/1")
    ((3, 2), (0, 1))
    """
    found = []
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


def _page(answers: Answers, source: Source, out: Path, only: Sequence[Place], step: str | None) -> Exported:
    found = collect(answers, source, only, step)
    page = single_page(page_files(), found.answers, f"{source.name} · palimpsest")
    if len(page) > MOST_BYTES:
        what = f"its {len(found.episodes)} episodes" if found.episodes else "its figures"
        raise ConfigError(
            f"--export {out}: {what} would take {len(page) / 1e6:.1f} MB, {MOST_BYTES / 1e6:.0f} are the most; give "
            "fewer episodes with --only GROUP/ROLLOUT,..., or write them to a .jsonl"
        )
    return _written(out, page, len(found.episodes), found.told)


def _episodes(answers: Answers, source: Source, out: Path, only: Sequence[Place], step: str | None) -> Exported:
    """Chosen episodes of a step, or all of it."""
    at = f"/api/runs/{source.key}"
    steps = [str(each) for each in answers.get(f"{at}/steps")]
    if not steps or (step is not None and step not in steps):
        raise ConfigError(f"--step {step or ''}: {source.name} has no record of episodes of it")
    chosen = step or steps[-1]
    index = answers.records.index(source, chosen)
    rows = index.rows().rows
    known = {(row["group"], row["rollout"]) for row in rows}
    if strays := [place for place in only if place not in known]:
        raise ConfigError(f"--only {strays[0][0]}/{strays[0][1]}: no such episode in step {chosen}")
    groups = _groups(only or worst_first(rows), index.group)
    told = [] if len(steps) == 1 else [f"episodes are of step {chosen}"]
    if out.suffix == ".jsonl":
        data = json_lines(groups)
    else:
        described = Described(source.name, _model(answers, source), record_path(source, chosen).stat().st_mtime)
        log = inspect_log(groups, answers.decoders.of(source).codec, described)
        data = inspect_archive(log) if out.suffix == ".eval" else orjson.dumps(log, option=orjson.OPT_NON_STR_KEYS)
    return _written(out, data, sum(len(group.trajectories) for group in groups), told)


def _groups(chosen: Iterable[Place], group_at: Callable[[int], Group]) -> list[Group]:
    """The groups of the chosen episodes, in their order, with those alone."""
    wanted: dict[int, list[int]] = {}
    for group, rollout in sorted(chosen):
        wanted.setdefault(group, []).append(rollout)
    found = []
    for place, rollouts in wanted.items():
        whole = group_at(place)
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


def _written(out: Path, data: bytes, episodes: int, told: Sequence[str]) -> Exported:
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_file(out, data)
    return Exported(out, len(data), episodes, tuple(told))
