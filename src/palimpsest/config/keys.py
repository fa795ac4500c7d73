"""Configuration keys as data, and validation errors that name key, value and allowed values.

Docs tables, `palimpsest recipes keys` and error messages use it. The string below a field in the source documents its
key.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from palimpsest.config.engine import CUSTOM, engines_with
from palimpsest.config.other_names import NO_EQUIVALENT, OTHER_NAMES
from palimpsest.config.reward import LayerConfig
from palimpsest.config.schema import PolicyConfig, RoleConfig, RunConfig
from palimpsest.config.section import leaves, members_of, section_in, sections_in
from palimpsest.errors import nearest
from palimpsest.plugin_options import choices, expected


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    name: str
    """Dotted."""
    values: str
    """Allowed values; literals quoted as code."""
    default: str
    """Default in recipe syntax, quoted as code; `required` for a key without one."""
    meaning: str
    section: bool = False
    """True for an optional section; its keys follow."""


def all_keys() -> list[Key]:
    """Every key, in the order of the schema."""
    return list(keys_of(RunConfig, "", None))


def keys_of(model: type[BaseModel], prefix: str, defaults: BaseModel | None) -> Iterator[Key]:
    """Keys of one section and its subsections. `defaults`: the section with all defaults."""
    docs = inherited_docstrings(model)
    for name, field in model.model_fields.items():
        default = getattr(defaults, name) if defaults else field.get_default(call_default_factory=True)
        section = section_in(field.annotation)
        if section is None:
            shown = "required" if field.is_required() else yaml_words(default)
            values = type_words(field.annotation, bounds(field.metadata))
            yield Key(prefix + name, values, shown, docs.get(name, ""))
            continue
        if default is None:
            about = " ".join((section.__doc__ or "").split("\n\n")[0].split())
            yield Key(prefix + name, "section or `null`", "`null`", docs.get(name, about), section=True)
        yield from keys_of(section, f"{prefix}{name}.", default)


@lru_cache(maxsize=64)
def docstrings(cls: Any) -> Mapping[str, str]:
    """Docstrings by field name, from the source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


def inherited_docstrings(cls: type[Any]) -> dict[str, str]:
    """`docstrings`; base classes supply missing ones."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= {} if base in (object, BaseModel) else docstrings(base)
    return docs


def option_keys(cls: type[Any], prefix: str) -> list[Key]:
    """Options of a dataclass."""
    docs = inherited_docstrings(cls)
    hints = typing.get_type_hints(cls, include_extras=True)
    return [
        Key(f"{prefix}{f.name}", type_words(hints[f.name]), yaml_words(_default(f)), docs.get(f.name, ""))
        for f in dataclasses.fields(cls)
        if f.init
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


_PLAIN = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", Any: "any value"}
_NAMED: Mapping[Any, str] = {
    LayerConfig: "name",
    PolicyConfig: "section of policies by name",
    RoleConfig: "`model`, `url`, `temperature`, `max_tokens` by name",
}


def type_words(annotation: Any, limits: str = "") -> str:
    """An annotation in a YAML reader's terms.

    >>> type_words(int | None, " ≥ 1"), type_words(tuple[float, float]), type_words(typing.Literal["a", "b"])
    ('integer ≥ 1 or `null`', 'list of 2 numbers', '`a`, `b`')
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_words(arguments[0], limits or bounds(arguments[1:]))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("`null`" if arg is type(None) else type_words(arg, limits) for arg in arguments)
    if origin is tuple:
        return f"list of {'' if arguments[-1] is ... else f'{len(arguments)} '}{type_words(arguments[0])}s"
    if origin in (dict, Mapping):
        return _NAMED.get(arguments[1], "section")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _NAMED.get(annotation, "section")
    return _PLAIN.get(annotation, "value") + limits


def bounds(metadata: typing.Iterable[Any]) -> str:
    """The limits of a number, as comparison signs."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{signs[k]} {v}" for m in metadata for k in signs if (v := getattr(m, k, None)) is not None]
    return f" {', '.join(limits)}" if limits else ""


def yaml_words(value: Any) -> str:
    """A default in recipe syntax."""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def field_at(key: str) -> FieldInfo | None:
    """The field under a dotted key, None if there is none.

    >>> field_at("train.max_steps").default, field_at("train.stps")
    (100, None)
    """
    section, _, leaf = key.rpartition(".")
    return next((model.model_fields[leaf] for model in _sections_of(section) if leaf in model.model_fields), None)


# ---- A pydantic validation error as text a person can act on -------------------------------------------------


_OURS = ("value_error", "truth")  # types of errors whose words are ours
_PROBLEMS = 5  # problems of a configuration that a message lists
_SHOWN = 80  # characters of a wrong value in a message


def explain(error: ValidationError, *, source: str, overrides: Mapping[str, str]) -> str:
    """The problems, at most `_PROBLEMS`. `overrides` maps dotted keys to the command-line text that set them."""
    details = error.errors(include_url=False)
    lines = dict[str, str]()
    for detail in map(_too_short_list, details[:_PROBLEMS]):
        key = ".".join(str(part) for part in _at(detail["loc"])[0] if part != "[key]")
        name = _blamed(key, overrides)
        reason = _reason(key, detail, name)
        if name is None:  # a rule over several keys
            name = next((each for each in overrides if re.search(rf"(?<![\w.]){re.escape(each)}[=.]", reason)), None)
        origin = f"override {overrides[name]}: " if name else f"recipe {source}: "
        said = reason if reason.startswith(f"{name}=") else origin + reason
        lines.setdefault(key, said)  # each member of a union has an error
    more = [f"and {len(details) - _PROBLEMS} more"] if len(details) > _PROBLEMS else []
    return "; ".join(dict.fromkeys([*lines.values(), *more]))


def _too_short_list(detail: ErrorDetails) -> ErrorDetails:
    """Blame a too short list instead of its missing element."""
    if detail["type"] == "missing" and isinstance(detail["loc"][-1], int):
        return {**detail, "type": "too_short", "loc": detail["loc"][:-1]}
    return detail


def _blamed(key: str, overrides: Mapping[str, str]) -> str | None:
    related = [n for n in overrides if key == n or key.startswith(n + ".") or (key and n.startswith(key + "."))]
    return related[-1] if related else None


def section_of(key: str) -> type[BaseModel] | None:
    """The configuration class at a dotted key; None if the key is a value or unknown.

    >>> section_of("data.curriculum").__name__
    'CurriculumConfig'
    >>> section_of("train.max_steps") is None
    True
    """
    return next(iter(_sections_of(key)), None)


def _sections_of(key: str) -> list[type[BaseModel]]:
    """All possible classes at a dotted key: the keys of `engine` depend on its name."""
    annotations: list[Any] = [RunConfig]
    for part in key.split(".") if key else ():
        models = [model for annotation in annotations for model in sections_in(annotation)]
        fields = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        annotations = fields or [inner for annotation in annotations for inner in _inside(annotation)]
    return [model for annotation in annotations for model in sections_in(annotation)]


def dotted_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included; one of several kinds of a section as often."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for section in sections_in(field.annotation):
            yield from dotted_keys(section, f"{prefix}{name}.")


def _reason(key: str, detail: ErrorDetails, override: str | None) -> str:
    if detail["type"] == "extra_forbidden":
        if detail["loc"][:2] == ("engine", CUSTOM):
            leaf = key.rpartition(".")[2]
            return f"unknown key {key}: a custom engine takes options, e.g. engine.options.{leaf}"
        if detail["loc"][0] == "engine" and len(detail["loc"]) == 3 and (names := engines_with(str(detail["loc"][2]))):
            named = f"engine.name={detail['loc'][1]}"
            return (
                f"{key} is a key of engine.name={' and '.join(names)}, not of {named}: omit it, or select that engine"
            )
        full = override if override and override.startswith(f"{key}.") else key
        return f"unknown key {full}{nearest_key(full)}"
    if detail["type"] == "missing":
        return f"{key} is missing"
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ").replace("\n", " ")  # a rule over several keys names them
    if detail["type"] == "model_type":
        _, inner, _ = _at(detail["loc"])
        return f"{key} is a section with the keys {', '.join(inner.model_fields)}"
    if override is not None and len(override) > len(key):
        return f"{key} is a value, not a section"
    return f"{key}={_short(detail['input'])}: {_demand(detail)}"


def _short(value: Any) -> str:
    shown = "null" if value is None else repr(value)
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."


def _demand(detail: ErrorDetails) -> str:
    """Requirement for a value, from a pydantic error."""
    if detail["type"] in _OURS:
        return detail["msg"]
    key, annotation, metadata = _at(detail["loc"])
    if key[-1] == "[key]":
        return "names there must be text"
    if (allowed := choices(annotation)) is not None:
        return f"choose one of {', '.join(allowed)}{nearest(str(detail['input']), allowed)}"
    limits = _limits(metadata)
    example = f", e.g. [{detail['input']}]" if detail["type"] in ("tuple_type", "list_type") else ""
    finite = ", and finite" if detail["type"] == "finite_number" else ""
    empty = ", and not empty" if detail["type"] == "too_short" and isinstance(detail["input"], dict) else ""
    kind, sign, others = (expected(annotation) or "something else").partition(" or ")
    return f"must be {kind}{limits}{',' if limits and sign else ''}{sign}{others}{finite}{empty}{example}"


def _at(where: Iterable[int | str]) -> tuple[list[int | str], Any, list[Any]]:
    """(parts of the key, annotation, limits) of an error, also in lists and mappings. Pydantic names the kind of
    engine and the member of a union among the parts.

    >>> _at(("engine", "embedded", "threads"))[0], _at(("data", "train_files", "tuple[str, ...]", 0))[0]
    (['engine', 'threads'], ['data', 'train_files', 0])
    """
    annotation: Any = RunConfig
    key, limits, parts = list[int | str](), list[Any](), iter(where)
    for part in parts:
        key.append(part)
        field = next((s.model_fields[str(part)] for s in sections_in(annotation) if part in s.model_fields), None)
        inner = _inside(annotation)
        if field is not None:
            annotation, limits = field.annotation, field.metadata
        elif inner:
            annotation, limits = inner[min(part, len(inner) - 1) if isinstance(part, int) else -1], []
        if len({*members_of(annotation)} - {type(None)}) > 1:
            next(parts, None)
    if not limits:  # of a member of a union
        about = [info for member in typing.get_args(annotation) for info in getattr(member, "__metadata__", ())]
        limits = [limit for info in about for limit in getattr(info, "metadata", ())]
    return key, section_in(annotation) or annotation, limits


def _inside(annotation: Any) -> list[Any]:
    """Annotations inside a list, a mapping, or a union with one; otherwise none."""
    for member in members_of(annotation):
        if typing.get_origin(member) in (tuple, dict, list):
            return [part for part in typing.get_args(member) if part is not ...]
    return []


_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _limits(metadata: Iterable[Any]) -> str:
    """
    >>> from annotated_types import Ge, Lt
    >>> _limits([Ge(0), Lt(1)])
    ', at least 0 and below 1'
    """
    limits = [
        f"{word} {value:g}"
        for constraint in metadata
        for name, word in _BOUNDS.items()
        if (value := getattr(constraint, name, None)) is not None
    ]
    return f", {' and '.join(limits)}" if limits else ""


def is_key_name(name: str) -> bool:
    """Return whether `name` is the last part of a key with a value, here or in another trainer.

    >>> is_key_name("learning_rate"), is_key_name("lr"), is_key_name("out")
    (True, True, False)
    """
    return name in OTHER_NAMES or name in {k.rpartition(".")[2] for k in dotted_keys() if section_of(k) is None}


_GUESSED = 4  # minimum length of a last name for guesses from other sections


def nearest_key(key: str) -> str:
    """Nearest key, in this order: another trainer's name in this section; a similar sibling; another trainer's name
    elsewhere; an option; the same last part elsewhere; the section's keys. Never a section for a key in it.

    >>> nearest_key("optim.lr"), nearest_key("train.learning_rte")
    ('; did you mean optim.learning_rate?', '; did you mean optim.learning_rate or cold_start.learning_rate?')
    >>> nearest_key("roles.reader.temprature"), nearest_key("evaluation.baselines.small.names")
    ('; did you mean roles.reader.temperature?', '; did you mean evaluation.baselines.small.name?')
    >>> nearest_key("cold_start.k0")
    '; cold_start has max_steps, batch_size, insight, learning_rate, warmup_steps'
    """
    section, _, leaf = key.rpartition(".")
    if why := NO_EQUIVALENT.get(leaf) or NO_EQUIVALENT.get(section.partition(".")[0]):
        return f"; no equivalent: {why}"
    other = _named_here(section, leaf)
    if other and (not section or other.startswith(f"{section}.")):
        return f"; did you mean {other}?"
    siblings = dict.fromkeys(name for model in _sections_of(section) for name in model.model_fields)
    keys = [name for name in dict.fromkeys(dotted_keys()) if section_of(name) is None]
    leaves = {name.rpartition(".")[2] for name in keys}
    if (close := nearest(leaf, siblings)) and not (leaf in leaves and not section):
        prefix = f"{section}." if section else ""
        return close.replace("did you mean ", f"did you mean {prefix}")
    if other:
        return f"; did you mean {other}?"
    if {*siblings} == {"name", "options"}:
        return f"; did you mean {section}.options.{leaf}?"
    wanted = similar(leaf, leaves) if len(leaf) >= _GUESSED and leaf not in leaves else leaf
    if namesake := [name for name in keys if name.rpartition(".")[2] == wanted]:
        return f"; did you mean {' or '.join(namesake)}?"
    if siblings and section:
        return f"; {section} has {', '.join(siblings)}"
    option = "" if section or len(key) < _GUESSED else f"an option of the policy is policy.options.{key}; "
    return nearest(key, keys) or f"; {option}known: {', '.join(siblings or RunConfig.model_fields)}"


def _named_here(section: str, leaf: str) -> str | None:
    """Our name for another trainer's `leaf`, the key of this section if it has such a key.

    >>> _named_here("cold_start", "steps"), _named_here("", "steps")
    ('cold_start.max_steps', 'train.max_steps')
    """
    parts = f"{section}.{leaf}".split(".")
    ends = (".".join(parts[at:]) for at in range(len(parts)))
    key = next((OTHER_NAMES[end] for end in ends if end in OTHER_NAMES), "")
    local = f"{section}.{key.rpartition('.')[2]}"
    return local if key and field_at(local) is not None else key or None


def similar(name: str, names: Iterable[str]) -> str | None:
    """The name that `name` probably misspells."""
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.8)), None)


# ---- Settings and their differences ------------------------------------------------------------------------


_SECTIONS = {"sampling": "eval_sampling"}
"""Parts of an identity whose configuration section has another name."""
_SHOWN_DIFFERENCES = 3
"""Differences that a message lists; it only counts the rest."""
_WIDTH = 60
"""Characters of a value in a message."""


@lru_cache(maxsize=1)
def default_settings() -> Mapping[str, Any]:
    """Defaults of a run's configuration, by dotted key."""
    return dict(leaves(RunConfig(recipe="config").model_dump(mode="json")))


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first few keys in which `now` differs from `was`, as text; None without a difference. A new setting at its
    default is not a difference: a later version added it.

    >>> difference({"data": {"limit": 4}}, {"data": {"limit": 2}})
    'data.limit was 4, is 2'
    >>> difference({"sampling": {"temperature": 0.7}}, {"sampling": {"temperature": 0.7, "top_p": 1.0}})
    """
    old, new = (dict(leaf for key, value in settings.items() for leaf in leaves(value, key)) for settings in (was, now))
    differing = (key for key in {*old, *new} if key not in old or key not in new or old[key] != new[key])
    keys = sorted(key for key in differing if key in old or not _is_default(key, new[key]))
    changes = [_changed(key, _shown(old, key), _shown(new, key)) for key in keys[:_SHOWN_DIFFERENCES]]
    if len(keys) > _SHOWN_DIFFERENCES:
        changes.append(f"{len(keys) - _SHOWN_DIFFERENCES} more keys differ")
    return "; ".join(changes) or None


def _is_default(key: str, value: Any) -> bool:
    """Return whether an identity's `key` has the default of the run's configuration."""
    section, _, name = key.partition(".")
    defaults = default_settings()
    setting = f"{_SECTIONS.get(section, section)}.{name}"
    return setting in defaults and defaults[setting] == value


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not there"


def _changed(key: str, was: str, now: str) -> str:
    """One changed key; long values start where they differ."""
    shorter = min(len(was), len(now))
    same = next((at for at in range(shorter) if was[at] != now[at]), shorter)
    start = 0 if max(len(was), len(now)) <= _WIDTH else max(0, same - _WIDTH // 2)
    return f"{key} was {_cut(was, start)}, is {_cut(now, start)}"


def _cut(text: str, start: int) -> str:
    end = start + _WIDTH
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"
