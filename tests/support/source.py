"""The package as text: every module's syntax tree and every import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "palimpsest"


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    line: int
    deferred: bool
    """Inside a function."""


def modules() -> dict[str, ast.Module]:
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(names[:-1] if names[-1] == "__init__" else names)
        trees[name] = ast.parse(path.read_text("utf-8"), filename=str(path))
    return trees


MODULES = modules()


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Statements directly inside a statement, and the handlers and cases that hold some; no expressions."""
    for block in ("body", "handlers", "cases", "orelse", "finalbody"):
        inside = getattr(node, block, ())
        yield from inside if isinstance(inside, list) else ()  # the body of a lambda or a condition is none


def imports_of(name: str, tree: ast.Module) -> Iterator[Import]:
    """Every import except those under `if TYPE_CHECKING`, which never run."""

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from (Import(name, alias.name, node.lineno, deferred) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: relative import; name the module in full"
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                yield Import(name, full_name if full_name in MODULES else str(node.module), node.lineno, deferred)
        inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in statements_in(node):
            yield from walk(child, inside)

    return walk(tree, False)


IMPORTS = [each for name, tree in MODULES.items() for each in imports_of(name, tree)]
