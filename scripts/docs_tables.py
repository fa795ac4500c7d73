"""Write the generated tables of the docs: python scripts/docs_tables.py, or make docs-tables.

Tables are between `<!-- name -->` and `<!-- /name -->`; tests/test_docs.py checks that they are current.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.keys import all_keys, keys_of, option_keys, section_in
from palimpsest.config.schema import RunConfig
from palimpsest.data.formats.format_registry import FORMATS
from palimpsest.memory.registry import policy_class
from palimpsest.plugin_kinds import KINDS

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("None", "`null`") for cell in cells) + " |"


HEADER = row("key", "value", "default", "meaning") + "\n|---|---|---|---|\n"


def key_tables() -> str:
    """Every key of the configuration, a table a section."""
    sections = [name for name, field in RunConfig.model_fields.items() if section_in(field.annotation) is not None]
    keys = all_keys()
    tables = []
    for name in ("", *sections):
        own = (
            [key for key in keys if key.name.startswith(f"{name}.")] if name else [k for k in keys if "." not in k.name]
        )
        rows = "\n".join(row(f"`{key.name}`", key.values, key.default, key.meaning) for key in own)
        tables.append(f"### {name or 'top level'}\n\n{HEADER}{rows}")
    return "\n\n".join(tables)


def endpoint_keys() -> str:
    """Keys of `engine.name=endpoint`."""
    keys = keys_of(EndpointEngineConfig, "engine.", None)
    return HEADER + "\n".join(row(f"`{key.name}`", key.values, key.default, key.meaning) for key in keys)


def policy_options(cls: type[Any]) -> str:
    """Options of a policy with their defaults and descriptions, including base classes."""
    rows = [row(f"`{key.name}`", key.default, key.meaning) for key in option_keys(cls, "")]
    return row("option", "default", "meaning") + "\n|---|---|---|\n" + "\n".join(rows)


def option_tables() -> str:
    policies = {name: policy_class(name) for name in KINDS["policy"].shipped}
    return "\n\n".join(f"### {name}\n\n{policy_options(cls)}" for name, cls in policies.items())


def example() -> str:
    return f"```python\n{page('examples/quotes.py')}```"


def example_of_a_role() -> str:
    return f"```python\n{page('examples/frozen_reader.py')}```"


def example_engine() -> str:
    return f"```python\n{page('examples/bigrams.py')}```"


def data_formats() -> str:
    """The shipped formats with the columns that identify them."""
    rows = [
        row(f"[`{name}`](#{name})", ", ".join(f"`{column}`" for column in format.needs), format.about)
        for name, format in FORMATS.items()
    ]
    return row("format", "identifying columns", "what it is") + "\n|---|---|---|\n" + "\n".join(rows)


def answer_pairs() -> str:
    from support.answer_pairs import table

    return table()


def hacks() -> str:
    from support.hacking import table

    return table()


def models() -> str:
    from support.architectures import table

    return table()


def alarms() -> str:
    """When the viewer raises one, and how grave it is."""
    from palimpsest.viewer.records.run_status import THRESHOLDS

    rows = [row(f"`{key}`", f"{when[0].upper()}{when[1:]}", severity) for key, when, severity in THRESHOLDS]
    return row("alarm", "when", "") + "\n|---|---|---|\n" + "\n".join(rows)


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/recipes.md", "keys"): key_tables,
    ("docs/recipes.md", "options"): option_tables,
    ("docs/endpoints.md", "keys"): endpoint_keys,
    ("docs/own-policy.md", "example"): example,
    ("docs/own-policy.md", "roles"): example_of_a_role,
    ("docs/own-engine.md", "engine"): example_engine,
    ("docs/own-data.md", "formats"): data_formats,
    ("docs/evaluation.md", "pairs"): answer_pairs,
    ("docs/evaluation.md", "hacks"): hacks,
    ("docs/models.md", "models"): models,
    ("docs/viewer.md", "alarms"): alarms,
}


def between(text: str, name: str) -> tuple[str, str, str]:
    """Text before, between and after the markers called `name`."""
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
