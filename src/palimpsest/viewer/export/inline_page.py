"""The page as one HTML file, and the files it is made of.

    import { el, show as showRuns } from "./dom.js";     ->  const { el, show: showRuns } = modules["dom.js"];
    export function el(...) {...}                        ->  function el(...) {...}   return { el };

Every module becomes a function of its own, in the order in which they import each other, so that a browser asks once
and not module by module; the answers are gzip, as base64, in an element that nothing executes. A content security
policy names the hashes of the one script and the one style, so that nothing else runs; a page that holds its answers
can ask nobody, another its own server alone.

Guaranteed: equal content gives equal bytes; no text of an answer can end the element it stands in.
Not covered: any other form of import and export than those above: it is refused.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import as_file, files
from posixpath import dirname, join, normpath
from typing import Any

from palimpsest.text.json_text import to_json, valid

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
    """One HTML file of the page's files (this file) and the answers by their paths; without answers it asks
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
    told = f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    before = before.replace(_CHARSET, told).replace(_TITLE, f"<title>{escape(valid(title))}</title>")
    before = before.replace(_HTML, '<html lang="en" data-follow="yes">') if follow else before
    behind = behind.replace(_MAIN, f"{_element_of(answers)}<script>{script}</script>")
    return Page(f"{before}<style>{style}</style>\n{behind}".encode(), policy)


def bundled(modules: Mapping[str, str]) -> str:
    """One script of the modules that `main.js` needs, by their names below the page's folder. Raises ValueError."""
    parts = [_module(name, modules[name]) for name in in_order(modules)]
    script = "\n".join(["(async () => {", '"use strict";', _BEGIN.strip(), "const modules = {};", *parts, "})();"])
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
    pairs = ", ".join(each.strip().replace(" as ", ": ") for each in names.split(","))
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
