"""Agents of several models on the same problems: an evaluation each, as it is alone, and one report of all.

    OUT/NAME             what `palimpsest eval --model NAME --out OUT/NAME` writes
    OUT/compare.html     all of them beside each other, as `palimpsest compare` writes it

Each brings the configuration of its own run. Of the settings an agent takes those options that its policy has; other
settings are for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palimpsest.config.load import split_overrides
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.samples import IDENTITY
from palimpsest.jobs.settings import Model
from palimpsest.jobs.sweep import Agents, Sweep, check_taken, takes
from palimpsest.runs.run_folder import CONFIG


def agents_of(models: Sequence[Model], like: Agents, out: Path | None) -> dict[Path, Agents]:
    """An agent a model, by the folder of its evaluation; the rest is asked for as of `like`. Raises ConfigError."""
    if out is None:
        raise ConfigError("several models need --out DIR: an evaluation each goes into it, and the report")
    for name in (IDENTITY, CONFIG):
        if (out / name).exists():
            raise RunError(f"{out} holds {name}, so it is one evaluation or a run: give several another --out")
    agents = [replace(like, model=model) for model in models]
    check_taken(like.overrides, [policy for each in agents for policy in each.names])
    return {out / name: _with_its_own(each) for name, each in zip(names_of(models), agents, strict=True)}


def names_of(models: Sequence[Model]) -> list[str]:
    """The last part of each path, or as many as tell them apart: a further model leaves the folders of others as they
    are. Raises ConfigError.

    >>> names_of(["runs/a", "runs/b", "embedded"]), names_of(["runs/a/checkpoints/step-1", "b/checkpoints/step-1"])
    (['a', 'b', 'embedded'], ['a-checkpoints-step-1', 'b-checkpoints-step-1'])
    """
    given = [Path(model) if Path(model).name.strip(".") else Path(model).resolve() for model in models]
    paths = [[part for part in path.parts if part not in ("/", "..")] for path in given]
    for count in range(1, max(map(len, paths)) + 1):
        names = ["-".join(path[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    twice = next(model for model, path in zip(models, paths, strict=True) if paths.count(path) > 1)
    raise ConfigError(f"--model {twice} is given twice; name each model once")


def _with_its_own(agents: Agents) -> Agents:
    """With those overrides that are for it."""
    given = list(split_overrides(agents.overrides))
    kept = {key: value for key, value, _ in given if any(takes(policy, key) for policy in agents.names)}
    return replace(agents, overrides=kept)


def check_alike(sweeps: Sequence[Sweep]) -> None:
    """Refuse agents that are graded otherwise. Raises ConfigError."""
    rewards = dict.fromkeys(sweep.config.reward.name for sweep in sweeps)
    if len(rewards) > 1:
        raise ConfigError(
            f"several models: their runs are graded by {', '.join(rewards)}, which no report can put side by side; set "
            "one for all, e.g. --set reward.name=fraction"
        )


def report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write one report of their evaluations; its files, the page first."""
    from palimpsest.jobs.comparing import compare
    from palimpsest.jobs.comparison_files import write_folder  # draws, and most evaluations have no use for it

    return write_folder(compare(*folders), out)
