"""Rendering of a chat template in a separate, limited process: a template is a program by the model's author.

The sandbox of jinja2 limits neither time nor memory, and single operations can exhaust both (`"a" * 10**10`, loops in
loops) without a way to stop them in the same process. A template is therefore first tested here, on conversations of
every shape that prompts have. Run as a file: a JSON object on stdin, one on stdout.

    {"template": ..., "variables": {...}, "tries": [[messages, tools, speak], ...], "marker": text of a message,
     "day": [year, month, day]}
    {"names": [variables that the template looks up], "lengths": [characters, or null], "errors": [null, or why],
     "shown": [number of times the marker is in the result]}

Guaranteed: it ends within `CPU_S` seconds of CPU time and, where the system limits address space, `MEMORY` bytes.
Not covered: a template that fails on texts other than the tested ones.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from datetime import date
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_S, MEMORY = 2, 1 << 30


class Generation(Extension):
    """The tag around an assistant's text, known to transformers; only its body is rendered here."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    """The function with which templates reject a conversation."""
    raise TemplateError(message)


def probe(task: dict[str, Any]) -> dict[str, Any]:
    """Test a template; see the module."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": refuse, "strftime_now": date(*task["day"]).strftime}
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
        except Exception as error:  # noqa: BLE001  a template may raise anything: its error is the result
            shown.append(0)
            lengths.append(None)
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    names = sorted(find_undeclared_variables(environment.parse(task["template"])))
    return {"names": names, "lengths": lengths, "errors": errors, "shown": shown}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        print(json.dumps(probe(json.load(sys.stdin))))
    except Exception as error:  # noqa: BLE001  a template that does not compile
        print(json.dumps({"fault": f"{type(error).__name__}: {error}".splitlines()[0][:200]}))
