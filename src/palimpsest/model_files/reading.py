"""Small files of a model's folder, read within bounds.

Guaranteed: what is opened is a plain file inside the folder (or, in the hub's own cache, one of its blobs), of a
bounded size; what can't be read, or isn't what it should be, is a ModelError of one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palimpsest.errors import ModelError, PalimpsestError
from palimpsest.files import read_regular

MAX_BYTES = {"tokenizer.json": 128 << 20, "vocab.json": 64 << 20, "chat_template.jinja": 1 << 20}
"""Largest size of a file by its name; the largest tokenizer.json in use has about 35 MB."""
_WORDY = 20  # characters; shorter reasons, such as that of a KeyError, need the kind of error beside them
MAX_JSON_BYTES = 32 << 20
"""Of every other JSON file."""


def check_entries(name: str, folder: Path) -> None:
    """Refuse what no model folder needs: links that lead out of it, pipes and devices, oversized texts."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() and not _inside(entry, folder):
            raise ModelError(f"model {name}: {entry.name} is a link out of the folder; put the file itself there")
        if not entry.is_file() and not entry.is_dir():
            raise ModelError(f"model {name}: {entry.name} is no plain file")
        limit = MAX_BYTES.get(entry.name, MAX_JSON_BYTES if entry.suffix == ".json" else None)
        if limit is not None and entry.stat().st_size > limit:
            size = entry.stat().st_size
            raise ModelError(f"model {name}: {entry.name} has {size:,} bytes, more than the {limit:,} that are read")


def _inside(link: Path, folder: Path) -> bool:
    """Whether a link ends inside its folder, or in the blobs beside the hub cache's snapshots."""
    try:
        target, home = link.resolve(strict=True), folder.resolve()
    except (OSError, RuntimeError):  # broken, or in a circle
        return False
    blobs = [home.parent.parent / "blobs"] if home.parent.name == "snapshots" else []
    return any(target.is_relative_to(place) for place in (home, *blobs))


def read_object(name: str, file: Path) -> dict[str, Any]:
    """The JSON object in `file`; {} if there is no such file."""
    try:
        value = json.loads(read_regular(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ModelError(f"model {name}: {file.name} can't be read as JSON ({reason})") from None
    if not isinstance(value, dict):
        raise ModelError(f"model {name}: {file.name} holds {_kind(value)}, a JSON object is needed")
    return value


def _kind(value: object) -> str:
    return {list: "an array", type(None): "null"}.get(type(value), f"a {type(value).__name__}")


def token_ids(value: object) -> tuple[int, ...]:
    """Ids of an entry such as `eos_token_id`, which holds one, several or none.

    >>> token_ids(2), token_ids([2, 5]), token_ids(None), token_ids("x")
    ((2,), (2, 5), (), ())
    """
    several = value if isinstance(value, list) else [value]
    return tuple(each for each in several if isinstance(each, int) and not isinstance(each, bool))


def sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A configuration and those inside it, such as `text_config`, with what stands before their keys."""
    yield "", config
    yield from ((f"{key}.", inner) for key, inner in config.items() if isinstance(inner, dict))


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Whatever a library raises over foreign files becomes a ModelError: `what`, and the reason on the same line."""
    try:
        yield
    except PalimpsestError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of the libraries in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        kind, reason = type(error).__name__, " ".join(str(error).split())  # of several lines, the first may say little
        raise ModelError(f"{what} ({kind + ': ' if len(reason) < _WORDY else ''}{reason:.300})") from None
