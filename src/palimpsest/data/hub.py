"""Data sets of the Hugging Face hub, and folders of the same layout, where the package `datasets` is installed.

    hub:owner/name                   the only split there is
    hub:owner/name@validation        a split
    hub:owner/name:distractor@train  a configuration and a split

Rows are streamed: nothing is downloaded but what is read. Code of a data set is never run; a data set that is one is
refused by the package.
Not covered: the revision, which is the newest; images and audio.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest.config.extras import install_line
from palimpsest.errors import DataError

PREFIX = "hub:"


def is_hub(path: Path) -> bool:
    return str(path).startswith(PREFIX)


def parsed(name: str) -> tuple[str, str | None, str | None]:
    """(data set, configuration, split) of a source.

    >>> parsed("hub:hotpotqa/hotpot_qa:distractor@train")
    ('hotpotqa/hotpot_qa', 'distractor', 'train')
    >>> parsed("hub:owner/name")
    ('owner/name', None, None)
    """
    rest, _, split = name.removeprefix(PREFIX).partition("@")
    dataset, _, configuration = rest.partition(":")
    return dataset, configuration or None, split or None


def hub_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """(values by column, place) of every row."""
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise DataError(
            f"{path}: the hub is read by the package datasets, which isn't installed: {install_line('datasets')}, or "
            "download a file of the data set and name that"
        ) from None
    name, configuration, split = parsed(str(path))
    try:
        loaded = datasets.load_dataset(name, configuration, split=split, streaming=True)
        if split is None:
            if len(loaded) != 1:
                raise DataError(f"{path}: choose a split: {', '.join(f'{path}@{each}' for each in loaded)}")
            (loaded,) = loaded.values()
        for number, values in enumerate(loaded, 1):
            yield dict(values), f"row {number}"
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001  the border around a package that reads the network and any file
        line = " ".join(str(error).split())
        raise DataError(f"{path}: datasets can't read it ({type(error).__name__}: {line:.300})") from None
