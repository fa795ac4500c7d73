"""Write the tables in the docs that are generated from the code: python scripts/docs_tables.py, or make docs-tables.

They stand between `<!-- name -->` and `<!-- /name -->`; tests/test_docs.py holds that they are current.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from palimpsest.config.schema import PolicyConfig, RoleConfig, RunConfig
from palimpsest.memory.registry import POLICIES

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def docstrings(cls: type[Any]) -> dict[str, str]:
    """Field name to the string below it in the source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def type_words(annotation: Any, limits: str = "") -> str:
    """An annotation as a reader of YAML would say it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("`null`" if a is type(None) else type_words(a, limits) for a in arguments)
    if origin is tuple:
        return f"list of {type_words(arguments[0])}s"
    if origin is dict:
        named: dict[Any, str] = {
            PolicyConfig: "section of policies by name",
            RoleConfig: "section of `trained` and `model` by name",
        }
        return named.get(arguments[1], "section")
    names = {"str": "text", "int": "integer", "float": "number", "bool": "`true`, `false`", "LayerConfig": "name"}
    return names[annotation.__name__] + limits


def bounds(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{signs[k]} {v}" for m in field.metadata for k in signs if (v := getattr(m, k, None)) is not None]
    return f" {', '.join(limits)}" if limits else ""


def yaml_words(value: Any) -> str:
    """A default as a recipe would write it."""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("None", "`null`") for cell in cells) + " |"


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section's class of `Section` or `Section | None`."""
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    options = list(typing.get_args(annotation)) if union else [annotation]
    options = [typing.get_args(a)[0] if typing.get_origin(a) is typing.Annotated else a for a in options]
    return next((a for a in options if isinstance(a, type) and issubclass(a, BaseModel)), None)


def keys_of(model: type[BaseModel], prefix: str, defaults: BaseModel | None) -> Iterator[str]:
    """Rows of one section, sections inside it included. `defaults`: the section as it is where nothing is said."""
    said = docstrings(model)
    for name, field in model.model_fields.items():
        default = getattr(defaults, name) if defaults else field.get_default(call_default_factory=True)
        section = section_in(field.annotation)
        if section is not None:
            if default is None:
                about = (section.__doc__ or "").strip().splitlines()[0]
                yield row(f"`{prefix}{name}`", "section or `null`", "`null`", said.get(name, about))
            yield from keys_of(section, f"{prefix}{name}.", default)
            continue
        shown = "required" if field.is_required() else yaml_words(default)
        yield row(f"`{prefix}{name}`", type_words(field.annotation, bounds(field)), shown, said.get(name, ""))


HEADER = row("key", "value", "default", "meaning") + "\n|---|---|---|---|\n"


def key_tables() -> str:
    """Every key of the configuration, a table a section."""
    tables, plain = [], []
    said = docstrings(RunConfig)
    for name, field in RunConfig.model_fields.items():
        section = section_in(field.annotation)
        if section is not None:
            rows = list(keys_of(section, f"{name}.", field.default))
            tables.append(f"### {name}\n\n" + HEADER + "\n".join(rows))
            if field.default is None:
                about = (section.__doc__ or "").strip().splitlines()[0]
                plain.append(row(f"`{name}`", "section or `null`", "`null`", about))
        else:
            default = field.get_default(call_default_factory=True)
            plain.append(row(f"`{name}`", type_words(field.annotation), yaml_words(default), said.get(name, "")))
    return "\n\n".join(["### top level\n\n" + HEADER + "\n".join(plain), *tables])


def dataclass_table(cls: type[Any], prefix: str) -> str:
    """Options of a dataclass with their defaults and what its base classes' docstrings say."""
    said: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        said |= docstrings(each)
    rows = [
        row(f"`{prefix}{field.name}`", yaml_words(default_of(field)), said.get(field.name, ""))
        for field in dataclasses.fields(cls)
        if field.init
    ]
    return row("option", "default", "meaning") + "\n|---|---|---|\n" + "\n".join(rows)


def default_of(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def option_tables() -> str:
    return "\n\n".join(f"### {name}\n\n{dataclass_table(cls, '')}" for name, cls in POLICIES.items())


def base_model_table() -> str:
    from palimpsest.base.make import BaseModelConfig

    return dataclass_table(BaseModelConfig, "")


def example() -> str:
    return f"```python\n{page('examples/quotes.py')}```"


def example_engine() -> str:
    return f"```python\n{page('examples/bigrams.py')}```"


def answer_pairs() -> str:
    from support.answer_pairs import table

    return table()


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/recipes.md", "keys"): key_tables,
    ("docs/recipes.md", "options"): option_tables,
    ("docs/base-model.md", "base-model-config"): base_model_table,
    ("docs/own-policy.md", "example"): example,
    ("docs/own-engine.md", "engine"): example_engine,
    ("docs/evaluation.md", "pairs"): answer_pairs,
}


def between(text: str, name: str) -> tuple[str, str, str]:
    """What stands before, between and after the markers called `name`."""
    before, opening, rest = text.partition(f"<!-- {name} -->\n")
    inside, closing, after = rest.partition(f"<!-- /{name} -->")
    assert all((opening, closing)), f"no pair of markers {name}"
    return before + opening, inside, closing + after


def write_tables() -> None:
    """Bring every generated table up to date."""
    for (name, marker), generate in GENERATED.items():
        before, _, after = between(page(name), marker)
        (ROOT / name).write_text(before + generate() + "\n" + after, "utf-8")


if __name__ == "__main__":
    sys.path.append(str(ROOT / "tests"))  # for the pairs of answers that the tests share
    write_tables()
