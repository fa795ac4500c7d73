"""What an evaluation was configured as, leaf by leaf, and where two differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from palimpsest.config.load import parse_config

_SECTIONS = {"sampling": "eval_sampling"}
"""Parts of an identity whose section of the configuration is called otherwise."""
_NAMED = 3
"""Differences that a message names; of the others it gives the number."""
_WIDTH = 60
"""Characters of a value in a message."""


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values; lists and empty dictionaries are values.

    >>> dict(leaves({"data": {"seed": 0, "map": {}}, "weights": "w"}))
    {'data.seed': 0, 'data.map': {}, 'weights': 'w'}
    >>> dict(leaves({})), dict(leaves({7: {8: 0}}))
    ({}, {'7.8': 0})
    """
    if isinstance(value, dict) and (value or not key):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


@cache
def default_settings() -> Mapping[str, Any]:
    """Dotted key of a run's configuration to its default."""
    return dict(leaves(parse_config("").model_dump(mode="json")))


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """In words where `now` differs from `was`, by the first few keys; None where nothing does. A setting that `was`
    lacks and that has its default now came with a later version, and is no difference.

    >>> difference({"data": {"seed": 0, "limit": 4}}, {"data": {"seed": 2, "limit": 4}})
    'data.seed was 0, is 2'
    >>> difference({"sampling": {"temperature": 0.7}}, {"sampling": {"temperature": 0.7, "top_p": 1.0}})
    """
    old, new = (dict(leaf for key, value in each.items() for leaf in leaves(value, key)) for each in (was, now))
    differing = (key for key in {*old, *new} if key not in old or key not in new or old[key] != new[key])
    keys = sorted(key for key in differing if key in old or not _is_default(key, new[key]))
    told = [_told(key, _shown(old, key), _shown(new, key)) for key in keys[:_NAMED]]
    if len(keys) > _NAMED:
        told.append(f"{len(keys) - _NAMED} more keys differ")
    return "; ".join(told) or None


def _is_default(key: str, value: Any) -> bool:
    """Whether an identity's `key` has the default of the run's configuration."""
    section, _, name = key.partition(".")
    known = default_settings()
    setting = f"{_SECTIONS.get(section, section)}.{name}"
    return setting in known and known[setting] == value


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not there"


def _told(key: str, was: str, now: str) -> str:
    """Of long values the part where they begin to differ."""
    shorter = min(len(was), len(now))
    same = next((at for at in range(shorter) if was[at] != now[at]), shorter)
    start = 0 if max(len(was), len(now)) <= _WIDTH else max(0, same - _WIDTH // 2)
    return f"{key} was {_cut(was, start)}, is {_cut(now, start)}"


def _cut(text: str, start: int) -> str:
    end = start + _WIDTH
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"
