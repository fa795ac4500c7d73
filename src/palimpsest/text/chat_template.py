"""A model's chat template: tested at load, then rendered with the same variables for every prompt.

Guaranteed: loading the tokenizer rejects, in one line, a template that doesn't compile, never ends, takes memory
without end, raises on a plain user message, or doesn't show it once, verbatim; any later exception is a `Refusal`;
its output doesn't depend on the clock.
Not covered: a template that fails on texts other than the tested ones (chat_template_probe.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from palimpsest.errors import ModelError, first_line, nearest
from palimpsest.text import chat_template_probe

KEY = "model.chat_template_kwargs"
Message = Mapping[str, Any]

DAY = (2024, 7, 26)
"""Date for templates that print one: the prompts of a run must not depend on the clock."""
_PATIENCE_S = 120.0  # for a busy machine; the probe limits its CPU time
_MOST_CHARACTERS = 1 << 20
_TOOL = {"type": "function", "function": {"name": "tool", "description": "a tool", "parameters": {"type": "object"}}}
CALL: dict[str, Any] = {"id": "call00000", "type": "function", "function": {"name": "tool", "arguments": {"text": "a"}}}
_MARKER = 'A "text" of <b>{one\'s}</b> & two lines,\nas it stands: \u00e9'
"""A message that a template changes if it escapes, cuts or rewrites text."""
_USER = {"role": "user", "content": "a"}
_TRIES: list[list[Any]] = [
    [[{"role": "user", "content": _MARKER}], None, True],
    [[_USER], None, False],
    [[{"role": "system", "content": "a"}, _USER], None, True],
    [[_USER, {"role": "assistant", "content": "a"}, _USER], None, True],
    [[_USER], [_TOOL], True],
    [
        [
            _USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "tool", "tool_call_id": "call00000", "content": "a"},
        ],
        [_TOOL],
        True,
    ],
]


class Refusal(Exception):
    """An exception of a chat template; `str` is its message."""


def render(tokenizer: Any, messages: Sequence[Message], variables: Mapping[str, Any], **options: Any) -> str:
    """The conversation as the tokenizer's template renders it. Raises Refusal."""
    context = {
        "date_string": date(*DAY).strftime("%d %b %Y"),
        "strftime_now": date(*DAY).strftime,
        **variables,
        **options,
    }
    try:
        text = tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False, **context)
    except Exception as error:  # noqa: BLE001  a template may raise anything: a refusal
        raise Refusal(first_line(error)[:200]) from None
    return str(text)


def check_template(name: str, tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Raise ModelError for an unusable template, or for variables that it ignores."""
    templates = getattr(tokenizer, "chat_template", None)
    if templates == "":
        raise ModelError(f"model {name}: its chat template is empty; remove it if the model has none")
    if not templates:
        if any(variables.values()):
            raise ModelError(f"model {name}: {KEY} needs a chat template, which the model lacks; remove it")
        return
    looked_up: set[str] = set()
    special = json.dumps({key: str(value) for key, value in tokenizer.special_tokens_map.items()}, sort_keys=True)
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        if not isinstance(template, str):
            raise ModelError(f"model {name}: its chat template is a {type(template).__name__}, not a text")
        result = _probed(template, json.dumps(dict(variables), sort_keys=True), special)
        if isinstance(result, str):
            raise ModelError(f"model {name}: its chat template {result}; take another copy of the model")
        looked_up |= result
    for key, value in variables.items():
        hint = nearest(key, looked_up)
        if key not in looked_up and (value or hint):  # a switch that is already off has no effect
            raise ModelError(f"model {name}: {KEY}.{key}={value!r}: the chat template looks up no {key}{hint}")


@lru_cache(maxsize=64)
def _probed(template: str, variables: str, special: str) -> frozenset[str] | str:
    """The variables that a template looks up, or its fault. One process per template. `special`: JSON of the special
    tokens, which templates look up by name."""
    task = {"template": template, "variables": json.loads(special) | json.loads(variables), "tries": _TRIES}
    task |= {"marker": _MARKER, "day": DAY}
    command = [sys.executable, "-P", chat_template_probe.__file__]
    try:
        done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, timeout=_PATIENCE_S)
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # killed at its time limit, or out of memory
        return f"doesn't end within {chat_template_probe.CPU_S} s and {chat_template_probe.MEMORY >> 20} MiB on a word"
    if "fault" in answer:
        return f"can't be used ({answer['fault']})"
    if answer["errors"][0] is not None:
        return f"raises on a user message ({answer['errors'][0]})"
    if max(length or 0 for length in answer["lengths"]) > _MOST_CHARACTERS:
        return f"writes more than {_MOST_CHARACTERS:,} characters around a message of a word"
    if any("MemoryError" in (error or "") for error in answer["errors"]):
        return f"takes more than {chat_template_probe.MEMORY >> 20} MiB"
    if answer["shown"][0] != 1:
        times = f"{answer['shown'][0]} times" if answer["shown"][0] else "with changes, or not at all"
        return f"shows a user message {times}"
    return frozenset(answer["names"])
