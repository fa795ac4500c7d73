"""What an exported file holds of a run, an evaluation or a record: facts, metrics, alarms, and chosen episodes.

Where no episodes are named, those of the last step that went wrong come first, the agent's before those of baselines,
then others, as many as a bound admits. Everything is what the page would ask a server for, by the same path; for what
is there a query is left out, and the whole is given.

Guaranteed: nothing is written; what was left out is told, a damaged part of a record and episodes of other types than a
record's among it, which lose no other; any other error is a defect, and ends it.
Not covered: comparisons, and pages of other runs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.text.json_text import to_json
from palimpsest.viewer.records.recorded_episodes import AGENT, MOST_MEASURED, unrecorded
from palimpsest.viewer.records.sources import Kind, NotThere, Source
from palimpsest.viewer.screens.viewer_api import Answers

MOST_BYTES = 20_000_000
"""Of a file."""
_EPISODES, _BYTES = 8, 8_000_000
"""Episodes that are taken where none are named, and bytes after which no further one is."""
_MEASURED_TOKENS = 20_000_000
"""Tokens of prompts and replies after which no further group is measured: some minutes."""
_WHOLE = ("", "/metrics", "/timings", "/events", "/alarms", "/items", "/steps")
Place = tuple[int, int]
"""Group and rollout, places from 0."""


@dataclass
class Export:
    """Answers by path, and what is to be known of them."""

    answers: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Bytes that they take in a file, about."""
    told: list[str] = field(default_factory=list)
    episodes: list[Place] = field(default_factory=list)

    def add(self, answers: Answers, path: str, query: Mapping[str, str] | None = None) -> Any:
        """What the path gives; None where there is nothing."""
        try:
            found = answers.get(path, query or {})
        except NotThere:
            return None
        self.put(path, found)
        return found

    def put(self, path: str, found: Any) -> None:
        self.answers[path] = found
        packed = zlib.compress(to_json(found), 1)
        self.size += len(packed) * 4 // 3


def collect(answers: Answers, source: Source, only: Sequence[Place] = (), step: str | None = None) -> Export:
    """What a file of `source` is to hold. Raises ConfigError for an episode or step that isn't there."""
    export, chosen = _collected(answers, source, only, step)
    first: dict[str, Any] = {"run": source.key}
    if source.kind is Kind.RECORD:
        first["step"] = chosen
    if only and chosen is not None:
        first = {"run": source.key, "step": chosen, "group": only[0][0], "rollout": only[0][1]}
    export.put("/api/export", {"told": export.told, "first": first})
    return export


def _collected(answers: Answers, source: Source, only: Sequence[Place], step: str | None) -> tuple[Export, str | None]:
    """And the step whose episodes it holds."""
    export, at = Export(), f"/api/runs/{quote(source.key, safe='')}"
    runs = answers.get("/api/runs")["runs"]
    export.put("/api/runs", {"runs": [run for run in runs if run["key"] == source.key]})
    for name in _WHOLE:
        found = export.add(answers, at + name)
        while isinstance(found, dict) and found.get("more"):
            found = export.add(answers, at + name)
    steps = export.answers.get(f"{at}/steps") or []
    chosen = _step(source, steps, step)
    if chosen is None:
        export.told.append(f"{source.name} has no record of episodes: its figures alone")
        return export, None
    if len(steps) > 1:
        export.put(f"{at}/steps", [each for each in steps if str(each) == chosen])
        export.told.append(f"episodes are of step {chosen}, other steps have none here")
    rows = _rows(answers, export, f"{at}/steps/{quote(chosen, safe='')}")
    if (log := answers.samples.at(source, chosen)) is not None:
        recorded = {(row["gid"], row["draw"]) for row in rows}
        export.told += unrecorded(log.samples, recorded, "and have no page of their own here")
    _episodes(answers, export, f"{at}/steps/{quote(chosen, safe='')}", rows, only)
    return export, chosen


def _step(source: Source, steps: Sequence[int | str], asked: str | None) -> str | None:
    """The step whose episodes are taken: the last, unless another is asked for."""
    known = [str(each) for each in steps]
    if asked is not None and asked not in known:
        told = f"{known[0]} to {known[-1]} are" if known else "no step is"
        raise ConfigError(f"--step {asked}: {source.name} has no record of it; {told} recorded")
    return asked or (known[-1] if known else None)


def _rows(answers: Answers, export: Export, at: str) -> list[dict[str, Any]]:
    """A row for each episode of the step."""
    found = answers.get(f"{at}/episodes", {})
    rows = list(found["rows"])
    while found.get("more"):
        found = answers.get(f"{at}/episodes", {"from": str(len(rows))})
        rows += found["rows"]
    export.put(f"{at}/episodes", {**found, "rows": rows, "more": False})
    if found["torn"]:
        export.told.append(found["torn"])
    export.add(answers, f"{at}/decoder")
    return rows


def _episodes(answers: Answers, export: Export, at: str, rows: list[dict[str, Any]], only: Sequence[Place]) -> None:
    known = {(row["group"], row["rollout"]) for row in rows}
    for place in only:
        if place not in known:
            raise ConfigError(f"--only {place[0]}/{place[1]}: no such episode in this step; GROUP/ROLLOUT count from 0")
    for place in only or agent_first(rows):
        if not only and (len(export.episodes) >= _EPISODES or export.size > _BYTES):
            break
        if _episode(answers, export, at, place):
            export.episodes.append(place)
    if left := len(known) - len(set(export.episodes)):
        export.told.append(f"{left} of the step's {len(known)} episodes are left out; --only names others")
    _measures(answers, export, at, rows)
    _strips(answers, export, at)


def _measures(answers: Answers, export: Export, at: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """What memories kept and invented: of the groups that episodes are taken of, then of others up to a bound."""
    tokens = Counter[int]()
    for row in rows:
        tokens[row["group"]] += row["prompt_tokens"] + row["sampled_tokens"]
    first = dict.fromkeys(group for group, _ in export.episodes)
    chosen, total = list[int](), 0
    for group in dict.fromkeys((*first, *tokens)):
        total += tokens[group]
        if group in first or total <= _MEASURED_TOKENS:
            chosen.append(group)
    measured: dict[str, Any] = {}
    for start in range(0, len(chosen), MOST_MEASURED):
        asked = {"groups": ",".join(map(str, chosen[start : start + MOST_MEASURED]))}
        measured |= _if_told(answers, export, f"{at}/measures", asked) or {}
    if measured:  # else nothing is, for want of a tokenizer, which the page tells
        taken = set(chosen)
        left = [f"{row['group']}/{row['rollout']}" for row in rows if row["group"] not in taken]
        measured |= {place: {"left_out": True} for place in left}
        if left:
            export.told.append(
                f"evidence kept and invented aren't measured of {len(left)} episodes: it would take long"
            )
    export.put(f"{at}/measures", measured)


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Of each group an episode that went wrong, the lowest reward first, then those without a grade; then of each one
    that was right; then the second ones of each group...

    >>> rows = [{"group": 0, "rollout": at, "reward": value} for at, value in enumerate([1.0, 0.0, None, 0.0])]
    >>> worst_first(rows)
    [(0, 1), (0, 0), (0, 3), (0, 2)]
    """

    def rank(row: Mapping[str, Any]) -> tuple[int, float]:
        value = row["reward"]
        return (1, 0.0) if value is None else (0 if value < 1 else 2, value)

    seen: dict[tuple[int, bool], int] = {}
    keyed = []
    for row in sorted(rows, key=rank):
        right = rank(row)[0] == 2
        again = seen[row["group"], right] = seen.get((row["group"], right), -1) + 1
        keyed.append((again, rank(row), (row["group"], row["rollout"])))
    return [place for _, _, place in sorted(keyed)]


def agent_first(rows: Sequence[Mapping[str, Any]]) -> list[Place]:
    """`worst_first` of an agent's episodes, then of those of baselines.

    >>> at = {"rollout": 0, "reward": 0.0}
    >>> agent_first([{"group": 0, "player": "baseline: closed book", **at}, {"group": 1, "player": "agent", **at}])
    [(1, 0), (0, 0)]
    """
    own, others = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for row in rows:
        (own if row.get("player", AGENT) == AGENT else others).append(row)
    return worst_first(own) + worst_first(others)


def left_out(what: str, error: PalimpsestError) -> str:
    """That it can't be told, in a line."""
    said = " ".join(str(error).split())[:200]
    return f"{what} is left out: it can't be told ({said})"


def _episode(answers: Answers, export: Export, at: str, place: Place) -> bool:
    """Whether it is there now: whole or not at all."""
    before, size = dict(export.answers), export.size
    group = f"{at}/groups/{place[0]}"
    episode, turn = f"{group}/rollouts/{place[1]}", 0
    try:
        if group not in export.answers:
            export.put(group, answers.get(group))
        export.put(episode, answers.get(episode))
        while export.add(answers, f"{episode}/turns/{turn}") is not None:
            turn += 1
    except PalimpsestError as error:
        export.answers, export.size = before, size
        export.told.append(left_out(f"episode {place[0]}/{place[1]}", error))
        return False
    return True


def _if_told(answers: Answers, export: Export, path: str, query: Mapping[str, str] | None = None) -> Any:
    """What the path gives; None where it can't be told, which is told."""
    try:
        return export.add(answers, path, query)
    except PalimpsestError as error:
        export.told.append(left_out(path.partition("/steps/")[2], error))
        return None


def _strips(answers: Answers, export: Export, at: str) -> None:
    """Blame of each last turn, then tokens and other blame as far as there is room."""
    turns = {
        place: [
            path for path in export.answers if path.startswith(f"{at}/groups/{place[0]}/rollouts/{place[1]}/turns/")
        ]
        for place in export.episodes
    }
    for paths in turns.values():
        if paths:
            _if_told(answers, export, f"{paths[-1]}/blame")
    left = 0
    for paths in turns.values():
        for path in paths:
            if export.size > _BYTES:
                left += 1
                continue
            _if_told(answers, export, f"{path}/tokens")
            if path is not paths[-1]:
                _if_told(answers, export, f"{path}/blame")
    if left:
        export.told.append(f"token strips and blame of {left} turns are left out")
