"""The page as one HTML file: its modules, its styles and what it would ask for, so that it opens without a server.

    import { el, show as showRuns } from "./dom.js";     ->  const { el, show: showRuns } = modules["dom.js"];
    export function el(...) {...}                        ->  function el(...) {...}   return { el };

Every module becomes a function of its own, in the order in which they import each other; the answers are gzip, as
base64, in an element that nothing executes. A content security policy names the hashes of the one script and the one
style, so that nothing else runs, and lets nothing be asked of anywhere.

Guaranteed: equal content gives equal bytes; no text of an answer can end the element it stands in.
Not covered: any other form of import and export than those above: it is refused.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath
from typing import Any

import orjson

from palimpsest.text.storable import to_json, valid

MAIN = "main.js"
_IMPORT = re.compile(r'^import \{ ([\w$, ]+?),? \} from "(\.{1,2}/[\w./-]+)";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const) ([A-Za-z_$][\w$]*))", re.MULTILINE)
_OTHER = re.compile(r"^\s*(?:import\b|export\b).*$", re.MULTILINE)

_STYLE = re.compile(r'<link rel="stylesheet" href="/page/([\w./-]+)">')

_BEGIN = """
const held = document.getElementById("answers");
const packed = Uint8Array.from(atob(held.textContent.trim()), (c) => c.charCodeAt(0));
const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
held.id = "embedded";
held.textContent = text;
"""


def single_page(pages: Mapping[str, bytes], answers: Mapping[str, Any], title: str) -> bytes:
    """One HTML file of the page's files (view/page_files.py) and the answers by their paths."""
    script = bundled({name: data.decode("utf-8") for name, data in pages.items() if name.endswith(".js")})
    index = pages["index.html"].decode("utf-8")
    style = "\n".join(pages[name].decode("utf-8") for name in _STYLE.findall(index))  # the later one wins, as there
    packed = base64.b64encode(gzip.compress(to_json(dict(answers)), 9, mtime=0))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{_text(valid(title))}</title>",
            '<link rel="icon" href="data:,">',
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            _body(index),
            f'<script type="application/octet-stream" id="answers">{packed.decode("ascii")}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    ).encode("utf-8")


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
    return f"modules[{_name(name)}] = (() => {{\n{body.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();"


def _bound(name: str, names: str, path: str) -> str:
    """
    >>> _bound("main.js", "el, show as showRuns", "./screens/runs.js")
    'const { el, show: showRuns } = modules["screens/runs.js"];'
    """
    pairs = ", ".join(each.strip().replace(" as ", ": ") for each in names.split(","))
    return f"const {{ {pairs} }} = modules[{_name(_resolved(name, path))}];"


def _resolved(name: str, path: str) -> str:
    return normpath(join(dirname(name), path))


def _name(name: str) -> str:
    return orjson.dumps(name).decode()


def _body(index: str) -> str:
    """What stands in the body of the page's own file."""
    body = re.search(r"<body>\n?(.*?)\n?</body>", index, re.DOTALL)
    if body is None or "<script" in body[1]:
        raise ValueError("index.html has no body without scripts")
    return body[1]


def _hash(text: str) -> str:
    """
    >>> _hash("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
