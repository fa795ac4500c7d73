"""Renders a chat template in a process of its own, within bounds: a template is a program of whoever made the model.

The sandbox of jinja2 keeps a template from everything but time and memory, and both are spent in single operations
(`"a" * 10**10`, loops in loops) that nothing in the same process could stop. So a template is tried here first, on
conversations of every shape that prompts have. Run as a file: a JSON object on stdin, one on stdout.

    {"template": ..., "variables": {...}, "tries": [[messages, tools, speak], ...], "marker": text of a message}
    {"names": [variables that the template looks up], "lengths": [characters, or null], "errors": [null, or why],
     "shown": [how often the marker stands in the result]}

Guaranteed: it ends within `CPU_S` seconds of computing and, where the system counts address space, `MEMORY` bytes.
Not covered: a template that goes wrong on other texts than those it is tried on.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_S, MEMORY = 2, 1 << 30


class Generation(Extension):
    """The tag around what an assistant says, which transformers knows; here its body alone."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """What stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    """What templates call to refuse a conversation."""
    raise TemplateError(message)


def probe(task: dict[str, Any]) -> dict[str, Any]:
    """Try a template; see the module."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: "26 Jul 2024"}
    lengths: list[int | None] = []
    shown: list[int] = []
    errors: list[str | None] = []
    template = environment.from_string(task["template"])
    for messages, tools, speak in task["tries"]:
        try:
            context = {"messages": messages, "tools": tools, "add_generation_prompt": speak}
            text = template.render(**context, **task["variables"])
            shown.append(text.count(task["marker"]))
            lengths.append(len(text))
            errors.append(None)
        except Exception as error:  # noqa: BLE001  a template is foreign code: whatever it raises is told
            shown.append(0)
            lengths.append(None)
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    names = sorted(find_undeclared_variables(environment.parse(task["template"])))
    return {"names": names, "lengths": lengths, "errors": errors, "shown": shown}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with suppress(ValueError, OSError):  # a system that doesn't count it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        print(json.dumps(probe(json.load(sys.stdin))))
    except Exception as error:  # noqa: BLE001  one that can't be compiled
        print(json.dumps({"fault": f"{type(error).__name__}: {error}".splitlines()[0][:200]}))
