"""Viewer API: JSON values as a function of a path and a query, without a server.

`_PATHS` and `_VIEWS` list the paths; an export requests them in advance and stores the answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from palimpsest.viewer.records.recorded_episodes import (
    ALL,
    MOST_MEASURED,
    Decoders,
    Records,
    by_key,
    episode_key,
    played_by,
    played_row,
    record_path,
    steps_of,
)
from palimpsest.viewer.records.run_facts import RunFacts
from palimpsest.viewer.records.sources import Library, NotThere, Source, SourceKind
from palimpsest.viewer.screens.episode_screen import blame_view, episode_view, search_view
from palimpsest.viewer.screens.evaluation_screen import EpisodePlaces, Samples, cells_view, evaluation_view, logs_of
from palimpsest.viewer.screens.group_screen import OpenedGroups, group_view
from palimpsest.viewer.screens.turn_screen import token_view, turn_view

Query = Mapping[str, str]

_RUN, _STEP = r"/api/runs/([^/]+)", r"/steps/([^/]+)"
_GROUP, _ROLLOUT, _TURN = (rf"/{name}/(\d{{1,9}})" for name in ("groups", "rollouts", "turns"))
_PATHS = (
    ("", "_run"),
    ("/(metrics|timings|events)", "_rows"),
    ("/alarms", "_alarms"),
    ("/items", "_items"),
    ("/steps", "_steps"),
    (f"{_STEP}/episodes", "_episodes"),
    (f"{_STEP}/measures", "_measures"),
    (f"{_STEP}/decoder", "_decoder"),
    (f"{_STEP}{_GROUP}{_ROLLOUT}/search", "_search"),
)
"""The rest of a run's path, to the method that answers it."""
_VIEWS: tuple[tuple[str, Callable[..., dict[str, Any]]], ...] = (
    ("", group_view),
    (_ROLLOUT, episode_view),
    (_ROLLOUT + _TURN, turn_view),
    (f"{_ROLLOUT}{_TURN}/tokens", token_view),
    (f"{_ROLLOUT}{_TURN}/blame", blame_view),
)
"""The rest of a group's path, to the function that answers it."""


class ViewerApi:
    """The API over a library. Thread-safe."""

    def __init__(self, library: Library, *, tokenizer: str | None = None) -> None:
        """`tokenizer`: decodes everything and overrides the files."""
        self.library = library
        self.facts = RunFacts()
        self.decoders = Decoders(self.facts, tokenizer)
        self.records = Records(self.decoders)
        self.opened = OpenedGroups(self.records, self.decoders, self.facts)
        self.samples = Samples()
        self._routes = [(re.compile(_RUN + pattern), getattr(self, name)) for pattern, name in _PATHS]
        self._routes += [(re.compile(_RUN + _STEP + _GROUP + path), partial(self._view, view)) for path, view in _VIEWS]

    def get(self, path: str, query: Query | None = None) -> Any:
        """The answer to a path. Raises NotThere for an unknown path or a removed item."""
        if path == "/api/runs":
            return self._runs()
        for pattern, answer in self._routes:
            if match := pattern.fullmatch(path):
                key, *rest = match.groups()
                return answer(query or {}, self.library.source(key), *rest)
        raise NotThere(f"{path[:200]!r}: no such path")

    def read_ahead(self) -> None:
        """Open the first episode of a single-file library, so that it is ready for the page. Raises as `get` does."""
        sources = self.library.sources()
        if len(sources) == 1 and sources[0].kind is SourceKind.RECORD:
            self.get(f"/api/runs/{sources[0].key}/steps/{ALL}/groups/0/rollouts/0")

    def _runs(self) -> Any:
        sources, left = self.library.listed()
        rows = [self.facts.row(source) for source in sources]
        awaited = [] if rows else list(self.library.awaited())
        return {"runs": rows, "left": left, "awaited": awaited}

    def _run(self, query: Query, source: Source) -> Any:
        evaluated = any(path.is_file() for path in logs_of(source).values())
        return {**self.facts.all(source), "evaluated": evaluated}

    def _rows(self, query: Query, source: Source, name: str) -> Any:
        if source.kind is not SourceKind.RUN:
            raise NotThere(f"{source.key!r} is not a run and has no steps")
        keys = query["keys"].split(",") if query.get("keys") else None
        return self.facts.rows(source, name, number(query, "since", 0 if name == "events" else -1), keys)

    def _alarms(self, query: Query, source: Source) -> Any:
        return list(map(asdict, self.facts.alarms(source))) if source.kind is SourceKind.RUN else []

    def _items(self, query: Query, source: Source) -> Any:
        logs = self.samples.of(source)
        if not logs:
            raise NotThere(f"{source.name} contains no evaluation; run palimpsest eval {source.path} --out DIR")
        return evaluation_view(logs, self._places(source), self._titles_of(source))

    def _places(self, source: Source) -> EpisodePlaces:
        episodes = {}
        for step in logs_of(source):
            try:
                record_path(source, step)
            except NotThere:
                continue
            for row in self.records.index(source, step).rows().rows:
                episodes[step, row["gid"], row["draw"]] = (row["group"], row["rollout"])
        return episodes

    def _steps(self, query: Query, source: Source) -> Any:
        return steps_of(source)

    def _episodes(self, query: Query, source: Source, step: str) -> Any:
        index = self.records.index(source, step).rows()
        answer = {"rows": index.rows, "groups": index.groups, "torn": index.torn}
        if (log := self.samples.at(source, step)) is None:
            return answer
        titles, samples = self._titles_of(source), by_key(log.samples)
        rows = [played_row(row, samples.get((row["gid"], row["draw"])), titles) for row in index.rows]
        return {**answer, "rows": rows, "parts": cells_view(log.samples, titles)}

    def _measures(self, query: Query, source: Source, step: str) -> Any:
        groups = query.get("groups", "").split(",")[:MOST_MEASURED]
        return self.records.measures(source, step, [int(group) for group in groups if re.fullmatch(r"\d{1,9}", group)])

    def _decoder(self, query: Query, source: Source, step: str) -> Any:
        return {"why": self.decoders.of(source).why}

    def _search(self, query: Query, source: Source, step: str, group: str, rollout: str) -> Any:
        text = query.get("text", "")
        return self.opened.look(source, step, int(group), lambda opened: search_view(opened, int(rollout), text))

    def _view(
        self, view: Callable[..., dict[str, Any]], query: Query, source: Source, step: str, group: str, *places: str
    ) -> Any:
        answer = self.opened.look(source, step, int(group), lambda opened: view(opened, *map(int, places)))
        log = self.samples.at(source, step) if "group" in answer else None
        draws = (sample for sample in log.samples if episode_key(sample)[0] == answer["group"]) if log else iter(())
        sample = next(draws, None)
        return answer if sample is None else {**answer, **played_by(sample, self._titles_of(source))}

    def _titles_of(self, source: Source) -> Mapping[str, str]:
        evaluation = self.facts.config(source).get("evaluation") if source.kind is SourceKind.RUN else None
        labels = evaluation.get("labels") if isinstance(evaluation, dict) else None
        return labels if isinstance(labels, dict) else {}


def number(query: Query, name: str, default: int) -> int:
    """An integer of a query. Raises NotThere for other values."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"-?\d{1,15}", text):
        raise NotThere(f"{name}={text[:60]!r}: not a whole number")
    return int(text)
