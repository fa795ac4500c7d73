"""Which tokenizer decodes a record: the newest checkpoint's of its run, else the model's that its configuration names.

Guaranteed: nothing is downloaded; a hub's model counts where it is in the local cache. Where there is no tokenizer,
ids are shown, and `why` says what to give.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.models import SHIPPED, named
from palimpsest.errors import PalimpsestError
from palimpsest.evaluation.samples import SUMMARY
from palimpsest.model_files.hub import cached_tokenizer
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths
from palimpsest.runs.run_folder import CONFIG
from palimpsest.text.codec import Codec
from palimpsest.view.run_facts import Facts, read_object
from palimpsest.view.sources import Kind, Source


class IdsCodec:
    """Stands in for a tokenizer that isn't there: ids as numbers."""

    control_ids: frozenset[int] = frozenset()
    thinking_ids: frozenset[int] = frozenset()
    stop_ids: tuple[int, ...] = ()

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """
        >>> IdsCodec().decode([7, 12])
        '7 12 '
        """
        return "".join(f"{each} " for each in ids)

    def encode(self, text: str) -> list[int]:
        """One id, whatever the text is: nothing can be looked up without a tokenizer."""
        return [0] if text else []

    def strip_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids)


@dataclass(frozen=True, slots=True)
class Decoder:
    """What turns ids into text."""

    codec: Any
    """A `Codec`, or an `IdsCodec`."""
    why: str | None
    """Why ids are shown instead of text; None where text is."""


class Decoders:
    """The tokenizers of sources, each opened once. Threads may share it."""

    def __init__(self, facts: Facts, tokenizer: str | None = None) -> None:
        """`tokenizer`: a folder or hub id that decodes everything, in place of what the files name."""
        self._facts, self._given = facts, tokenizer
        self._lock = threading.Lock()
        self._opened: dict[str, Decoder] = {}

    def of(self, source: Source) -> Decoder:
        """What decodes a source's episodes."""
        tried: list[str] = []
        with self._lock:
            for name in self._names(source):
                if name not in self._opened:
                    self._opened[name] = _open(name)
                if self._opened[name].why is None:
                    return self._opened[name]
                tried.append(str(self._opened[name].why))
        why = tried[0] if tried else f"{source.name} doesn't say which model it is of"
        return Decoder(IdsCodec(), f"Token ids are shown instead of text: {why}; give --tokenizer FOLDER")

    def _names(self, source: Source) -> Iterator[str]:
        if self._given is not None:
            yield self._given
            return
        run = run_of(source)
        if run is not None:
            newest = next(reversed(checkpoint_paths(run / CHECKPOINTS)), None)
            if newest is not None:
                yield str(newest)
            model = self._facts.config(Source("", Kind.RUN, run, "")).get("model")
            if isinstance(model, dict) and isinstance(model.get("path"), str):
                yield model["path"]
        elif source.kind is Kind.EVALUATION:
            model = (read_object(source.path / SUMMARY) or {}).get("model")
            if isinstance(model, str):
                yield from _of_model(model)


def _of_model(name: str) -> Iterator[str]:
    """A model's own name, or the newest checkpoint of the run that it names."""
    if os.path.isfile(Path(name) / CONFIG):  # False too for a name that no file can have
        yield from (str(path) for path in reversed(checkpoint_paths(Path(name) / CHECKPOINTS)))
    yield name


def run_of(source: Source) -> Path | None:
    """The run that a source is, or that its file lies in."""
    places = (source.path, *list(source.path.parents)[: 0 if source.kind is Kind.RUN else 4])
    return next((place for place in places if (place / CONFIG).is_file()), None)


def _open(name: str) -> Decoder:
    """Raises nothing: a tokenizer that can't be opened says why."""
    here = Path(named(name))
    folder = here if name in SHIPPED or os.path.isdir(here) else cached_tokenizer(name)
    if folder is None:
        return Decoder(None, f"the model {name:.200} is neither a folder here nor in the local cache of the hub")
    try:
        bare = (folder / "tokenizer.json").is_file()
        return Decoder(Codec.for_reading(folder) if bare else Codec.load(str(folder)), None)
    except PalimpsestError as error:
        return Decoder(None, str(error))
