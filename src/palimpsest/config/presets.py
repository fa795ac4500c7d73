"""Presets of evaluations: a published protocol by name, as a YAML file in `palimpsest/presets/`.

    about: ...                          a line
    source: {paper: ..., ...}           whose protocol it is
    policy: overwrite                   who plays, where nobody else is asked for
    options: {chunk_size: 5000}         budgets of those policies that have them
    settings: {reward.name: sub_em}     dotted keys: metric, temperature, top_p
    sets:                               which files are looked for
      - {files: ["eval_{size}.json"], sizes: [50, 100], make: "palimpsest data ..."}
    differences: [...]                  from the published protocol

Guaranteed: an unknown key, a wrong value, a file name with another field than {task} and {size} is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Formatter
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from palimpsest.config.keys import explain
from palimpsest.config.section import Strict
from palimpsest.config.yaml_text import first_line, read
from palimpsest.errors import ConfigError, nearest

_FIELDS = frozenset({"task", "size"})


class ProtocolSource(Strict):
    """Where a protocol is published."""

    paper: str
    repository: str | None = None
    commit: str | None = None


class FileSet(Strict):
    """Files of one kind: one for each task and size."""

    files: tuple[str, ...] = Field(min_length=1)
    """Names with {task} and {size}; the first that is there counts."""
    tasks: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    make: str
    """The command that makes one, or where it comes from; with {sizes}, every size that is asked for, one for all."""
    corpus: str | None = None
    """File beside them whose documents their numbers refer to."""

    @field_validator("files")
    @classmethod
    def _known_fields(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for name in files:
            strange = {field for _, field, _, _ in Formatter().parse(name) if field is not None} - _FIELDS
            if strange or "/" in name:
                raise ValueError(f"sets.files={name}: the name of a file, with {{task}} and {{size}} alone as fields")
        return files

    def each(self, folder: Path | None = None) -> Iterator[tuple[tuple[str, ...], str]]:
        """(names of a file, the best first; the command that makes it, and all others of its task not in `folder`)."""
        for task in self.tasks or ("",):
            files = {size: self._names(task, size) for size in self.sizes or (0,)}
            wanted = [size for size, names in files.items() if not (folder and _any_in(folder, names))]
            for size, names in files.items():
                sizes = ",".join(map(str, wanted or [size]))
                yield names, self.make.format(task=task, size=size, sizes=sizes)

    def _names(self, task: str, size: int) -> tuple[str, ...]:
        return tuple(name.format(task=task, size=size) for name in self.files)


def _any_in(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / name).is_file() for name in names)


class Preset(Strict):
    """A published protocol."""

    about: str
    source: ProtocolSource
    policy: str
    options: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    """For those policies that have them."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the configuration."""
    sets: tuple[FileSet, ...] = Field(min_length=1)
    problems: int | None = None
    """Of each file, as published; None: not one number."""
    needs: dict[str, str] = Field(default_factory=dict)
    """Keys that only the user can set, and what they are."""
    differences: tuple[str, ...]

    @model_validator(mode="after")
    def _dotted(self) -> Preset:
        for key in (*self.settings, *self.needs):
            if "." not in key:
                raise ValueError(f"settings.{key}: is no dotted key; options of a policy stand under options")
        return self

    @property
    def keys(self) -> dict[str, Any]:
        """Options and settings by their keys."""
        return {**self.options, **self.settings}


def preset_names() -> list[str]:
    """Names of the presets inside the package."""
    folder = resources.files("palimpsest") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def preset_text(name_or_path: str) -> str:
    """The YAML of a shipped preset, or of a file. Raises ConfigError."""
    names = preset_names()
    if name_or_path in names:
        return (resources.files("palimpsest") / "presets" / f"{name_or_path}.yaml").read_text("utf-8")
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path.read_text("utf-8", "replace")
    hint = nearest(name_or_path, names)
    raise ConfigError(f"preset {name_or_path}: no such preset{hint}; known: {', '.join(names)}, or a YAML file")


def load_preset(name_or_path: str) -> Preset:
    """A shipped preset, or one of a file. Raises ConfigError."""
    try:
        values = read(preset_text(name_or_path))
    except yaml.YAMLError as error:
        raise ConfigError(f"preset {name_or_path}: is not YAML: {first_line(error)}") from None
    try:
        return Preset.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, source=name_or_path, overrides={}).replace("recipe ", "preset ")) from None
