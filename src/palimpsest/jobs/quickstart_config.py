"""Which quickstart is meant: its method, its configuration and its folder, refused where it can't be evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from palimpsest.config.load import Overrides
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.errors import ConfigError
from palimpsest.jobs.composing import policy_of
from palimpsest.jobs.methods import METHODS, Method
from palimpsest.jobs.resuming import QUICKSTART, Resume, resumed_run
from palimpsest.jobs.settings import check_quickstart, run_config
from palimpsest.memory.registry import build_evaluated, build_policy
from palimpsest.runs.run_folder import CONFIG, load_config

DEFAULT_FOLDER = "runs/quickstart"


@dataclass(frozen=True, slots=True)
class AskedQuickstart:
    """A quickstart to begin or to go on with."""

    method: str
    config: RunConfig
    folder: Path
    resume: bool


def asked_quickstart(
    method: str | None,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
) -> AskedQuickstart:
    """The quickstart that these options mean. Raises ConfigError, or RunError for a folder without a run."""
    folder = Path(out or DEFAULT_FOLDER)
    if resume is True and method is None and (folder / CONFIG).is_file():
        resume = folder
    run = resumed_run(None if method in METHODS else method, out, resume, QUICKSTART)
    if run is None:
        name = method or next(iter(METHODS))
        check_quickstart(name)
        config = quickstart_config(name, overrides, seed or 0, folder if resume else None)
        return AskedQuickstart(name, config, folder, bool(resume))
    config = run_config(load_config(run), overrides, seed=seed)
    name = config.recipe.removesuffix("-quickstart")
    check_quickstart(name)
    return AskedQuickstart(name, _checked(config, METHODS[name]), run, True)


def quickstart_config(method: str, overrides: Overrides, seed: int, resumed: Path | None = None) -> RunConfig:
    """The method's quickstart recipe. Raises ConfigError if it can't be evaluated along the method's axis."""
    config = run_config(f"{method}-quickstart", overrides, seed=seed, out=resumed, resume=resumed is not None)
    return _checked(config, METHODS[method])


def _checked(config: RunConfig, method: Method) -> RunConfig:
    axis = method.axis
    if config.data.source != axis.source:
        raise ConfigError(
            f"data.source={config.data.source}: quickstart {axis.growth}, so it needs {axis.source}; "
            "palimpsest train takes any file"
        )
    axis.points(config)
    _check_names(config, method)
    policy_of(config)
    build_evaluated(config.policy)
    for policy in other_policies(config):
        build_policy(policy)
    return config


def _check_names(config: RunConfig, method: Method) -> None:
    """Refuse names under which two policies would be played, or that are no folder of the run's."""
    taken = {method.agent: "the agent", method.before: "the agent before training"}
    for key, named in (("rivals", config.evaluation.rivals), ("baselines", config.evaluation.baselines)):
        for name in named:
            if name in taken:
                raise ConfigError(f"evaluation.{key}.{name}: {taken[name]} has this name in the report; give another")
            if key == "rivals" and (name in _FOLDERS or name != Path(name).name):
                raise ConfigError(f"evaluation.rivals.{name}: can't be the name of its folder; give a plain one")
            taken[name] = f"evaluation.{key}.{name}"


_FOLDERS = ("", "..", "before", "after")
"""Under evaluations/, whose these are, and above it."""


def other_policies(config: RunConfig) -> list[PolicyConfig]:
    """Who is compared with the agent: rivals and baselines."""
    return [*config.evaluation.rivals.values(), *config.evaluation.baselines.values()]
