"""Which edition of the data was played: the SHA-256 of each file.

Guaranteed: read once, after everything was played; a source that is no file has none. Not covered: files that a data
file refers to, such as a corpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from palimpsest import files
from palimpsest.config.data import DataConfig, listed
from palimpsest.jobs.evaluation_data import expanded


def editions_of(data: DataConfig) -> dict[str, str]:
    """File to SHA-256, of every file that an evaluation of `data` reads its problems from."""
    sources = expanded(listed(data.eval_source or data.source))
    return {source: files.sha256(Path(source)) for source in sources if Path(source).is_file()}


def edition_of_set(name: str, editions: Mapping[str, str]) -> str | None:
    """The SHA-256 of the file that a set is called after, or of the only one there is.

    >>> edition_of_set("eval_50", {"data/eval_50.json": "a", "data/eval_100.json": "b"})
    'a'
    >>> edition_of_set("recall, eval_50", {"data/eval_50.json": "a", "data/eval_100.json": "b"})
    'a'
    >>> edition_of_set("4 chunks", {}) is None
    True
    """
    parts = {name, *name.split(", ")}  # of a sweep: the policy, the file, the documents
    named = [digest for source, digest in editions.items() if parts & {source, Path(source).stem}]
    if named or len(editions) != 1:
        return named[0] if named else None
    return next(iter(editions.values()))
