"""A preset on the files of a folder: what is played, what is missing and how it is made, what differs.

Guaranteed: files are named that the protocol has and the folder lacks, with the command that makes each; what is asked
for beside a preset and changes it is told and stands in summary.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.load import Overrides, split_overrides
from palimpsest.config.options import options_of
from palimpsest.config.preset import Preset, load_preset
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import policy_class

_NAMED = 4  # commands for missing files that are named


@dataclass(frozen=True, slots=True)
class Chosen:
    """A preset and what a folder holds of it."""

    name: str
    preset: Preset
    folder: Path
    files: tuple[Path, ...]
    missing: tuple[tuple[str, str], ...]
    """(file, the command that makes it, several may share one) of what isn't there."""
    corpus: Path | None
    """File whose documents the numbers of others refer to."""

    def told(self) -> list[str]:
        """In words: whose protocol it is and what is missing."""
        differs = len(self.preset.differences)
        lines = [
            f"preset {self.name}, after {self.preset.source.paper}: {differs} differences from the published protocol, "
            f"palimpsest eval --preset {self.name} --show lists them"
        ]
        commands: dict[str, list[str]] = {}
        for file, make in self.missing:
            commands.setdefault(make, []).append(file)
        for make, files in list(commands.items())[:_NAMED]:
            lines.append(f"{self.folder} lacks {', '.join(files)}, left out; {make}")
        if len(commands) > _NAMED:
            names = ", ".join(file for files in list(commands.values())[_NAMED:] for file in files)
            lines.append(f"missing and left out, too: {names}")
        return lines

    def to_json(self, changed: Sequence[str]) -> dict[str, Any]:
        """What summary.json holds of it."""
        return {
            "name": self.name,
            "paper": self.preset.source.paper,
            "differences": list(self.preset.differences),
            "changed": list(changed),
            "missing": [file for file, _ in self.missing],
        }


def choose(name: str, folders: Sequence[str] | None) -> Chosen:
    """A preset on the files of one folder. Raises ConfigError."""
    preset = load_preset(name)
    if not folders or len(folders) > 1 or not Path(folders[0]).is_dir():
        given = ", ".join(folders or ()) or "nothing"
        raise ConfigError(f"--preset {name}: give the folder of its files as --data DIR, not {given}")
    folder = Path(folders[0])
    files, missing, corpora = list[Path](), list[tuple[str, str]](), list[Path]()
    for each in preset.sets:
        for names, make in each.each(folder):
            there = [folder / name for name in names if (folder / name).is_file()][:1]
            files += there
            missing += [] if there else [(names[0], make)]
            corpora += [folder / each.corpus] if there and each.corpus and (folder / each.corpus).is_file() else []
    if not files:
        file, make = missing[0]
        raise ConfigError(f"--preset {name}: {folder} holds none of its files, such as {file}; {make}")
    return Chosen(name, preset, folder, tuple(files), tuple(missing), corpora[0] if corpora else None)


def check_needs(chosen: Chosen, overrides: Overrides) -> None:
    """Raise ConfigError for keys that only the user can set and hasn't."""
    given = {key for key, _, _ in split_overrides(overrides)}
    for key, what in chosen.preset.needs.items():
        if key not in given:
            raise ConfigError(f"--preset {chosen.name} needs {what}: --set {key}=...")


def defaults_for(preset: Preset, policy: str | None) -> dict[str, Any]:
    """Options that the policy has, and all settings."""
    known = options_of(policy_class(policy or preset.policy))
    return {**{name: value for name, value in preset.options.items() if name in known}, **preset.settings}


def changes(preset: Preset, policies: Sequence[PolicyConfig], config: RunConfig, **asked: Any) -> list[str]:
    """In words, what is played otherwise than the preset says; `asked` is told where it isn't None."""
    told = [f"policy {each.name} in place of {preset.policy}" for each in policies if each.name != preset.policy]
    for each in policies:
        known = options_of(policy_class(each.name))
        for name, value in preset.options.items():
            now = each.options.get(name, known[name].default) if name in known else value
            if now != value:
                told.append(f"{each.name}.{name}={now} in place of {value}")
    for key, value in preset.settings.items():
        if (now := _value(config, key)) != value:
            told.append(f"{key}={now} in place of {value}")
    return told + [f"{name}={value}" for name, value in asked.items() if value is not None]


def _value(config: RunConfig, key: str) -> Any:
    """What stands under a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
