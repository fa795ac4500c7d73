"""The keys of the configuration in words: all of them, or those of one recipe with the values it gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from palimpsest.config.keys import Key, all_keys, option_keys, section_in, yaml_words
from palimpsest.config.load import Overrides, load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, nearest
from palimpsest.memory.registry import POLICIES, policy_class

_OPTIONS = "policy.options."


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A key and the value it has in one configuration."""

    key: Key
    value: str
    """As a recipe would write it."""

    @property
    def changed(self) -> bool:
        """Whether it isn't the default."""
        return self.value != self.key.default


def keys_under(prefix: str = "") -> list[Key]:
    """Keys that begin with `prefix`; under `policy.options.NAME` the options of a shipped policy.

    Raises ConfigError where there are none, with the nearest.
    """
    keys = all_keys() + [key for name, cls in POLICIES.items() for key in option_keys(cls, f"{_OPTIONS}{name}.")]
    plain = [key for key in keys if not key.name.startswith(_OPTIONS)]
    under = [key for key in (keys if prefix.startswith(_OPTIONS[:-1]) else plain) if _below(key.name, prefix)]
    if not under:
        names = {key.name for key in keys} | {key.name.rpartition(".")[0] for key in keys}
        raise ConfigError(f"recipes keys {prefix}: no such key or section{nearest(prefix, sorted(names))}")
    return under


def _below(name: str, prefix: str) -> bool:
    """
    >>> _below("train.steps", "train"), _below("train.steps", "train.st"), _below("train.steps", "tra")
    (True, False, False)
    """
    prefix = prefix.rstrip(".")
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def explained(recipe: str, overrides: Overrides = ()) -> list[Setting]:
    """Every key of a recipe with its value, the options of its policy among them."""
    config = load_recipe(recipe, overrides)
    settings: list[Setting] = []
    for key in all_keys():
        if key.name == _OPTIONS[:-1]:
            settings += _options(config)
        elif (setting := _setting(config, key)) is not None:
            settings.append(setting)
    return settings


def _options(config: RunConfig) -> Sequence[Setting]:
    """Options of the configured policy; those of a class that is no dataclass as they are given."""
    cls, given = policy_class(config.policy.name), config.policy.options
    if not dataclasses.is_dataclass(cls):
        return [Setting(Key(_OPTIONS + name, "value", "", ""), yaml_words(value)) for name, value in given.items()]
    keys = option_keys(cls, _OPTIONS)
    values = {key.name: given.get(key.name.removeprefix(_OPTIONS), ...) for key in keys}
    return [Setting(key, key.default if values[key.name] is ... else yaml_words(values[key.name])) for key in keys]


def _setting(config: RunConfig, key: Key) -> Setting | None:
    """None for a section that is there, whose keys follow, and for keys of one that isn't."""
    value: Any = config
    for part in key.name.split("."):
        field = type(value).model_fields.get(part)
        if field is None:
            return None  # of another engine
        value = getattr(value, part)
        if value is None and section_in(field.annotation) is not None:
            return Setting(key, "`null`") if key.section else None
    if section_in(type(value)) is not None:
        return None
    if isinstance(value, dict) and any(section_in(type(each)) for each in value.values()):
        return Setting(key, "`{" + ", ".join(value) + "}`")
    return Setting(key, yaml_words(value))
