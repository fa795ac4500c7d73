"""The page as one HTML file, and the contents of an export: facts, metrics, alarms and selected episodes.

    import { el, show as showRuns } from "./dom.js";     ->  const { el, show: showRuns } = modules["dom.js"];
    export function el(...) {...}                        ->  function el(...) {...}   return { el };

Each module becomes a function, in import order, so that a browser sends one request instead of one per module. The
answers are gzip, as base64, in an element that nothing executes. A content security policy lists the hashes of the only
script and the only style, so that nothing else runs. A page with answers may connect to no server, other pages only to
the server they came from.

The answers are those a server would return for the same path without a query. If no episodes are named, the export
takes those of the last step up to a size limit, in the order of `worst_first`.

Guaranteed: equal content yields equal bytes; no text of an answer can end its element; the export reports omissions,
also damaged parts of a record and episodes of foreign types, which affect no other episode; any other error is a defect
and stops the export.
Not covered: forms of import and export other than the ones above: they are errors.
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
"""Part of index.html that the inlined script replaces."""

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
    """Its content security policy, also part of the file."""


def single_page(
    pages: Mapping[str, bytes],
    answers: Mapping[str, Any] | None = None,
    title: str = "palimpsest",
    *,
    follow: bool = False,
) -> Page:
    """One HTML file from the page's files and the answers; without answers it queries its server, with `follow`
    repeatedly.
    """
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
    """One script of the modules that `main.js` needs, named by path below the page's folder. Raises ValueError."""
    bodies = [_module(name, modules[name]) for name in in_order(modules)]
    script = "\n".join(["(async () => {", '"use strict";', _BEGIN.strip(), "const modules = {};", *bodies, "})();"])
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a module contains text that would end its script element")
    return script


def in_order(modules: Mapping[str, str], main: str = MAIN) -> list[str]:
    """The modules that `main` needs, imports first, `main` last. Raises ValueError for a cycle.

    >>> in_order({"main.js": 'import { a } from "./x/y.js";', "x/y.js": 'import { b } from "../z.js";', "z.js": ""})
    ['z.js', 'x/y.js', 'main.js']
    """
    done: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"import cycle of modules: {' -> '.join((*above, name))}")
        if name not in modules:
            raise ValueError(f"{above[-1] if above else 'the page'} imports {name}, which is not a module of the page")
        if name not in done:
            for _, path in _IMPORT.findall(modules[name]):
                visit(_resolved(name, path), (*above, name))
            done[name] = None

    visit(main, ())
    return list(done)


def _module(name: str, text: str) -> str:
    exported = _EXPORT.findall(text)
    body = _IMPORT.sub(lambda match: _bound(name, match[1], match[2]), _EXPORT.sub("", text))
    if other := _OTHER.search(body):
        raise ValueError(f"{name}: unsupported import or export in an exported page: {other[0].strip()!r}")
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
    links = _STYLES.search(index)
    if links is None or any(index.count(part) != 1 for part in (_HTML, _CHARSET, _TITLE, _MAIN)):
        raise ValueError("index.html lacks the style links or the script")
    return index[: links.start()], links[0], index[links.end() :]


def _element_of(answers: Mapping[str, Any] | None) -> str:
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
_EPISODES, _BYTES = 8, 8_000_000
"""Number of episodes taken by default, and the size in bytes that stops adding more."""
EpisodeIndex = tuple[int, int]
"""Group and rollout, counted from 0."""
_OVERVIEW = ("", "/metrics", "/timings", "/events", "/alarms", "/items", "/steps")


@dataclass(frozen=True, slots=True)
class Content:
    """Contents of one exported file."""

    data: bytes
    episodes: int
    notes: Sequence[str]
    player: str | None = None
    """`agent`, `agent: POLICY` or `baseline: NAME`; only for a log."""
    mean: float | None = None
    """Mean score of a log; None for a page, or if nothing is graded."""


@dataclass
class Export:
    """Answers by path, and notes about them."""

    answers: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Approximate bytes in a file."""
    notes: list[str] = field(default_factory=list)
    episodes: list[EpisodeIndex] = field(default_factory=list)

    def add(self, answers: ViewerApi, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The answer at a path; None if missing."""
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
    """Contents of a file for `source`. Raises ConfigError for a missing episode or step."""
    export, chosen = _collected(answers, source, only, step)
    first: dict[str, Any] = {"run": source.key}
    if source.kind is SourceKind.RECORD:
        first["step"] = chosen
    if only and chosen is not None:
        first = {"run": source.key, "step": chosen, "group": only[0][0], "rollout": only[0][1]}
    export.put("/api/export", {"notes": export.notes, "first": first})
    return export


def _collected(
    answers: ViewerApi, source: Source, only: Sequence[EpisodeIndex], step: str | None
) -> tuple[Export, str | None]:
    export, at = Export(), f"/api/runs/{quote(source.key, safe='')}"
    runs = answers.get("/api/runs")["runs"]
    export.put("/api/runs", {"runs": [run for run in runs if run["key"] == source.key]})
    for name in _OVERVIEW:
        export.add(answers, at + name)
    steps = export.answers.get(f"{at}/steps") or []
    chosen = chosen_step(source, steps, step)
    if chosen is None:
        export.notes.append(f"{source.name} has no record of episodes; the page has only its metrics")
        return export, None
    if len(steps) > 1:
        export.put(f"{at}/steps", [value for value in steps if str(value) == chosen])
        export.notes.append(f"this page has the episodes of step {chosen} only")
    rows = _rows(answers, export, f"{at}/steps/{quote(chosen, safe='')}")
    if (log := answers.samples.at(source, chosen)) is not None:
        recorded = {(row["gid"], row["draw"]) for row in rows}
        export.notes += unrecorded(log.samples, recorded, "and have no page")
    _episodes(answers, export, f"{at}/steps/{quote(chosen, safe='')}", rows, only)
    return export, chosen


def chosen_step(source: Source, steps: Sequence[int | str], requested: str | None) -> str | None:
    """The requested step, by default the last; None if no step is recorded."""
    recorded = [str(value) for value in steps]
    if requested is not None and requested not in recorded:
        available = f"steps {recorded[0]} to {recorded[-1]}" if recorded else "no step"
        raise ConfigError(f"--step {requested}: not recorded in {source.name}, which has {available}")
    return requested or (recorded[-1] if recorded else None)


def _rows(answers: ViewerApi, export: Export, at: str) -> list[dict[str, Any]]:
    answer = answers.get(f"{at}/episodes")
    export.put(f"{at}/episodes", answer)
    if answer["torn"]:
        export.notes.append(answer["torn"])
    export.add(answers, f"{at}/decoder")
    return list(answer["rows"])


def check_places(only: Sequence[EpisodeIndex], rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for an index without a row."""
    recorded = {(row["group"], row["rollout"]) for row in rows}
    for episode in only:
        if episode not in recorded:
            raise ConfigError(
                f"--episodes {episode[0]}/{episode[1]}: no such episode in this step; GROUP/ROLLOUT count from 0"
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
        export.notes.append(f"omitted {left} of the step's {len(rows)} episodes; select others with --episodes")
    _measures(answers, export, at, rows)
    _strips(answers, export)


def _measures(answers: ViewerApi, export: Export, at: str, rows: Sequence[Mapping[str, Any]]) -> None:
    groups, measured = list(dict.fromkeys(group for group, _ in export.episodes)), dict[str, Any]()
    for start in range(0, len(groups), MOST_MEASURED):
        query = {"groups": ",".join(map(str, groups[start : start + MOST_MEASURED]))}
        measured |= _if_available(answers, export, f"{at}/measures", query) or {}
    if measured:  # empty without a tokenizer, which the page reports
        left = [f"{row['group']}/{row['rollout']}" for row in rows if row["group"] not in groups]
        measured |= {name: {"left_out": True} for name in left}
    export.put(f"{at}/measures", measured)


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[EpisodeIndex]:
    """The agent's episodes, then those of baselines. Each round takes one episode per group: first failed ones by
    ascending reward, then ungraded ones, then correct ones; the next round takes the second ones.

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
    """A note about an omission."""
    reason = " ".join(str(error).split())[:200]
    return f"{what} omitted: unreadable ({reason})"


def _episode(answers: ViewerApi, export: Export, at: str, index: EpisodeIndex) -> bool:
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
    left = 0
    for path in [path for path in export.answers if re.search(r"/turns/\d+$", path)]:
        if export.size > _BYTES:
            left += 1
            continue
        _if_available(answers, export, f"{path}/tokens")
        if f"{path}/blame" not in export.answers:
            _if_available(answers, export, f"{path}/blame")
    if left:
        export.notes.append(f"omitted token strips and blame of {left} turns")


def _if_available(answers: ViewerApi, export: Export, path: str, query: Mapping[str, str] | None = None) -> Any:
    try:
        return export.add(answers, path, query)
    except PalimpsestError as error:
        export.notes.append(left_out(path.partition("/steps/")[2], error))
        return None
