"""The prompts of a policy as a file."""

from __future__ import annotations

from typing import Any

import yaml

from palimpsest.config.load import split_override
from palimpsest.config.schema import PolicyConfig
from palimpsest.config.yaml_text import Dumper
from palimpsest.errors import ConfigError
from palimpsest.memory.parts.prompts import Slots, slots_of
from palimpsest.memory.registry import build_policy


def prompt_file(name: str, settings: tuple[str, ...] = ()) -> str:
    """The texts that a policy with these options shows, as YAML from which its option `prompts` makes them again.

    Raises ConfigError for a policy without texts of the kind.
    """
    policy = build_policy(PolicyConfig(name=name, options=dict(split_override(setting) for setting in settings)))
    wording = policy.wording()
    if wording is None:
        raise ConfigError(f"policy {name}: it takes no file of prompts; its texts stand in its own code")
    slots = slots_of(type(wording.texts))
    return "".join(_entry(text, value, slots.get(text)) for text, value in wording.as_file().items())


def _entry(name: str, value: Any, slots: Slots | None) -> str:
    """A text under a comment that says what it holds."""
    about = "" if slots is None else f"# {_about(slots)}\n"
    return about + yaml.dump({name: value}, Dumper=Dumper, allow_unicode=True, width=1000)


def _about(slots: Slots) -> str:
    """
    >>> _about(Slots("question", optional=("tools",))), _about(Slots(may_be_empty=True)), _about(Slots("a", when="b=c"))
    ('{question} once; may hold {tools}', 'may be empty', '{a} once; shown with b=c')
    """
    parts = [f"{', '.join(f'{{{name}}}' for name in slots.names)} once"] if slots.names else []
    parts += [f"may hold {', '.join(f'{{{name}}}' for name in slots.optional)}"] if slots.optional else []
    parts += ["may be empty"] if slots.may_be_empty else []
    parts += [f"shown with {slots.when}"] if slots.when else []
    return "; ".join(parts) or "no slot"
