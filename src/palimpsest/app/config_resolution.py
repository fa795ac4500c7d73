"""Resolution of a request to one `RunConfig`, equal from Python and from the command line.

    train("memagent-7b", out="runs/first")                     a new run
    train("memagent-7b", out="runs/first", resume=True)        the run there if it exists, otherwise a new one
    train(resume="runs/first")                                 the run there, with its recipe, overrides and seed

Light imports: a mistake in a recipe or an override is reported before anything heavy is imported.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from palimpsest.config.data import GENERATED, SEEDS, Sources, listed
from palimpsest.config.engine import ALIKE, ClusterConfig, EmbeddedEngineConfig, SamplerConfig
from palimpsest.config.load import (
    PROMPTS,
    Overrides,
    dump_config,
    load_recipe,
    parse_config,
    put,
    quickstarts,
    recipe_names,
    split_overrides,
    with_texts,
)
from palimpsest.config.schema import PolicyConfig, RoleConfig, RunConfig
from palimpsest.config.section import with_keys
from palimpsest.engines.open import check_models, with_sampler
from palimpsest.engines.protocol import Objective
from palimpsest.errors import ConfigError, RunError, nearest
from palimpsest.memory.registry import check_roles, declared_roles, evaluated, policy_class, trained
from palimpsest.notes import Note
from palimpsest.plugin_options import options_of
from palimpsest.progress.reporter import Progress
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, newest_intact
from palimpsest.runs.resume_rules import how_to_resume, origin_of, resume_command
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.tools.tool import DOCUMENT

Recipe = str | Path | RunConfig
"""A shipped recipe's name, a YAML file, or a configuration."""

EMBEDDED = "embedded"

Model = str | os.PathLike[str]
"""`embedded`, a Hugging Face folder, a hub id, or a run or its folder, which means its newest checkpoint."""


QUICKSTART = "quickstart"
SFT = "sft"
COLD_START = "cold-start"
"""Folder of the cold start, inside the run's."""

Resume = bool | str | os.PathLike[str]
"""True: resume the run in the output folder, if any. A folder: resume the run in it, with its configuration."""


def run_config(
    recipe: Recipe,
    overrides: Overrides | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> RunConfig:
    """The configuration of a run; `seed` is the run's and the data's. Raises ConfigError.

    With `resume`, texts from a file of prompts stay as the run in `out` recorded them.
    """
    changes = overrides or ()
    if seed is not None:
        changes = _more(changes, {"seed": seed})
    if isinstance(recipe, RunConfig) and not changes:
        config = recipe
    elif isinstance(recipe, RunConfig):
        config = parse_config(dump_config(recipe), name=recipe.recipe, overrides=changes, read_files=False)
    else:
        config = load_recipe(recipe, changes, read_files=False)
    config = _from_checkpoint(config)
    return with_texts(config, _run_in(Path(out or default_folder(config))) if resume else None)


def _from_checkpoint(config: RunConfig) -> RunConfig:
    if not (Path(config.model.path) / CONFIG).is_file():
        return config
    path = model_folder(config.model.path, warnings.warn)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def _run_in(folder: Path) -> RunConfig | None:
    """The configuration of the run in a folder, or of the run around a checkpoint's folder."""
    folder = folder.resolve()
    for parent in (folder, *([folder.parent.parent] if folder.parent.name == CHECKPOINTS else [])):
        if (parent / CONFIG).is_file():
            return load_config(parent)
    return None


def _more(overrides: Overrides, changes: Mapping[str, Any]) -> Overrides:
    if isinstance(overrides, Mapping):
        return {**overrides, **changes}
    return [*overrides, *(f"{key}={value}" for key, value in changes.items())]


def default_folder(config: RunConfig) -> Path:
    """Default folder of a run, named by recipe and seed."""
    return Path("runs") / f"{config.recipe}-seed{config.seed}"


def check_quickstart(method: str) -> None:
    """Raise ConfigError for a method without a quickstart."""
    names = list(quickstarts())
    if method not in names:
        hint = nearest(method, names) or f"; known: {', '.join(names)}"
        raise ConfigError(f"quickstart {method}: no such method{hint}")


def _roles(policy: str, base: RunConfig) -> dict[str, RoleConfig]:
    """The roles of `base` that `policy` may have; those that it declares are the model's own unless set."""
    declared = declared_roles(policy)
    if declared is None or policy == base.policy.name:
        return dict.fromkeys(declared or (), RoleConfig()) | base.roles
    return {name: base.roles.get(name, RoleConfig()) for name in declared}


def _common_reward(run: RunConfig | None) -> str | None:
    """The reward of policies that declare none; None: the run's own reward is for any policy."""
    declared = None if run is None else policy_class(run.policy.name).reward
    return RunConfig().reward.name if run is not None and run.reward.name == declared else None


@dataclass(frozen=True)
class Agent:
    """A policy on a model, with the budgets, rewards and sampling of a recipe."""

    model: Model = EMBEDDED
    policy: str | None = None
    """None: the recipe's, or `overwrite` without a recipe."""
    recipe: Recipe | None = None
    """None: the configuration of the run that `model` belongs to, if any."""
    overrides: Overrides = ()
    """Options of the policy (`chunk_size=48`) and dotted keys of the recipe."""
    seed: int = 0
    base_url: str | None = None
    """OpenAI-compatible endpoint that serves `model`, e.g. http://127.0.0.1:8000/v1; None: load it in this process."""
    api_key_env: str | None = None
    """Environment variable with its key."""
    tokenizer: str | os.PathLike[str] | None = None
    """Folder or hub id of the endpoint's tokenizer; None: the model's name, if it is either."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        for name in ("api_key_env", "tokenizer"):
            if self.base_url is None and (value := getattr(self, name)) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} {value}: needs an endpoint; set --base-url too, or omit it")
        for name, value, wanted in (
            ("model", self.model, "a name, a folder or a Run"),
            ("policy", self.policy or "", "a name, or my_module:MyPolicy"),
        ):
            if not isinstance(value, str | os.PathLike):
                raise ConfigError(f"{name} is of type {type(value).__name__}: pass {wanted}")

    def config(self, data: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> RunConfig:
        """The agent's configuration, with `data` for keys of the data section and `more` overrides.

        The embedded engine runs the agent, regardless of its training engine, unless overrides name another engine or
        the recipe or run has an endpoint or a custom one. Options of the policy may still be unset. Raises ConfigError.
        """
        origin = self.base
        base = origin or RunConfig()
        policy = self.policy or base.policy.name
        options, changes = self._options(policy, base)
        named = "reward.name" in changes or self.recipe is not None or (origin and policy == origin.policy.name)
        wanted = None if named else policy_class(policy).reward or _common_reward(origin)
        reward = {} if wanted is None else {"reward.name": wanted}
        changed = on_embedded(base).model_copy(
            update={
                "policy": PolicyConfig(name=policy, options=options),
                "model": base.model.model_copy(update={"path": self.model_name(_unsaid)}),
                "data": base.data.model_copy(update=dict(data)),
                "roles": _roles(policy, base),
                "seed": self.seed,
                "cold_start": None,
            }
        )
        unsaid = origin is None or bool(origin.evaluation.files)
        dtype = {"model.dtype": "auto"} if unsaid and self.base_url is None else {}
        overrides = {**dtype, **reward, **self._section(), **changes, **(more or {})}
        config = parse_config(dump_config(changed), name="overrides", overrides=overrides)
        check_models(config)
        check_roles(config)
        return config

    def _options(self, policy: str, base: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options of the policy, and the overrides of other keys."""
        brings = self.run if base.evaluation.files else self.base
        options, changes = self._wording(policy), dict[str, Any]()
        if brings is not None and brings.policy.name == policy:
            options |= trained(brings.policy).options
        elif base.policy.name == policy:
            options |= evaluated(base.policy).options
        sections = RunConfig.model_fields.keys() - options_of(policy_class(policy))
        replaced = False
        for key, value, _ in split_overrides(self.overrides):
            if key == "policy.options":
                if not isinstance(value, Mapping):
                    raise ConfigError("must be a mapping, such as {chunk_size: 1000}", key=key, value=value)
                options, replaced = self._wording(policy) | dict(value), True
            elif key.startswith("policy.options."):
                put(options, key.removeprefix("policy.options."), value)
            elif "." in key or key in sections:
                changes[key] = value
            else:
                options[key] = value
        if self.recipe is not None and not options and not replaced and policy != base.policy.name:
            self._check_dropped(policy, base.policy)
        return options, changes

    def _check_dropped(self, policy: str, recipes: PolicyConfig) -> None:
        """Raises ConfigError for options of the recipe that another policy has, but would run without, unasked."""
        known = options_of(policy_class(policy))
        if dropped := [name for name in evaluated(recipes).options if name in known]:
            raise ConfigError(
                f"{policy} would run with its defaults, without the recipe's {', '.join(dropped)} of {recipes.name}: "
                "set its options, or policy.options={} if the defaults are meant",
                key="policy",
                value=policy,
            )

    def model_name(self, warn: Callable[[str], None]) -> str:
        """`model` as a folder, a hub id, or a name at the endpoint. Raises the errors of `model_folder`."""
        return model_folder(self.model, warn) if self.base_url is None else os.fspath(self.model)

    def _wording(self, policy: str) -> dict[str, Any]:
        """Prompt texts of the model's training, if its run has the same policy with custom texts."""
        texts = self.run.policy.options.get(PROMPTS) if self.run and self.run.policy.name == policy else None
        return {PROMPTS: texts} if isinstance(texts, dict) else {}

    def notes(self, config: RunConfig | None = None) -> list[str]:
        """Differences from the recipe or from the model's run, damaged checkpoints, and whether the problems of
        `config` are training problems."""
        run, notes = self.run, list[str]()
        self.model_name(notes.append)
        if self.recipe is not None and os.fspath(self.model) == EMBEDDED:
            recipes = (self.base or RunConfig()).model.path
            if recipes != EMBEDDED:
                notes.append(Note("model_of_recipe", recipe=recipes, model=EMBEDDED))
        if run is None:
            return notes
        if config is not None and _trained_on(run, config):
            notes.append(Note("trained_on_these_problems"))
        if config is None:
            played = self.policy or (self.base or run).policy.name
        else:
            played = config.policy.name
        trained = run.policy.name
        model = os.fspath(self.model)
        other = [] if played == trained else [Note("other_policy", model=model, trained=trained, policy=played)]
        return notes + other

    @cached_property
    def run(self) -> RunConfig | None:
        """Configuration of the run that `model` belongs to."""
        return _run_in(Path(self.model))

    @cached_property
    def base(self) -> RunConfig | None:
        """Configuration of the recipe, or of the model's run: an agent trained to recall must not run as one that
        overwrites. None without either."""
        if self.recipe is None:
            return self.run
        dotted = {key: value for key, value, _ in split_overrides(self.overrides) if "." in key}
        return run_config(self.recipe, self._section() | dotted)

    def _section(self) -> dict[str, Any]:
        """Overrides that select the endpoint; before all others, so that its keys are valid."""
        if self.base_url is None:
            return {}
        optional = {"api_key_env": self.api_key_env, "tokenizer": self.tokenizer and os.fspath(self.tokenizer)}
        keys = {"name": "endpoint", "url": self.base_url} | {name: value for name, value in optional.items() if value}
        return {f"engine.{name}": value for name, value in keys.items()}


def on_embedded(config: RunConfig) -> RunConfig:
    """`config` for the embedded engine, with its settings for it; an endpoint or a custom engine stays."""
    engine = config.engine
    if engine.name in ALIKE:
        engine = EmbeddedEngineConfig.model_validate(engine.model_dump(exclude={"name"}))
    return config.model_copy(update={"engine": engine, "cluster": ClusterConfig(), "sampler": SamplerConfig()})


def _trained_on(run: RunConfig, played: RunConfig) -> bool:
    """True if `played` has problems of `run`'s training file; generated problems differ in evaluation."""
    trained, data = run.data.train_files, played.data.val_files or played.data.train_files
    if trained in GENERATED:
        return False
    paths, played_paths = ({Path(path).resolve() for path in listed(sources)} for sources in (trained, data))
    return bool(paths & played_paths)


def evaluation_config(
    agent: Agent,
    *,
    data: Sources | Path | None = None,
    documents: int | None = None,
    objectives: Iterable[int] | None = None,
    corpus: str | Path | None = None,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> RunConfig:
    """The configuration of an evaluation of `agent` on `data`: one or more files, `synthetic` or `synthetic_search`.

    `columns`: the file's column names by ours (`data.columns`).

    Without `data`: the held-out data of the recipe or of the model's run; without either, `synthetic`.
    """
    section: dict[str, Any] = {"limit": limit, "curriculum": None}
    section |= {} if columns is None else {"columns": dict(columns)}
    if data is None and agent.base is not None:
        optional = {"documents": documents, "corpus": None if corpus is None else str(corpus)}
        section |= {name: value for name, value in optional.items() if value is not None}
    else:
        source = data if isinstance(data, tuple) else str(data or "synthetic")
        section |= {"train_files": source, "val_files": None, "documents": documents}
        section["corpus"] = None if corpus is None else str(corpus)
        if source in ("synthetic", SEEDS):
            section["search"] = None
        if source in GENERATED:
            section |= {"format": None, "format_options": {}, "columns": {}, "shuffle": True}  # settings of files
    search = {} if objectives is None else {"data.search.objectives": list(objectives)}
    config = agent.config(section, search)
    if searched_source(config.policy) != DOCUMENT:
        return config
    if objectives is not None:
        raise ConfigError(
            "objectives: combined questions have no documents, but "
            "policy.options.tools.search.source=document searches them; omit one of the two"
        )
    return config.model_copy(update={"data": config.data.model_copy(update={"search": None})})


def searched_source(policy: PolicyConfig) -> Any:
    """`source` of the policy's search tool, "" without one."""
    tools = policy.options.get("tools")
    search = tools.get("search") if isinstance(tools, dict) else None
    return search.get("source", "") if isinstance(search, dict) else ""


def model_folder(path: Model, warn: Callable[[str], None]) -> str:
    """`path`, or the newest intact checkpoint of the run in it; damaged ones give a warning.

    Raises CheckpointError if all checkpoints are damaged, RunError without any.
    """
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        return str(folder) if isinstance(path, os.PathLike) else path
    intact = newest_intact(folder / CHECKPOINTS, warn)
    if intact is None:
        raise RunError(f"{folder}: has no checkpoint; {how_to_resume(folder)}")
    return str(intact.path)


def _unsaid(_: str) -> None:
    """Ignore a warning that `Agent.notes` returns."""


def newest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint in a run's folder; None before the first."""
    saved = checkpoint_paths(run / CHECKPOINTS)
    return saved[-1] if saved else None


# ---- New and resumed runs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request of `palimpsest COMMAND` or a call of `train`."""

    recipe: Recipe | None = None
    overrides: Overrides | None = None
    seed: int | None = None
    out: str | Path | None = None
    resume: Resume = False
    command: str = "train"


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A run to start or to resume."""

    config: RunConfig
    folder: Path
    resume: bool


def resolve_run(request: RunRequest) -> ResolvedRun:
    """The run of a request. Raises ConfigError, or RunError for a folder without one."""
    run, command = resumed_run(request), request.command
    objective: Objective = "policy" if command == "train" else "nll"  # a quickstart samples in its own processes
    if run is not None:
        config = run_config(load_config(run), request.overrides, seed=request.seed)
        return ResolvedRun(with_sampler(config, objective), run, True)
    if request.recipe is None:
        raise ConfigError(f"{command}: pass a recipe, or resume a run: palimpsest {command} --resume RUN")
    resume, out = bool(request.resume), request.out
    config = run_config(request.recipe, request.overrides, seed=request.seed, out=out, resume=resume)
    folder = default_folder(config) if out is None else Path(out)
    if resume and config.sampler.name == "auto" and (folder / CONFIG).is_file():
        was = load_config(folder)  # it samples as it started
        keys = {"sampler": was.sampler, "cluster.placement": was.cluster.placement}
        config = parse_config(dump_config(with_keys(config, keys)), name="overrides", read_files=False)
    return ResolvedRun(with_sampler(config, objective), folder, resume)


def resumed_run(request: RunRequest) -> Path | None:
    """The run to resume with its own configuration: `resume`, or `recipe` if that is a run's folder; otherwise None."""
    recipe, resume, out = request.recipe, request.resume, request.out
    if isinstance(resume, bool):
        run = Path(recipe) if resume and isinstance(recipe, str | Path) and _may_be_run(recipe) else None
    else:
        run = Path(resume)
        if recipe is not None:
            raise ConfigError(f"resume={run}: the run has its recipe; omit the recipe, and change keys with overrides")
    if run is None:
        words = request.overrides if isinstance(request.overrides, list) else []
        if resume and words and "=" not in words[0]:
            raise ConfigError(f"--resume: omit {recipe}: palimpsest {request.command} --resume {words[0]}")
        return None
    if out is not None and Path(out).resolve() != run.resolve():
        raise ConfigError(f"out={out}: {run} resumes in its own folder; omit out")
    if (run / CONFIG).is_file() and (started_by := origin_of(run).command) != request.command:
        raise ConfigError(f"palimpsest {started_by} started {run}; resume it with {resume_command(run)}")
    return run


def _may_be_run(recipe: str | Path) -> bool:
    """True if a recipe may be a folder: not a shipped name, not a file."""
    return str(recipe) not in recipe_names() and not Path(recipe).is_file()


@contextmanager
def resumable(run: Path, progress: Progress) -> Iterator[None]:
    """Report how to resume the run after an error."""
    try:
        yield
    except BaseException:
        if (run / CONFIG).is_file():  # it may have been deleted
            progress.message(how_to_resume(run))
        raise
