"""Prompt templates of a policy: texts with slots, shipped with the policy or read from a YAML file.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class MyPrompts(PromptSet):
        read: Annotated[str, Slots("question", "memory", "section")] = ""
        answer: Annotated[str, Slots("question", "memory")] = ""

    read: "Problem: {question}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory."        # my.yaml

A slot {name} is filled in token space (text/template.py): text of a document, a question or a memory cannot become a
control token or close a tag. {{name}} is the text {name}; other braces, as in \\boxed{}, are plain text.

Prompt texts are trusted, also a user's: a control token in them (`<think>`, `<tool_call>`) is encoded as one, as in the
published prompts. Treat a prompt file like a chat template: use only files you trust. Texts that replace data (the
initial memory, a tool's reply) are encoded like data and never contain a control token.

Guaranteed: an unknown text or slot, a missing or repeated slot, an empty text or a value of another type is a
ConfigError of one line that names the text.
Not covered: whether a model understands the prompts.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from palimpsest.config.load import is_prompt_file, read_prompt_file
from palimpsest.errors import ConfigError, nearest
from palimpsest.plugin_options import check_options
from palimpsest.text.codec import Codec
from palimpsest.text.template import MARKS, Template, escaped, insert, user_turn

Layout = Literal["memory_first", "section_first"]
KEY = "policy.options.prompts"

_SLOT = re.compile(r"\{(\w*[A-Za-z_]\w*)\}")
_ESCAPED = re.compile(r"\{\{\w+\}\}")


class Slots:
    """Slots of a text: each of `names` exactly once, `optional` ones at most once.

    `when`: the option that selects the text instead of another one, e.g. layout=section_first.
    """

    def __init__(self, *names: str, optional: tuple[str, ...] = (), may_be_empty: bool = False, when: str = "") -> None:
        self.names, self.optional, self.may_be_empty, self.when = names, optional, may_be_empty, when


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Texts of one policy; subclasses add texts."""

    system: Annotated[str, Slots(may_be_empty=True)] = ""
    """System message, rendered by the model's chat template; empty: none."""

    def template(self, codec: Codec, name: str) -> Template:
        """The text called `name` as a user message, after a nonempty system message."""
        try:
            return user_turn(codec, str(getattr(self, name)), slots_of(type(self))[name].names, self.system)
        except ConfigError as error:
            raise ConfigError(f"{KEY}.{name}: {error}") from None


Texts = TypeVar("Texts", bound=PromptSet)


def slots_of(cls: type[PromptSet]) -> Mapping[str, Slots]:
    """The texts of a prompt set and their slots."""
    key: Any = cls
    return _slots_of(key)


@lru_cache(maxsize=64)
def _slots_of(cls: Any) -> Mapping[str, Slots]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: slots
        for field in fields(cls)
        for slots in getattr(hints[field.name], "__metadata__", ())
        if isinstance(slots, Slots)
    }


def chosen(prompts: str | Mapping[str, Any], shipped: Mapping[str, Texts], used: Iterable[str]) -> Texts:
    """The texts that the option `prompts` selects: a shipped set by name, a file, or the contents of a file.

    `used`: the required texts, which the policy shows with its options.
    """
    if is_prompt_file(prompts):
        prompts = read_prompt_file(str(prompts), KEY)
    if isinstance(prompts, str):
        if prompts not in shipped:
            names = ", ".join(shipped)
            raise ConfigError(f"choose one of {names}, or a custom file such as my.yaml", key=KEY, value=prompts)
        return shipped[prompts]
    cls = type(next(iter(shipped.values())))
    texts = cls(**check_options(cls, prompts, KEY, "the texts of this policy"))
    _check(texts, prompts, used)
    return replace(texts, **{name: insert(getattr(texts, name), {}) for name in _without_slots(cls)})


def _without_slots(cls: type[PromptSet]) -> list[str]:
    """Texts shown as they are."""
    return [name for name, slots in slots_of(cls).items() if not slots.names and not slots.optional]


def shared(texts: PromptSet) -> dict[str, Any]:
    """All texts of a set by name, for a set that adds texts.

    >>> shared(PromptSet(system="Be brief."))
    {'system': 'Be brief.'}
    """
    return {field.name: getattr(texts, field.name) for field in fields(texts)}


_BLOCK = "<{0}>\n{{{0}}}\n</{0}>".format


def blocks(*names: str) -> str:
    """Tagged blocks, one per slot; the question's block is called problem.

    >>> blocks("question", "memory")
    '<problem>\\n{question}\\n</problem>\\n\\n<memory>\\n{memory}\\n</memory>'
    """
    return (
        "\n\n".join(_BLOCK(name) for name in names)
        .replace("<question>", "<problem>")
        .replace("</question>", "</problem>")
        .replace("recalled>", "recalled_memory>")
    )


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of a policy, and the names of the texts that its options show."""

    texts: PromptSet
    shown: tuple[str, ...]

    def as_file(self) -> dict[str, Any]:
        """Contents of an equivalent file: the texts in use, and the set's other fields.

        >>> Wording(PromptSet(system="Be brief."), ()).as_file()
        {'system': 'Be brief.'}
        """
        slots = slots_of(type(self.texts))
        names = [field.name for field in fields(self.texts)]
        selected = [name for name in names if name not in slots or name in self.shown or slots[name].may_be_empty]
        plain = _without_slots(type(self.texts))
        values = {name: getattr(self.texts, name) for name in selected}
        return {name: escaped(value) if name in plain else value for name, value in values.items()}


def _check(texts: PromptSet, values: Mapping[str, Any], used: Iterable[str]) -> None:
    slots = slots_of(type(texts))
    for name in used:
        if name not in values and not getattr(texts, name):
            raise ConfigError(_missing(slots[name].when), key=f"{KEY}.{name}")
        if not slots[name].may_be_empty and not getattr(texts, name).strip():
            there = _named(slots[name].names) or "no slot"
            raise ConfigError(f"is empty: write the text, with {there}", key=f"{KEY}.{name}")
    for name in values:
        if name in slots and getattr(texts, name).strip():
            _check_slots(name, getattr(texts, name), slots[name])


def _missing(when: str) -> str:
    if not when:
        return "is missing; palimpsest recipes show RECIPE --prompts prints the shipped one"
    settings = " ".join(f"policy.options.{setting}" for setting in when.split(" and "))
    command = f"palimpsest recipes show RECIPE {settings} --prompts"
    return f"is missing: {when} shows it; {command} prints the shipped one"


def _check_slots(name: str, text: str, slots: Slots) -> None:
    key = f"{KEY}.{name}"
    if any(sign in text for sign in MARKS):
        raise ConfigError("contains U+E000 or U+E001, which the library uses as slot marks", key=key)
    allowed = (*slots.names, *slots.optional)
    present = _SLOT.findall(_ESCAPED.sub("", text))
    for slot in present:
        if slot not in allowed:
            there = f"it may contain {_named(allowed)}" if allowed else "it has none"
            fix = f"{nearest(slot, allowed)}; {there}; write {{{{{slot}}}}} for the text"
            raise ConfigError(f"has no slot {{{slot}}}{fix}", key=key)
        if present.count(slot) > 1:
            raise ConfigError(f"has {{{slot}}} {present.count(slot)} times; use it once", key=key)
    for slot in slots.names:
        if slot not in present:
            raise ConfigError(f"lacks {{{slot}}}; it must contain {_named(slots.names)}, each once", key=key)


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)
