"""What is asked for, resolved to one `RunConfig`: the same way from Python and from the command line.

Light on purpose: a mistake in a recipe or an override is named before anything heavy is imported.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.data import GENERATED, Sources, listed
from palimpsest.config.engine import ClusterConfig, EmbeddedEngineConfig, OwnEngineConfig, SamplerConfig
from palimpsest.config.load import Overrides, load_recipe, parse_config, quickstart_names, split_overrides
from palimpsest.config.prompt_file import OPTION as PROMPTS
from palimpsest.config.prompt_file import with_texts
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.open import check_models
from palimpsest.errors import ConfigError, RunError, nearest
from palimpsest.memory.registry import evaluated, policy_class
from palimpsest.notes import Note
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, newest_intact
from palimpsest.runs.resume_rules import how_to_resume
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.tools.tool import DOCUMENT

Recipe = str | Path | RunConfig
"""A shipped recipe's name, a YAML file, or a configuration."""

EMBEDDED = "embedded"

Model = str | os.PathLike[str]
"""`embedded`, a Hugging Face folder, a hub id, or a run or its folder, whose newest checkpoint is meant."""


def run_config(
    recipe: Recipe,
    overrides: Overrides | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> RunConfig:
    """The configuration of a run; `seed` is the run's and the data's. Raises ConfigError.

    With `resume`, texts that the run in `out` took from a file of prompts stay as they were when it began.
    """
    changes = overrides or ()
    if seed is not None:
        changes = _more(changes, {"seed": seed})
    if isinstance(recipe, RunConfig):
        config = parse_config(recipe.model_dump_json(), name=recipe.recipe, overrides=changes, read_files=False)
    else:
        config = load_recipe(recipe, changes, read_files=False)
    config = _from_checkpoint(config)
    return with_texts(config, _run_in(Path(out or default_folder(config))) if resume else None)


def _from_checkpoint(config: RunConfig) -> RunConfig:
    """`config` with the newest intact checkpoint in place of a run that it names as its model."""
    if not (Path(config.model.path) / CONFIG).is_file():
        return config
    path = model_folder(config.model.path, warnings.warn)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def _run_in(folder: Path) -> RunConfig | None:
    """The configuration of the run in a folder, or of the run that a checkpoint's folder belongs to."""
    folder = folder.resolve()
    for parent in (folder, *([folder.parent.parent] if folder.parent.name == CHECKPOINTS else [])):
        if (parent / CONFIG).is_file():
            return load_config(parent)
    return None


def _more(overrides: Overrides, changes: Mapping[str, Any]) -> Overrides:
    """`overrides`, and after them `changes`."""
    if isinstance(overrides, Mapping):
        return {**overrides, **changes}
    return [*overrides, *(f"{key}={value}" for key, value in changes.items())]


def default_folder(config: RunConfig) -> Path:
    """Where a run goes that is given no folder: its name says recipe and seed."""
    return Path("runs") / f"{config.recipe}-seed{config.seed}"


def check_quickstart(method: str) -> None:
    """Raise ConfigError for a method that has no quickstart."""
    names = quickstart_names()
    if method not in names:
        raise ConfigError(f"quickstart {method}: no such method{nearest(method, names)}; known: {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class Remote:
    """An OpenAI-compatible endpoint where the model is asked in place of being opened here."""

    url: str
    """What stands before /chat/completions, e.g. http://127.0.0.1:8000/v1."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    tokenizer: str | os.PathLike[str] | None = None
    """Folder or hub id of the model's tokenizer; None: what the model's name names, if it names one."""

    @classmethod
    def named(
        cls, base_url: str | None, api_key_env: str | None, tokenizer: str | os.PathLike[str] | None
    ) -> Remote | None:
        """None without an address. Raises ConfigError for what only an endpoint has."""
        if base_url is not None:
            return cls(base_url, api_key_env, tokenizer)
        for name, value in (("api_key_env", api_key_env), ("tokenizer", tokenizer)):
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} {value}: belongs to an endpoint; give --base-url too, or leave it out")
        return None

    def section(self) -> dict[str, Any]:
        """As overrides of a configuration."""
        optional = {"api_key_env": self.api_key_env, "tokenizer": self.tokenizer and os.fspath(self.tokenizer)}
        keys = {"name": "endpoint", "url": self.url} | {name: value for name, value in optional.items() if value}
        return {f"engine.{name}": value for name, value in keys.items()}


@dataclass(frozen=True, slots=True)
class Agent:
    """Who plays: a policy on a model, with the budgets, rewards and sampling of a recipe."""

    model: Model = EMBEDDED
    policy: str | None = None
    """None: the recipe's, `overwrite` without a recipe."""
    recipe: Recipe | None = None
    """None: the configuration of the run that `model` belongs to, if it belongs to one."""
    overrides: Overrides = ()
    """Options of the policy (`chunk_size=48`) and dotted keys of the recipe."""
    seed: int = 0
    remote: Remote | None = None
    """Where `model` is asked, by the name it has there; None: it is opened here."""

    def __post_init__(self) -> None:
        for name, value, wanted in (
            ("model", self.model, "a name, a folder or a Run"),
            ("policy", self.policy or "", "a name, or my_module:MyPolicy"),
        ):
            if not isinstance(value, str | os.PathLike):
                raise ConfigError(f"{name} is of type {type(value).__name__}: give {wanted}")

    def config(self, data: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration it plays under, with `data` in place of keys of the data section and `more` overrides.

        Whatever a run was trained on, its agent is played by the embedded engine, unless overrides name another or its
        own is a user's. Options of the policy may still be open. Raises ConfigError.
        """
        origin = self.base_config()
        base = origin or RunConfig()
        policy = self.policy or base.policy.name
        run = _run_in(Path(self.model)) if base.evaluation.files else None
        trained = run.policy if run is not None and run.policy.name == policy else base.policy  # with its budgets
        options = self._wording(policy) | (evaluated(trained).options if trained.name == policy else {})
        changes: dict[str, Any] = {}
        for key, value, _ in split_overrides(self.overrides):
            (changes if "." in key else options)[key] = value
        named = "reward.name" in changes or self.recipe is not None or (origin and policy == origin.policy.name)
        reward = {} if named else _policy_reward(policy)
        changed = on_embedded(base).model_copy(
            update={
                "policy": PolicyConfig(name=policy, options=options),
                "model": base.model.model_copy(update={"path": self.model_name(_unsaid)}),
                "data": base.data.model_copy(update=dict(data)),
                "seed": self.seed,
                "cold_start": None,
            }
        )
        remote = {} if self.remote is None else self.remote.section()
        unsaid = origin is None or bool(origin.evaluation.files)
        dtype = {"model.dtype": "auto"} if unsaid and self.remote is None else {}
        overrides = {**dtype, **reward, **remote, **changes, **(more or {})}
        config = parse_config(changed.model_dump_json(), name="overrides", overrides=overrides)
        check_models(config)
        return config

    def model_name(self, warn: Callable[[str], None]) -> str:
        """What `model` stands for: a folder, a hub id, or a name of the endpoint; `model_folder` has what it raises."""
        return model_folder(self.model, warn) if self.remote is None else os.fspath(self.model)

    def _wording(self, policy: str) -> dict[str, Any]:
        """The texts under which the model was trained, where it's of a run of the same policy with texts of its own."""
        run = _run_in(Path(self.model))
        texts = run.policy.options.get(PROMPTS) if run and run.policy.name == policy else None
        return {PROMPTS: texts} if isinstance(texts, dict) else {}

    def notes(self, config: RunConfig | None = None) -> list[str]:
        """What differs from the recipe or from the run that the model comes from, and which of its
        checkpoints are damaged; where the data that `config` plays were trained on, that too."""
        run, notes = _run_in(Path(self.model)), list[str]()
        self.model_name(notes.append)
        if self.recipe is not None and os.fspath(self.model) == EMBEDDED:
            recipes = (self.base_config() or RunConfig()).model.path
            if recipes != EMBEDDED:
                notes.append(Note("model_of_recipe", recipe=recipes, model=EMBEDDED))
        if run is None:
            return notes
        if config is not None and _trained_on(run, config):
            notes.append(Note("trained_on_these_problems"))
        if config is None:
            played = self.policy or (self.base_config() or run).policy.name
        else:
            played = config.policy.name
        trained = run.policy.name
        model = os.fspath(self.model)
        other = [] if played == trained else [Note("other_policy", model=model, trained=trained, policy=played)]
        return notes + other

    def base_config(self) -> RunConfig | None:
        """What the recipe says, or the run that the model comes from: who was trained to recall is not played as one
        that overwrites. None if there is neither."""
        if self.recipe is None:
            return _run_in(Path(self.model))
        dotted = {key: value for key, value, _ in split_overrides(self.overrides) if "." in key}
        return run_config(self.recipe, dotted)


def on_embedded(config: RunConfig) -> RunConfig:
    """`config` for the embedded engine, with what it says of that; a user's own engine stays."""
    engine = config.engine
    if not isinstance(engine, OwnEngineConfig):
        engine = EmbeddedEngineConfig.model_validate(engine.model_dump(exclude={"name"}))
    return config.model_copy(update={"engine": engine, "cluster": ClusterConfig(), "sampler": SamplerConfig()})


def _trained_on(run: RunConfig, played: RunConfig) -> bool:
    """Whether `played` has the problems of the file that `run` trained on; drawn ones are others in evaluation."""
    trained, data = run.data.train_files, played.data.val_files or played.data.train_files
    if trained in GENERATED:
        return False
    paths, played_paths = ({Path(path).resolve() for path in listed(sources)} for sources in (trained, data))
    return bool(paths & played_paths)


def _policy_reward(policy: str) -> dict[str, str]:
    """The reward that a policy names for itself."""
    reward = policy_class(policy).reward
    return {} if reward is None else {"reward.name": reward}


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
    """The configuration of an evaluation of `agent` on `data`: a file, or several, `synthetic` or `synthetic_search`.

    `columns` are those of the file under our names (`data.columns`).

    Without `data` it is the held-out data of the recipe, or of the run that the model comes from; without either,
    `synthetic`.
    """
    section: dict[str, Any] = {"limit": limit, "curriculum": None}
    section |= {} if columns is None else {"columns": dict(columns)}
    if data is None and agent.base_config() is not None:
        optional = {"documents": documents, "corpus": None if corpus is None else str(corpus)}
        section |= {name: value for name, value in optional.items() if value is not None}
    else:
        source = data if isinstance(data, tuple) else str(data or "synthetic")
        section |= {"train_files": source, "val_files": None, "documents": documents}
        section["corpus"] = None if corpus is None else str(corpus)
        if source == "synthetic":
            section["search"] = None
        if source in GENERATED:
            section |= {"format": None, "format_options": {}, "columns": {}, "shuffle": True}  # what only files have
    search = {} if objectives is None else {"data.search.objectives": list(objectives)}
    config = agent.config(section, search)
    if not _searches_document(config.policy):
        return config
    if objectives is not None:
        raise ConfigError(
            "objectives: questions are combined where documents are dropped, and "
            "policy.options.tools.search.source=document searches them; leave one of the two out"
        )
    return config.model_copy(update={"data": config.data.model_copy(update={"search": None})})


def _searches_document(policy: PolicyConfig) -> bool:
    """Whether what the agent searches is the document of its problem."""
    tools = policy.options.get("tools")
    search = tools.get("search") if isinstance(tools, dict) else None
    return isinstance(search, dict) and search.get("source") == DOCUMENT


def model_folder(path: Model, warn: Callable[[str], None]) -> str:
    """`path`, or the newest checkpoint if it is the folder of a run: of damaged ones the one before, with a warning.

    Raises CheckpointError if all of its checkpoints are damaged, RunError if it has none.
    """
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        return str(folder) if isinstance(path, os.PathLike) else path
    intact = newest_intact(folder / CHECKPOINTS, warn)
    if intact is None:
        raise RunError(f"{folder}: holds no checkpoint to start from; {how_to_resume(folder)}")
    return str(intact.path)


def _unsaid(_: str) -> None:
    """`Agent.told` says it."""


def newest_checkpoint(run: Path) -> Path | None:
    """The last one saved in a run's folder; None before the first."""
    saved = checkpoint_paths(run / CHECKPOINTS)
    return saved[-1] if saved else None
