"""What the page asks for, as values that JSON can hold: a function of a path and a query, without a server.

The paths stand in `_PATHS`; an export asks for them in advance and keeps what they gave.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palimpsest.viewer.records.alarms import to_json
from palimpsest.viewer.records.record_index import RowCache
from palimpsest.viewer.records.recorded_episodes import (
    ALL,
    MOST_MEASURED,
    SECONDS,
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
from palimpsest.viewer.screens.evaluation_screen import Samples, evaluation_view, logs_of, parts_view
from palimpsest.viewer.screens.group_screen import group_view
from palimpsest.viewer.screens.open_groups import OpenedGroups
from palimpsest.viewer.screens.turn_screen import token_view, turn_view

Query = Mapping[str, str]

_PATHS = (
    (r"/api/runs", "_runs"),
    (r"/api/runs/([^/]+)", "_run"),
    (r"/api/runs/([^/]+)/metrics", "_metrics"),
    (r"/api/runs/([^/]+)/timings", "_timings"),
    (r"/api/runs/([^/]+)/events", "_events"),
    (r"/api/runs/([^/]+)/alarms", "_alarms"),
    (r"/api/runs/([^/]+)/items", "_items"),
    (r"/api/runs/([^/]+)/steps", "_steps"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/episodes", "_episodes"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/measures", "_measures"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/decoder", "_decoder"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/groups/(\d{1,9})", "_group"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/groups/(\d{1,9})/rollouts/(\d{1,9})", "_rollout"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/groups/(\d{1,9})/rollouts/(\d{1,9})/turns/(\d{1,9})", "_turn"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/groups/(\d{1,9})/rollouts/(\d{1,9})/turns/(\d{1,9})/tokens", "_tokens"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/groups/(\d{1,9})/rollouts/(\d{1,9})/turns/(\d{1,9})/blame", "_blame"),
    (r"/api/runs/([^/]+)/steps/([^/]+)/groups/(\d{1,9})/rollouts/(\d{1,9})/search", "_search"),
)
"""Pattern to the method that answers it."""


class ViewerApi:
    """The API over a library. Threads may share it."""

    def __init__(
        self,
        library: Library,
        *,
        tokenizer: str | None = None,
        cache: Path | None = None,
        titles: Mapping[str, str] | None = None,
    ) -> None:
        """`tokenizer`: decodes everything in place of what the files name; `cache`: folder for rows of large files;
        `titles`: what the tasks of a run's evaluations are called."""
        self.library, self._titles = library, titles
        self.facts = RunFacts()
        self.decoders = Decoders(self.facts, tokenizer)
        self.records = Records(self.decoders, None if cache is None else RowCache(cache))
        self.opened = OpenedGroups(self.records, self.decoders, self.facts)
        self.samples = Samples()
        self._routes = [(re.compile(pattern), getattr(self, name)) for pattern, name in _PATHS]

    def get(self, path: str, query: Query | None = None) -> Any:
        """The answer to a path. Raises NotThere for one that is none, and for what isn't there any more."""
        for pattern, answer in self._routes:
            if match := pattern.fullmatch(path):
                return answer(query or {}, *match.groups())
        raise NotThere(f"{path[:200]!r}: no such path")

    def read_ahead(self) -> None:
        """Open the first episode where one file is all that is shown: a long one takes a second, and is there when the
        page asks for it. Raises as `get` does."""
        sources = self.library.sources()
        if len(sources) == 1 and sources[0].kind is SourceKind.RECORD:
            self.get(f"/api/runs/{sources[0].key}/steps/{ALL}/groups/0/rollouts/0")

    def _runs(self, query: Query) -> Any:
        sources, left = self.library.listed()
        rows = [self.facts.row(source) for source in sources]
        awaited = [] if rows else list(self.library.awaited())
        return {"runs": rows, "left": left, "awaited": awaited}

    def _run(self, query: Query, key: str) -> Any:
        source = self.library.source(key)
        evaluated = any(path.is_file() for path in logs_of(source).values())
        return {**self.facts.all(source), "evaluated": evaluated, "recorded": bool(steps_of(source))}

    def _metrics(self, query: Query, key: str) -> Any:
        keys = query["keys"].split(",") if query.get("keys") else None
        return self.facts.metrics(self._training(key), number(query, "since", -1), keys)

    def _timings(self, query: Query, key: str) -> Any:
        return self.facts.timings(self._training(key), number(query, "since", -1))

    def _events(self, query: Query, key: str) -> Any:
        return self.facts.events(self._training(key), number(query, "since", 0))

    def _alarms(self, query: Query, key: str) -> Any:
        source = self.library.source(key)
        return to_json(self.facts.alarms(source)) if source.kind is SourceKind.RUN else []

    def _items(self, query: Query, key: str) -> Any:
        source = self.library.source(key)
        logs = self.samples.of(source)
        if not logs:
            raise NotThere(
                f"{source.name} holds no evaluation; palimpsest eval --model {source.path} --out DIR makes one"
            )
        places, more = self._places(source)
        return {**evaluation_view(logs, places, self._titles_of(source)), "more": more}

    def _steps(self, query: Query, key: str) -> Any:
        return steps_of(self.library.source(key))

    def _episodes(self, query: Query, key: str, step: str) -> Any:
        source = self.library.source(key)
        found = self.records.episodes(source, step, max(0, number(query, "from", 0)))
        if (log := self.samples.at(source, step)) is None:
            return found
        titles = self._titles_of(source) or {}
        samples = by_key(log.samples)
        rows = [played_row(row, samples.get((row["gid"], row["draw"])), titles) for row in found["rows"]]
        return {**found, "rows": rows, "parts": parts_view(log.samples, titles)}

    def _measures(self, query: Query, key: str, step: str) -> Any:
        groups = [
            int(each) for each in query.get("groups", "").split(",")[:MOST_MEASURED] if re.fullmatch(r"\d{1,9}", each)
        ]
        return self.records.measures(self.library.source(key), step, groups)

    def _decoder(self, query: Query, key: str, step: str) -> Any:
        return {"why": self.decoders.of(self.library.source(key)).why}

    def _group(self, query: Query, key: str, step: str, group: str) -> Any:
        source = self.library.source(key)
        return self._with_player(source, step, self.opened.look(source, step, int(group), group_view))

    def _rollout(self, query: Query, key: str, step: str, group: str, rollout: str) -> Any:
        source = self.library.source(key)
        found = self.opened.look(source, step, int(group), lambda opened: episode_view(opened, int(rollout)))
        return self._with_player(source, step, found)

    def _with_player(self, source: Source, step: str, found: dict[str, Any]) -> dict[str, Any]:
        """A group or an episode with its player and part, where it is an evaluation's."""
        log = self.samples.at(source, step)
        draws = (sample for sample in log.samples if episode_key(sample)[0] == found["group"]) if log else iter(())
        sample = next(draws, None)
        return found if sample is None else {**found, **played_by(sample, self._titles_of(source) or {})}

    def _turn(self, query: Query, key: str, step: str, group: str, rollout: str, turn: str) -> Any:
        source = self.library.source(key)
        return self.opened.look(source, step, int(group), lambda opened: turn_view(opened, int(rollout), int(turn)))

    def _tokens(self, query: Query, key: str, step: str, group: str, rollout: str, turn: str) -> Any:
        source = self.library.source(key)
        return self.opened.look(source, step, int(group), lambda opened: token_view(opened, int(rollout), int(turn)))

    def _blame(self, query: Query, key: str, step: str, group: str, rollout: str, turn: str) -> Any:
        source = self.library.source(key)
        return self.opened.look(source, step, int(group), lambda opened: blame_view(opened, int(rollout), int(turn)))

    def _search(self, query: Query, key: str, step: str, group: str, rollout: str) -> Any:
        source, text = self.library.source(key), query.get("text", "")
        return self.opened.look(source, step, int(group), lambda opened: search_view(opened, int(rollout), text))

    def _titles_of(self, source: Source) -> Mapping[str, str] | None:
        """None where the source is no run: its sets are anybody's."""
        return self._titles if source.kind is SourceKind.RUN else None

    def _places(self, source: Source) -> tuple[dict[tuple[str, str, int], tuple[int, int]], bool]:
        """(step, group id, draw) to (group, rollout) of the episodes that an evaluation recorded, as far as they could
        be read within `SECONDS`, and whether there are more.
        """
        found, more, until = {}, False, time.monotonic() + SECONDS
        for step in logs_of(source):
            try:
                record_path(source, step)
            except NotThere:
                continue
            rows = self.records.index(source, step).rows(max(0.0, until - time.monotonic()))
            more = more or rows.more
            for row in rows.rows:
                found[step, row["gid"], row["draw"]] = (row["group"], row["rollout"])
        return found, more

    def _training(self, key: str) -> Source:
        source = self.library.source(key)
        if source.kind is not SourceKind.RUN:
            raise NotThere(f"{key!r} is no run: it has no steps")
        return source


def number(query: Query, name: str, default: int) -> int:
    """A whole number of a query. Raises NotThere for what is none."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"-?\d{1,15}", text):
        raise NotThere(f"{name}={text[:60]!r}: give a whole number")
    return int(text)
