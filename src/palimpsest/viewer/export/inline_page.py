"""The page as one HTML file, and what an exported one holds: facts, metrics, alarms, and chosen episodes.

    import { el, show as showRuns } from "./dom.js";     ->  const { el, show: showRuns } = modules["dom.js"];
    export function el(...) {...}                        ->  function el(...) {...}   return { el };

Every module becomes a function of its own, in the order in which they import each other, so that a browser asks once
and not module by module; the answers are gzip, as base64, in an element that nothing executes. A content security
policy names the hashes of the one script and the one style, so that nothing else runs; a page that holds its answers
can ask nobody, another its own server alone.

The answers are what the page would ask a server for, by the same path without a query. Where no episodes are named,
those of the last step that went wrong come first, the agent's before those of baselines, then others, as many as a
bound admits.

Guaranteed: equal content gives equal bytes; no text of an answer can end the element it stands in; what was left out is
told, a damaged part of a record and episodes of other types than a record's among it, which lose no other; any other
error is a defect, and ends it.
Not covered: any other form of import and export than those above: it is refused.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import as_file, files
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import quote

from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.text.json_text import to_json, valid
from palimpsest.viewer.records.recorded_episodes import AGENT, MOST_MEASURED, unrecorded
from palimpsest.viewer.records.sources import NotThere, Source, SourceKind
from palimpsest.viewer.screens.viewer_api import ViewerApi

# ---- The page as one file ------------------------------------------------------------------------------------


MAIN = "main.js"
_KINDS = (".html", ".js", ".css", ".svg")
_IMPORT = re.compile(r'^import \{ ([\w$, ]+?),? \} from "(\.{1,2}/[\w./-]+)";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const) ([A-Za-z_$][\w$]*))", re.MULTILINE)
_OTHER = re.compile(r"^\s*(?:import\b|export\b).*$", re.MULTILINE)

_HTML, _CHARSET, _TITLE = '<html lang="en">', '<meta charset="utf-8">', "<title>palimpsest</title>"
_STYLES = re.compile(r'(?:<link rel="stylesheet" href="[\w./-]+">\n)+')
_MAIN = f'<script type="module" src="{MAIN}"></script>'
"""What of index.html is replaced."""

_BEGIN = """
const held = document.getElementById("answers");
if (held) {
  const packed = Uint8Array.from(atob(held.textContent.trim()), (c) => c.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  held.id = "embedded";
  held.textContent = text;
}
"""


@dataclass(frozen=True, slots=True)
class Page:
    """One HTML file."""

    data: bytes
    policy: str
    """Its content security policy, which stands in it too."""


def single_page(
    pages: Mapping[str, bytes],
    answers: Mapping[str, Any] | None = None,
    title: str = "palimpsest",
    *,
    follow: bool = False,
) -> Page:
    """One HTML file of the page's files and the answers by their paths; without answers it asks
    its server, and with `follow` again and again."""
    script = bundled({name: data.decode("utf-8") for name, data in pages.items() if name.endswith(".js")})
    index = pages["index.html"].decode("utf-8")
    before, links, behind = _parted(index)
    style = "\n".join(pages[name].decode("utf-8") for name in re.findall(r'href="([^"]+)"', links))  # the later wins
    asks = "connect-src 'self'; " if answers is None else ""
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; {asks}"
        "base-uri 'none'; form-action 'none'"
    )
    meta = f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    before = before.replace(_CHARSET, meta).replace(_TITLE, f"<title>{escape(valid(title))}</title>")
    before = before.replace(_HTML, '<html lang="en" data-follow="yes">') if follow else before
    behind = behind.replace(_MAIN, f"{_element_of(answers)}<script>{script}</script>")
    return Page(f"{before}<style>{style}</style>\n{behind}".encode(), policy)


def bundled(modules: Mapping[str, str]) -> str:
    """One script of the modules that `main.js` needs, by their names below the page's folder. Raises ValueError."""
    bodies = [_module(name, modules[name]) for name in in_order(modules)]
    script = "\n".join(["(async () => {", '"use strict";', _BEGIN.strip(), "const modules = {};", *bodies, "})();"])
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a module holds what would end the script that it is put in")
    return script


def in_order(modules: Mapping[str, str], main: str = MAIN) -> list[str]:
    """The modules that `main` needs, each behind those it imports, itself last. Raises ValueError for a cycle.

    >>> in_order({"main.js": 'import { a } from "./x/y.js";', "x/y.js": 'import { b } from "../z.js";', "z.js": ""})
    ['z.js', 'x/y.js', 'main.js']
    """
    done: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"modules import each other in a circle: {' -> '.join((*above, name))}")
        if name not in modules:
            raise ValueError(f"{above[-1] if above else 'the page'} imports {name}, which is no module of the page")
        if name not in done:
            for _, path in _IMPORT.findall(modules[name]):
                visit(_resolved(name, path), (*above, name))
            done[name] = None

    visit(main, ())
    return list(done)


def _module(name: str, text: str) -> str:
    """A module as a function that is called at once and gives what the module exports."""
    exported = _EXPORT.findall(text)
    body = _IMPORT.sub(lambda match: _bound(name, match[1], match[2]), _EXPORT.sub("", text))
    if other := _OTHER.search(body):
        raise ValueError(f"{name}: {other[0].strip()!r} is no import or export that an exported page can hold")
    return f"modules[{json.dumps(name)}] = (() => {{\n{body.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();"


def _bound(name: str, names: str, path: str) -> str:
    """
    >>> _bound("main.js", "el, show as showRuns", "./screens/runs.js")
    'const { el, show: showRuns } = modules["screens/runs.js"];'
    """
    pairs = ", ".join(binding.strip().replace(" as ", ": ") for binding in names.split(","))
    return f"const {{ {pairs} }} = modules[{json.dumps(_resolved(name, path))}];"


def _resolved(name: str, path: str) -> str:
    return normpath(join(dirname(name), path))


def _parted(index: str) -> tuple[str, str, str]:
    """What stands before the links to styles, these, and what stands behind them."""
    links = _STYLES.search(index)
    if links is None or any(index.count(part) != 1 for part in (_HTML, _CHARSET, _TITLE, _MAIN)):
        raise ValueError("index.html lacks what a page is put together from")
    return index[: links.start()], links[0], index[links.end() :]


def _element_of(answers: Mapping[str, Any] | None) -> str:
    """What holds the answers."""
    if answers is None:
        return ""
    packed = base64.b64encode(gzip.compress(to_json(dict(answers)), 9, mtime=0)).decode("ascii")
    return f'<script type="application/octet-stream" id="answers">{packed}</script>\n'


def _hash(text: str) -> str:
    """
    >>> _hash("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


# ---- The files of the page, which are a part of the package --------------------------------------------------


def page_files() -> dict[str, bytes]:
    """Content by the name below `page/`: `index.html`, `screens/run.js`..."""
    with as_file(files("palimpsest.viewer") / "page") as folder:
        paths = sorted(path for path in folder.rglob("*") if path.suffix in _KINDS)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# ---- What an exported file holds -----------------------------------------------------------------------------


MOST_BYTES = 20_000_000
"""Of a file."""
_EPISODES, _BYTES = 8, 8_000_000
"""Episodes that are taken where none are named, and bytes after which no further one is."""
EpisodeIndex = tuple[int, int]
"""Group and rollout, places from 0."""
_OVERVIEW = ("", "/metrics", "/timings", "/events", "/alarms", "/items", "/steps")


@dataclass(frozen=True, slots=True)
class Content:
    """What a file is to hold."""

    data: bytes
    episodes: int
    notes: Sequence[str]
    """What was left out."""
    player: str | None = None
    """`agent`, `agent: POLICY` or `baseline: NAME`, of a log."""
    mean: float | None = None
    """Mean score of a log; None where nothing is graded, and of a page."""


@dataclass
class Export:
    """Answers by path, and what is to be known of them."""

    answers: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Bytes that they take in a file, about."""
    notes: list[str] = field(default_factory=list)
    episodes: list[EpisodeIndex] = field(default_factory=list)

    def add(self, answers: ViewerApi, path: str, query: Mapping[str, str] | None = None) -> Any:
        """What the path gives; None where there is nothing."""
        try:
            answer = answers.get(path, query or {})
        except NotThere:
            return None
        self.put(path, answer)
        return answer

    def put(self, path: str, answer: Any) -> None:
        self.answers[path] = answer
        packed = zlib.compress(to_json(answer), 1)
        self.size += len(packed) * 4 // 3


def collect(answers: ViewerApi, source: Source, only: Sequence[EpisodeIndex] = (), step: str | None = None) -> Export:
    """What a file of `source` is to hold. Raises ConfigError for an episode or step that isn't there."""
    export, chosen = _collected(answers, source, only, step)
    first: dict[str, Any] = {"run": source.key}
    if source.kind is SourceKind.RECORD:
        first["step"] = chosen
    if only and chosen is not None:
        first = {"run": source.key, "step": chosen, "group": only[0][0], "rollout": only[0][1]}
    export.put("/api/export", {"told": export.notes, "first": first})
    return export


def _collected(
    answers: ViewerApi, source: Source, only: Sequence[EpisodeIndex], step: str | None
) -> tuple[Export, str | None]:
    """And the step whose episodes it holds."""
    export, at = Export(), f"/api/runs/{quote(source.key, safe='')}"
    runs = answers.get("/api/runs")["runs"]
    export.put("/api/runs", {"runs": [run for run in runs if run["key"] == source.key]})
    for name in _OVERVIEW:
        export.add(answers, at + name)
    steps = export.answers.get(f"{at}/steps") or []
    chosen = chosen_step(source, steps, step)
    if chosen is None:
        export.notes.append(f"{source.name} has no record of episodes: its figures alone")
        return export, None
    if len(steps) > 1:
        export.put(f"{at}/steps", [value for value in steps if str(value) == chosen])
        export.notes.append(f"episodes are of step {chosen}, other steps have none here")
    rows = _rows(answers, export, f"{at}/steps/{quote(chosen, safe='')}")
    if (log := answers.samples.at(source, chosen)) is not None:
        recorded = {(row["gid"], row["draw"]) for row in rows}
        export.notes += unrecorded(log.samples, recorded, "and have no page of their own here")
    _episodes(answers, export, f"{at}/steps/{quote(chosen, safe='')}", rows, only)
    return export, chosen


def chosen_step(source: Source, steps: Sequence[int | str], requested: str | None) -> str | None:
    """The step whose episodes are taken: the last, unless another is asked for; None where none is recorded."""
    recorded = [str(value) for value in steps]
    if requested is not None and requested not in recorded:
        available = f"{recorded[0]} to {recorded[-1]} are" if recorded else "no step is"
        raise ConfigError(f"--step {requested}: {source.name} has no record of it; {available} recorded")
    return requested or (recorded[-1] if recorded else None)


def _rows(answers: ViewerApi, export: Export, at: str) -> list[dict[str, Any]]:
    """A row for each episode of the step."""
    answer = answers.get(f"{at}/episodes")
    export.put(f"{at}/episodes", answer)
    if answer["torn"]:
        export.notes.append(answer["torn"])
    export.add(answers, f"{at}/decoder")
    return list(answer["rows"])


def check_places(only: Sequence[EpisodeIndex], rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for a place that no row is of."""
    recorded = {(row["group"], row["rollout"]) for row in rows}
    for episode in only:
        if episode not in recorded:
            raise ConfigError(
                f"--only {episode[0]}/{episode[1]}: no such episode in this step; GROUP/ROLLOUT count from 0"
            )


def _episodes(
    answers: ViewerApi, export: Export, at: str, rows: list[dict[str, Any]], only: Sequence[EpisodeIndex]
) -> None:
    check_places(only, rows)
    for episode in only or worst_first(rows):
        if not only and (len(export.episodes) >= _EPISODES or export.size > _BYTES):
            break
        if _episode(answers, export, at, episode):
            export.episodes.append(episode)
    if left := len(rows) - len(export.episodes):
        export.notes.append(f"{left} of the step's {len(rows)} episodes are left out; --only names others")
    _measures(answers, export, at, rows)
    _strips(answers, export)


def _measures(answers: ViewerApi, export: Export, at: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """What memories kept and invented, of the groups that episodes are taken of."""
    groups, measured = list(dict.fromkeys(group for group, _ in export.episodes)), dict[str, Any]()
    for start in range(0, len(groups), MOST_MEASURED):
        query = {"groups": ",".join(map(str, groups[start : start + MOST_MEASURED]))}
        measured |= _if_available(answers, export, f"{at}/measures", query) or {}
    if measured:  # else nothing is, for want of a tokenizer, which the page tells
        left = [f"{row['group']}/{row['rollout']}" for row in rows if row["group"] not in groups]
        measured |= {name: {"left_out": True} for name in left}
    export.put(f"{at}/measures", measured)


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[EpisodeIndex]:
    """The agent's episodes, then those of baselines. Of each group one that went wrong, the lowest reward first, then
    those without a grade; then of each one that was right; then the second ones of each group...

    >>> rows = [{"group": 0, "rollout": at, "reward": value} for at, value in enumerate([1.0, 0.0, None, 0.0])]
    >>> worst_first([{"group": 1, "rollout": 0, "reward": 0.0, "player": "baseline: closed book"}, *rows])
    [(0, 1), (0, 0), (0, 3), (0, 2), (1, 0)]
    """

    def rank(row: Mapping[str, Any]) -> tuple[int, float]:
        value = row["reward"]
        return (1, 0.0) if value is None else (0 if value < 1 else 2, value)

    counts, keyed = Counter[tuple[int, bool]](), []
    for row in sorted(rows, key=rank):
        kind = row["group"], rank(row)[0] == 2
        other = row.get("player", AGENT).partition(":")[0] != AGENT
        keyed.append((other, counts[kind], rank(row), (row["group"], row["rollout"])))
        counts[kind] += 1
    return [episode for *_, episode in sorted(keyed)]


def left_out(what: str, error: PalimpsestError) -> str:
    """That it can't be told, in a line."""
    reason = " ".join(str(error).split())[:200]
    return f"{what} is left out: it can't be told ({reason})"


def _episode(answers: ViewerApi, export: Export, at: str, index: EpisodeIndex) -> bool:
    """Whether it is there now: whole or not at all."""
    before, size = dict(export.answers), export.size
    group = f"{at}/groups/{index[0]}"
    episode, turn = f"{group}/rollouts/{index[1]}", 0
    try:
        if group not in export.answers:
            export.put(group, answers.get(group))
        export.put(episode, answers.get(episode))
        while export.add(answers, f"{episode}/turns/{turn}") is not None:
            turn += 1
    except PalimpsestError as error:
        export.answers, export.size = before, size
        export.notes.append(left_out(f"episode {index[0]}/{index[1]}", error))
        return False
    if turn:
        _if_available(answers, export, f"{episode}/turns/{turn - 1}/blame")
    return True


def _strips(answers: ViewerApi, export: Export) -> None:
    """Tokens and blame of the turns, as far as there is room."""
    left = 0
    for path in [path for path in export.answers if re.search(r"/turns/\d+$", path)]:
        if export.size > _BYTES:
            left += 1
            continue
        _if_available(answers, export, f"{path}/tokens")
        if f"{path}/blame" not in export.answers:
            _if_available(answers, export, f"{path}/blame")
    if left:
        export.notes.append(f"token strips and blame of {left} turns are left out")


def _if_available(answers: ViewerApi, export: Export, path: str, query: Mapping[str, str] | None = None) -> Any:
    """What the path gives; None where it can't be told, which is told."""
    try:
        return export.add(answers, path, query)
    except PalimpsestError as error:
        export.notes.append(left_out(path.partition("/steps/")[2], error))
        return None
