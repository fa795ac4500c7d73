"""Measures the English of Markdown, Python and JavaScript files.

    python scripts/plain_english.py README.md docs src
    python scripts/plain_english.py src --text messages          # FILE:LINE: TEXT, to grep
    python scripts/plain_english.py docs --max docs.p90=28       # exits with 1 above a limit

Kinds: docs (Markdown), help (docstrings and help= under cli/), docstrings, messages (strings of four words and more),
comments, names (identifiers of JavaScript), identifiers (of Python, as words). Code is left out; table cells count as
words, not as sentences. p50 and p90 are words per sentence, passive and fronted are percentages of sentences, house is
per 1,000 words or names.

Not covered: other languages' files; passives are found by a regular expression, so they are a trend.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

Passage = tuple[str, int, str]
"""(kind, line, text)"""
Reader = Callable[[str], Iterator[Passage]]

HOUSE = re.compile(
    r"(?i)\b(?:beside|anew|told|tells?|stands? (?:in|there|beside|alone|under|behind|for)"
    r"|(?:goes|go|went|gone|going) on|begun|nobody|somebody|whoever|at the (?:most|least)|refus(?:e[sd]?|al)"
    r"|of (?:one's|your|its|his|their) own"
    r"|in (?:its|their|the) place|in place of|so many|(?:is|are) no|isn't there|in sight|in words|learnt|lessons?"
    r"|made[- ]up|from nowhere|mend\w*|foretold|gravest|for want of|as it (?:is|was)|by itself|of what|comes? out"
    r"|otherwise than|what (?:it|they) \w+|lies|lay|said once|takes its place)\b"
)
HOUSE_NAMES = re.compile(
    r"(?:\b|(?=[A-Z]))(?i:told|tells?|asked|kept|found|place|beside|held|leads|lit|gravest|torn|mine|whole|unsaid|said"
    r"|says|spoken|unboxed|forget|painted|remember|trouble|made)(?![a-z])"
    r"|\b(?:parts|each|at|on|to|one|that|under|within|since|leading)\b"
)
"""Words, or whole names, that say neither what a value is nor what a function does."""
HOUSE_IDENTIFIERS = re.compile(
    r"(?i)\b(?:told|tell|asked|beside|given|found|place|each|known|said|seen|kept|own|parts|whole|others|begun|anew)\b"
)
"""The same for the words of Python's names, which longer names are made of."""
HOUSES = {"names": HOUSE_NAMES, "identifiers": HOUSE_IDENTIFIERS}
"""Kinds with house words of their own."""
KEYWORDS = re.compile(
    "async|await|break|case|catch|const|continue|default|delete|else|export|false|finally|for|from|function|if|import|in"
    "|instanceof|let|new|null|of|return|switch|this|throw|true|try|typeof|undefined|void|while|yield"
)
FRONTED = re.compile(
    r"^[-*#>\d. ]*(?:Of|What|Where|Who|Whoever|Whatever|Whose|Which|Whether|That|Those|Nor|Besides?|Told|As|So)\b"
    r"(?!.*\?)"
)
PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being|isn't|aren't) (?:not |never |\w+ly )?(?:\w+ed|told|held|kept|taken|given|made"
    r"|found|read|left|drawn|known|seen|written|done|shown|said|put|cut|sent|built|begun|chosen|lost|run|set|learnt"
    r"|meant|gone|cast|spent|split)\b"
)


def markdown(text: str) -> Iterator[Passage]:
    """Paragraphs, list items, headings and table rows."""
    code = r"\A---\n.*?^---$|<!--.*?-->|^ *```.*?^ *```"
    text = re.sub(code, lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    for block in re.finditer(r"(?:^(?! {4}).*\S.*\n?)+", text, re.M):
        line = text.count("\n", 0, block.start()) + 1
        for item in re.split(r"\n(?= *(?:[-*|#>]|\d+\.)[ |-])", block[0]):
            yield "docs", line, re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", item)
            line += item.count("\n") + 1


def defined_name(node: ast.AST) -> str:
    """Name that a definition, a parameter or an assignment gives, or ""."""
    stored = isinstance(getattr(node, "ctx", None), ast.Store)
    if stored or isinstance(node, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return next((getattr(node, key) for key in ("name", "arg", "id", "attr") if hasattr(node, key)), "")
    return ""


def python(text: str, docstrings: str) -> Iterator[Passage]:
    """Comments, docstrings (of the kind `docstrings`), help texts, other strings, and names that are defined."""
    for found in re.finditer(r"(?m)(?:^ *|  )# ?(\w.*)$", text):
        yield "comments", text.count("\n", 0, found.start(1)) + 1, found[1]
    nodes = list(ast.walk(ast.parse(text)))
    kinds = {id(node.value): docstrings for node in nodes if isinstance(node, ast.Expr)}
    kinds |= {id(node.value): "help" for node in nodes if isinstance(node, ast.keyword) and node.arg == "help"}
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if name := defined_name(node):
            yield "identifiers", getattr(node, "lineno", 0), name.replace("_", " ")
        if isinstance(node, ast.JoinedStr):
            string = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            string = node.value
        else:
            continue
        if id(node) in kinds or len(string.split()) > 3:
            for paragraph in re.split(r"\n\s*\n", string):
                yield kinds.get(id(node), "messages"), node.lineno, paragraph.partition(">>>")[0]


def javascript(text: str) -> Iterator[Passage]:
    """Comments, strings and names: identifiers other than keywords, properties and keys."""
    for found in re.finditer(r"(?m)(?:^|(?<=\s))// ?(\w.*)$", text):
        yield "comments", text.count("\n", 0, found.start(1)) + 1, found[1]
    text = re.sub(r"(?m)(?:^|(?<=\s))//.*$", "", text)
    text = re.sub(r"([(\[=,:!]\s*)/(?![*/])(?:\\.|\[[^\]\n]*\]|[^/\n\\])+/[a-z]*", r"\1", text)
    while template := re.search(r"`((?:[^`$\\]|\\.|\$(?!\{)|\$\{[^`]*?\})*)`", text):  # the innermost template first
        inner = " ".join(re.findall(r"\$(\{[^}]*\})", template[1]))
        words = re.sub(r"\$\{[^}]*\}", "X", template[1]).replace('"', "'").replace("\n", " ")
        lines = "\n" * (template[1].count("\n") - inner.count("\n"))
        text = f'{text[: template.start()]}"{words}" {inner}{lines}{text[template.end() :]}'
    for found in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', text):
        if len(found[1].split()) > 3:
            yield "messages", text.count("\n", 0, found.start()) + 1, found[1]
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text)
    for found in re.finditer(r"(?<![.\w$])[a-zA-Z_$][\w$]*\b(?!:)|\.\.\.[a-zA-Z_$][\w$]*", text):
        name = found[0].lstrip(".")
        if not KEYWORDS.fullmatch(name):
            yield "names", text.count("\n", 0, found.start()) + 1, name


def passages(paths: Iterable[Path]) -> dict[str, list[tuple[str, str]]]:
    """Kind to (FILE:LINE, text) of everything in files and folders."""
    found: dict[str, list[tuple[str, str]]] = {}
    files = (file for root in paths for file in ([root] if root.is_file() else sorted(root.rglob("*.*"))))
    for path in files:
        of_python = partial(python, docstrings="help" if "cli" in path.parts else "docstrings")
        readers: dict[str, Reader] = {".md": markdown, ".py": of_python, ".js": javascript}
        if path.suffix not in readers:
            continue
        for kind, line, passage in readers[path.suffix](path.read_text("utf-8")):
            found.setdefault(kind, []).append((f"{path}:{line}", " ".join(passage.split())))
    return found


def measure(texts: Iterable[str], house_words: re.Pattern[str] = HOUSE) -> dict[str, float]:
    """Figures of some texts."""
    flat = [" ".join(re.sub(r"`+[^`]*`+", "CODE", text).split()) for text in texts]
    end = r"(?<=[.!?])[*_)\"]* (?=[A-Z*\[(])"
    prose = [part for text in flat if text[:1] not in "|#" for part in re.split(end, text) if len(part.split()) > 3]
    sizes, words = sorted(len(part.split()) for part in prose) or [0], sum(len(text.split()) for text in flat)
    shares = {
        name: 100 * sum(bool(pattern.search(part)) for part in prose) / max(len(prose), 1)
        for name, pattern in (("passive", PASSIVE), ("fronted", FRONTED))
    }
    house = 1000 * sum(len(house_words.findall(text)) for text in flat) / max(words, 1)
    return {"words": words, "p50": sizes[len(sizes) // 2], "p90": sizes[len(sizes) * 9 // 10], **shares, "house": house}


def main() -> None:
    """Print figures, or the texts of one kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--text", metavar="KIND", help="print the texts of this kind")
    parser.add_argument("--max", nargs="*", default=[], metavar="KIND.FIGURE=LIMIT", help="exit with 1 above a limit")
    options = parser.parse_args()
    found = passages(options.paths)
    if options.text:
        print(*(f"{place}: {text}" for place, text in found.get(options.text, ())), sep="\n")
        return
    figures = {
        f"{kind}.{name}": value
        for kind, rows in found.items()
        for name, value in measure((text for _, text in rows), HOUSES.get(kind, HOUSE)).items()
    }
    for name, value in figures.items():
        print(f"{name:18}{value:10.1f}")
    limits = (limit.split("=") for limit in options.max)
    sys.exit(any(figures.get(name, 0) > float(most) for name, most in limits))


if __name__ == "__main__":
    main()
