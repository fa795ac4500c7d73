"""Names in docstrings exist: `names` in backticks, MixedCase words, files and constants such as `module.NAME`."""

from __future__ import annotations

import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "scripts", "benchmarks", "examples")
CODE = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
FILES = [*CODE, *(ROOT / "tests").rglob("*.py")]
MODULES = {path.stem: [other for other in CODE if other.stem == path.stem] for path in CODE}
FOREIGN = {
    *(
        "PyTorch",
        "NumPy",
        "TensorBoard",
        "TextWorld",
        "JavaScript",
        "WebSocket",
        "SentencePiece",
        "DeepSeekMath",
        "DasGupta",
        "AutoCompact",
    ),
    *("FlexAttention", "BlockMask", "vector_norm", "EvalLog"),  # of torch and inspect
    *("goldAnswers", "a_b", "MyRule", "MyLayer", "MyPrompts", "mine.py", "packing.py"),  # examples, other projects
    *("NAME_before", "TASK_LENGTH", "SPLIT_DOCUMENTS", "SPLIT", "SHARD", "objectives_K", "restarted"),  # placeholders
}
"""Names that are not in this repository's code."""
_NAME = re.compile(
    r"`(?P<code>[\w.]+(?:\([^`]*\))?)`|(?P<file>\b[\w/]+\.py\b)|(?P<mixed>\b(?:[A-Z][a-z0-9]+){2,}\b)"
    r"|\b(?P<module>[a-z]\w+)\.(?P<constant>[A-Z_]{3,})\b"
)


def docstrings(tree: ast.AST) -> list[ast.Constant]:
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [node for node in values if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def names_in(text: str) -> set[str]:
    """Identifiers and the words of strings, without docstrings and comments."""
    nodes, words = list(ast.walk(ast.parse(text))), set[str]()
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) not in prose:
            words.update(value for value in vars(node).values() if isinstance(value, str))
    return set(re.findall(r"\w+", " ".join(words)))


@cache
def names_of(path: Path) -> set[str]:
    return names_in(path.read_text("utf-8"))


@cache
def known_names() -> frozenset[str]:
    files = [path for path in FILES if path != Path(__file__)]
    names = set[str]().union(*map(names_of, files))
    recipes = " ".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.yaml"))
    return frozenset(names | set(re.findall(r"\w+", recipes)) | FOREIGN | set(dir(builtins)) | {p.stem for p in CODE})


def unknown(text: str) -> list[str]:
    """Names in the docstring `text` that nothing has."""
    missing = []
    for match in _NAME.finditer(text.partition(">>>")[0]):
        if file := match["file"]:
            there = file.rpartition("/")[2] in FOREIGN or any(str(path).endswith(f"/{file}") for path in FILES)
            missing += [] if there else [file]
            continue
        missing += [name for name in re.findall(r"[A-Za-z_]\w*", match[0]) if name not in known_names()]
        modules = MODULES.get(match["module"], [])
        defined = any(match["constant"] in names_of(path) for path in modules)
        missing += [match[0]] if modules and not defined else []
    return missing


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_in_a_docstring_exists(folder: str) -> None:
    stale = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in CODE
        if path.is_relative_to(ROOT / folder)
        for node in docstrings(ast.parse(path.read_text("utf-8")))
        for name in unknown(str(node.value))
    ]
    assert not stale


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Raises `GoneError` of http_services.py.", ["GoneError"]),
        ("see gone_module.py", ["gone_module.py"]),
        ("up to http_services.GONE_LIMIT", ["GONE_LIMIT", "http_services.GONE_LIMIT"]),
        ("up to http_connections.LONGEST_PAUSE, `ConfigError`", []),
    ],
)
def test_what_counts_as_stale(text: str, missing: list[str]) -> None:
    assert unknown(text) == missing
