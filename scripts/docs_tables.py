"""Write the generated tables of the docs: python scripts/docs_tables.py, or make docs-tables.

    python scripts/docs_tables.py --llms build/site     # also llms.txt and llms-full.txt of the site

Tables are between `<!-- name -->` and `<!-- /name -->`; tests/test_docs.py checks that they are current.
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

import palimpsest
from palimpsest.cli.main import app
from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.keys import all_keys, keys_of, option_keys
from palimpsest.config.load import EVALUATIONS, load_recipe, recipe_names, recipe_text
from palimpsest.config.other_names import NO_EQUIVALENT, OTHER_NAMES
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import section_in
from palimpsest.data.formats.fields import ROLES
from palimpsest.data.formats.format_registry import FORMATS
from palimpsest.memory.registry import policy_class
from palimpsest.plugin_kinds import KINDS
from palimpsest.reward.answer_match import grading_rules

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("None", "`null`") for cell in cells) + " |"


HEADER = row("key", "value", "default", "meaning") + "\n|---|---|---|---|\n"


def commands() -> str:
    """Every command: summary, usage, arguments and options, examples."""
    parts = []
    for name, command in _commands(typer.main.get_command(app), ""):
        context = command.make_context(name, [], resilient_parsing=True)
        about, _, examples = textwrap.dedent(command.help or "").replace("\b\n", "").partition("Examples:")
        usage = " ".join([f"palimpsest {name}", *command.collect_usage_pieces(context)])
        records = filter(None, (parameter.get_help_record(context) for parameter in command.params))
        rows = [row(f"`{name_and_type}`", meaning) for name_and_type, meaning in records]
        table = row("argument, option", "meaning") + "\n|---|---|\n" + "\n".join(rows)
        shown = f"\n\n```sh\n{textwrap.dedent(examples.strip(chr(10))).strip()}\n```" if examples.strip() else ""
        parts.append(f"## {name}\n\n```text\n{usage}\n```\n\n{about.strip()}{shown}\n\n{table}")
    return "\n\n".join(parts)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(name, command) of every command that is not a group."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part in command.commands.values():
        yield from _commands(part, f"{name} {part.name}".strip())


def python_names() -> str:
    """Names that `palimpsest` exports, functions first, each as a directive of mkdocstrings."""
    homes = palimpsest._HOMES
    parts = []
    for name in sorted(homes, key=lambda name: (not name[0].islower(), name)):
        if f"{name}_async" not in homes:
            plain = name.removesuffix("_async")
            heading = f"\n    options:\n      heading: {plain}, {name}" if plain != name else ""
            parts.append(f"::: palimpsest.{homes[name]}.{name}{heading}")
    return "\n\n".join(parts)


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


def other_names() -> str:
    """Names of keys in other trainers."""
    names: dict[str, list[str]] = {}
    for other, key in OTHER_NAMES.items():
        names.setdefault(key, []).append(f"`{other}`")
    for other, why in NO_EQUIVALENT.items():
        names.setdefault(f"none: {why}", []).append(f"`{other}`")
    rows = [row(key if " " in key else f"`{key}`", ", ".join(others)) for key, others in names.items()]
    return row("key here", "other names") + "\n|---|---|\n" + "\n".join(rows)


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
    return row("format", "identifying columns", "content") + "\n|---|---|---|\n" + "\n".join(rows)


def roles() -> str:
    """The names of columns that the general reader takes for each role."""
    rows = [
        row(role, "<br>".join(", ".join(f"`{name}`" for name in group.split()) for group in groups))
        for role, groups in ROLES.items()
    ]
    return row("role", "names") + "\n|---|---|\n" + "\n".join(rows)


def grading() -> str:
    """How each benchmark recipe grades its data."""
    judge = {"reward.judge.url": "http://127.0.0.1/v1", "reward.judge.model": "m"}
    rows = list[tuple[str, dict[str, str]]]()
    for recipe in recipe_names(EVALUATIONS):
        name = recipe.removeprefix(EVALUATIONS)
        config = load_recipe(recipe, judge if "match: judge" in recipe_text(recipe) else {})
        format = FORMATS.get(name.replace("-", "_"))
        rows.append((name, grading_rules(config.reward, format.declares if format else ())))
    head = ("eval/", *rows[0][1])
    lines = [row(f"`{name}`", *rules.values()) for name, rules in rows]
    return row(*head) + "\n|" + "---|" * len(head) + "\n" + "\n".join(lines)


def answer_pairs() -> str:
    from support.answer_pairs import table

    return table()


def hacks() -> str:
    from support.hacking import table

    return table()


def models() -> str:
    from transformers.utils import logging

    from support.architectures import table

    logging.set_verbosity_error()  # of its notes on the small example configurations
    return table()


def tool_calls() -> str:
    from support.template_files import table

    return table()


def alarms() -> str:
    """When the viewer raises one, and how grave it is."""
    from palimpsest.viewer.records.alarms import THRESHOLDS

    rows = [row(f"`{key}`", f"{when[0].upper()}{when[1:]}", severity) for key, when, severity in THRESHOLDS]
    return row("alarm", "when", "") + "\n|---|---|---|\n" + "\n".join(rows)


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/reference/cli.md", "commands"): commands,
    ("docs/reference/python.md", "names"): python_names,
    ("docs/reference/configuration.md", "keys"): key_tables,
    ("docs/reference/configuration.md", "endpoint"): endpoint_keys,
    ("docs/reference/configuration.md", "other"): other_names,
    ("docs/reference/policies.md", "options"): option_tables,
    ("docs/how-to/custom-policy.md", "example"): example,
    ("docs/how-to/custom-policy.md", "roles"): example_of_a_role,
    ("docs/how-to/custom-engine.md", "engine"): example_engine,
    ("docs/reference/data-formats.md", "formats"): data_formats,
    ("docs/reference/data-formats.md", "roles"): roles,
    ("docs/how-to/benchmarks.md", "grading"): grading,
    ("docs/reference/metrics.md", "pairs"): answer_pairs,
    ("docs/reference/metrics.md", "hacks"): hacks,
    ("docs/reference/models.md", "models"): models,
    ("docs/reference/models.md", "calls"): tool_calls,
    ("docs/how-to/inspect-episodes.md", "alarms"): alarms,
}


def navigation() -> Iterator[tuple[str, str]]:
    """(section, page) of zensical.toml, in order; pages are relative to docs/."""

    def walk(section: str, entries: Any) -> Iterator[tuple[str, str]]:
        for entry in entries:
            if isinstance(entry, str):
                yield section, entry
            else:
                for name, inner in entry.items():
                    yield from walk(f"{section}: {name}" if section else name, inner)

    return walk("", tomllib.loads(page("zensical.toml"))["project"]["nav"])


def write_llms(folder: Path) -> None:
    """llms.txt, an index of the pages with a line each, and llms-full.txt, their text (https://llmstxt.org)."""
    lines, texts, last = ["# palimpsest", "", f"> {palimpsest.__doc__.splitlines()[0]}"], [], ""
    for section, name in navigation():
        text = page(f"docs/{name}")
        title, first = re.search(r"^# (.+)\n+(.+)", text, re.MULTILINE).groups()  # type: ignore[union-attr]
        summary = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)
        lines += ["", f"## {section}", ""] if section != last else []
        lines.append(f"- [{title}]({name.removesuffix('.md')}.html): {summary}")
        texts.append(text)
        last = section
    (folder / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "llms-full.txt").write_text("\n\n".join(texts), "utf-8")


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
    if sys.argv[1:2] == ["--llms"]:
        write_llms(Path(sys.argv[2]))
