"""Files of a league's published protocols, and the family and length of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from palimpsest.app.evaluate.evaluation_data import expanded, set_names
from palimpsest.app.evaluate.evaluation_plan import files_of
from palimpsest.config.data import listed
from palimpsest.config.league import LeagueConfig, family_of
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import FileSet
from palimpsest.errors import ConfigError, nearest

SetSize = tuple[str, int | None]
"""Family and length."""


@dataclass(frozen=True)
class ProtocolFiles:
    """The files of a protocol that are there."""

    protocol: str
    folder: str
    cells: Mapping[str, SetSize]
    """Family and length by path."""
    notes: tuple[str, ...] = ()
    """Commands that make the missing files."""

    @property
    def name(self) -> str:
        """Name of the evaluations' folder."""
        return family_of(self.protocol)

    def cell(self, name: str) -> SetSize | None:
        """Family and length of an evaluation's set, which has the name of its file, or the path if two share a name."""
        return next((cell for path, cell in self.cells.items() if name in (path, Path(path).stem)), None)


def held_out_sets(league: LeagueConfig) -> frozenset[str]:
    """Names of the evaluated sets that are not in the mean. Raises ConfigError."""
    if league.data is None:
        return frozenset(map(family_of, league.held_out))
    names = set_names(expanded(listed(league.data)))
    names |= {name: name for name in names.values()}
    for name in league.held_out:
        if name not in names:
            raise ConfigError(f"held_out={name}: is not evaluated{nearest(name, names)}")
    return frozenset(names[name] for name in league.held_out)


def protocol_files(protocol: str, folder: str) -> ProtocolFiles:
    """The files of a protocol. Raises ConfigError if all are missing."""
    sets = load_recipe(protocol).evaluation.files
    if not sets:
        raise ConfigError(f"protocols.{protocol}: has no files; name a published protocol, such as eval/ruler-hqa")
    found, _, notes = files_of(sets, folder, f"protocols.{protocol}")
    known = dict(_cells(protocol, sets, Path(folder)))
    return ProtocolFiles(protocol, folder, {path: known[path] for path in listed(found)}, tuple(notes))


def _cells(protocol: str, sets: tuple[FileSet, ...], folder: Path) -> Iterator[tuple[str, SetSize]]:
    """(path, cell) of each file that the protocol may have."""
    several = len({task for file_set in sets for task in file_set.tasks}) > 1
    for file_set in sets:
        for choice in file_set.choices(folder):
            family = family_of(protocol) + (f" {choice.task}" if several else "")
            yield from ((str(folder / name), (family, choice.size)) for name in choice.names)
