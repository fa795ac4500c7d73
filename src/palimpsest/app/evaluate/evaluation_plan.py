"""Evaluation request and plan: policies on sets of problems at sizes, under one reward.

Light imports, as in app/config_resolution.py: a request is checked before anything heavy is imported.

Guaranteed: for missing files of an evaluation recipe, a note names the command that makes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from palimpsest.agents.open_agent import fitted
from palimpsest.app.config_resolution import Agent, evaluation_config
from palimpsest.config.data import GENERATED, Sources, listed
from palimpsest.config.load import Overrides, split_overrides
from palimpsest.config.schema import FileSet, PolicyConfig, RunConfig
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import policy_class
from palimpsest.notes import Note
from palimpsest.plugin_options import options_of
from palimpsest.types import Problem

MOST_SAMPLES = 10_000
"""Limit of samples per problem: memory contains a key for each sample of each problem."""
OPTIONS = "policy.options."
_NAMED = 4  # commands for missing files, at most


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Episodes and settings of an evaluation."""

    config: RunConfig
    """Contains the first policy and the first number of documents."""
    policies: tuple[PolicyConfig, ...]
    chunks: Sequence[int] | None = None
    documents: tuple[int, ...] = ()
    """Several numbers of documents per context; empty: the configuration's."""
    problems: Sequence[Problem] | None = None
    """Instead of the configuration's data."""
    samples: int = 1
    """Per problem."""
    baselines: bool = True
    """Run the baselines too."""
    folder: Path | None = None
    """Folder of an evaluation recipe's files."""
    notes: tuple[str, ...] = ()
    """Messages to show before the start."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        names = [policy.name for policy in self.policies]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"policy={','.join(names)}: {twice[0]} appears twice; name each policy once")
        if type(self.samples) is not int or not 1 <= self.samples <= MOST_SAMPLES:
            raise ConfigError(f"samples={self.samples!r}: expected a whole number from 1 to {MOST_SAMPLES:,}")
        if self.samples > 1 and self.config.eval_sampling.temperature == 0:
            raise ConfigError(
                f"samples={self.samples}: at temperature 0 all samples of a problem are equal; set "
                "eval_sampling.temperature, e.g. eval_sampling.temperature=0.7"
            )

    def fitted(self, problems: Sequence[Problem], engine: Engine) -> EvalPlan:
        """The plan with the policies' open budgets chosen for the model's window."""
        policies = tuple(
            fitted(policy, problems=problems, codec=engine.codec, max_context=engine.sampler.max_context)
            for policy in self.policies
        )
        return replace(self, config=self.config.model_copy(update={"policy": policies[0]}), policies=policies)


@dataclass(frozen=True, kw_only=True)
class EvalRequest(Agent):
    """Arguments of an evaluation, from Python and from the command line: policies that share a model, and problems."""

    policy: Any = None
    """One, or several as `a,b` or a list; None: the recipe's or the run's."""
    data: Sources | Path | None = None
    """Files, `synthetic`, `synthetic_search`, or the folder of an evaluation recipe; None: the recipe's or run's."""
    problems: Sequence[Problem] | None = None
    """Instead of `data`."""
    documents: int | Sequence[int] | None = None
    chunks: int | Sequence[int] | None = None
    objectives: int | Sequence[int] | None = None
    corpus: str | Path | None = None
    limit: int | None = None
    columns: Mapping[str, str] | None = None
    samples: int = 1
    baselines: bool = True

    def __post_init__(self) -> None:
        """Each of `agents` is checked."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies, with the recipe's or the run's filled in."""
        origin = self.base or RunConfig()
        return tuple(origin.policy.name if name is None else name for name in policy_names(self.policy))

    def agents(self) -> list[Agent]:
        """One agent per policy. Several agents each take the options that their policy has."""
        shared, names = {field.name: getattr(self, field.name) for field in fields(Agent)}, policy_names(self.policy)
        if len(names) == 1:
            return [Agent(**shared | {"policy": names[0]})]
        check_taken(self.overrides, [name for name in names if name is not None])
        overrides, agents = list(split_overrides(self.overrides)), []
        for name in names:
            taken = {key: value for key, value, _ in overrides if name is None or takes(name, key)}
            agents.append(Agent(**shared | {"policy": name, "overrides": taken}))
        return agents

    def plan(self) -> EvalPlan:
        """The plan. Raises ConfigError, also if one reward can't read the answers of all policies."""
        agents, data, corpus, notes = self.agents(), self.data, self.corpus, list[str]()
        recipe = None if self.recipe is None else agents[0].base
        sets = () if recipe is None or self.problems is not None else recipe.evaluation.files
        if recipe is not None and sets:
            called = recipe.recipe if isinstance(self.recipe, RunConfig) else self.recipe
            data, corpus, notes = files_of(sets, data, f"recipe {called}")
        drawn = [source for source in listed(data) if source in GENERATED] if isinstance(data, tuple) else []
        if drawn:
            raise ConfigError(
                f"data={drawn[0]}: generated problems can't be mixed with files; evaluate them separately"
            )
        configs = [self._config(agent, data, corpus) for agent in agents]
        _check_alike(configs)
        notes += configs[0].reward_beside_environment()
        for agent in agents:
            played = agent.policy or configs[0].policy.name
            notes += agent.notes(configs[0].model_copy(update={"policy": PolicyConfig(name=played)}))
        return EvalPlan(
            configs[0],
            tuple(config.policy for config in configs),
            chunks=_numbers("chunks", self.chunks),
            documents=tuple(self._documents) if len(self._documents) > 1 else (),
            problems=self.problems,
            samples=self.samples,
            baselines=self.baselines,
            folder=Path(str(self.data)) if sets else None,
            notes=tuple(dict.fromkeys(notes)),
        )

    @property
    def _documents(self) -> Sequence[int]:
        return _numbers("documents", self.documents) or ()

    def _config(self, agent: Agent, data: Sources | Path | None, corpus: str | Path | None) -> RunConfig:
        return evaluation_config(
            agent,
            data=data,
            documents=next(iter(self._documents), None),
            objectives=_numbers("objectives", self.objectives),
            corpus=corpus,
            limit=self.limit,
            columns=self.columns,
        )


def _check_alike(configs: Sequence[RunConfig]) -> None:
    if other := next((config for config in configs if config.reward != configs[0].reward), None):
        raise ConfigError(
            f"policy={','.join(config.policy.name for config in configs)}: {configs[0].policy.name} answers for "
            f"reward.name={configs[0].reward.name}, {other.policy.name} for {other.reward.name}; set reward.name "
            "for all, or evaluate them separately"
        )


def files_of(
    sets: Sequence[FileSet], data: Sources | Path | None, called: str
) -> tuple[Sources, Path | None, list[str]]:
    """(files of an evaluation recipe in `data`, their corpus, notes on missing files). Raises ConfigError."""
    if data is None or isinstance(data, tuple) or Path(data).is_file():
        raise ConfigError(f"{called}: pass the folder of its files as --data DIR, not {data or 'nothing'}")
    folder, files, corpora = Path(data), list[str](), list[Path]()
    commands: dict[str, list[str]] = {}
    for file_set in sets:
        for choice in file_set.choices(folder):
            there = [str(folder / name) for name in choice.names if (folder / name).is_file()][:1]
            files += there
            if not there:
                commands.setdefault(choice.make, []).append(choice.names[0])
            elif file_set.corpus and (folder / file_set.corpus).is_file():
                corpora.append(folder / file_set.corpus)
    notes: list[str] = [
        Note("files_missing", folder=str(folder), names=", ".join(names), make=make) for make, names in commands.items()
    ]
    if not files:
        raise ConfigError(f"{called}: all of its files are missing: {notes[0]}")
    further = [name for names in list(commands.values())[_NAMED:] for name in names]
    notes = notes[:_NAMED] + ([Note("more_files_missing", names=", ".join(further))] if further else [])
    return tuple(files) if len(files) > 1 else files[0], corpora[0] if corpora else None, notes


def takes(policy: str, key: str) -> bool:
    """True if an override applies to a policy: an option that it has, or any other key.

    >>> [takes("prune", key) for key in ("chunk_size", "policy.options.tools.search.source", "reward.name")]
    [False, True, True]
    """
    option = key.removeprefix(OPTIONS)
    return ("." in key and option == key) or option.partition(".")[0] in options_of(policy_class(policy))


def check_taken(overrides: Overrides, policies: Sequence[str]) -> None:
    """Raise ConfigError for an option that none of the policies has."""
    for key, _, _ in split_overrides(overrides):
        if policies and not any(takes(policy, key) for policy in policies):
            names = ", ".join(dict.fromkeys(policies))
            raise ConfigError(f"{OPTIONS}{key.removeprefix(OPTIONS)}: none of {names} has such an option")


def _numbers(name: str, value: int | Sequence[int] | None) -> Sequence[int] | None:
    """Sizes as a sequence; None: not set. Raises ConfigError."""
    sizes = (value,) if isinstance(value, int) else value
    valid = isinstance(sizes, Sequence) and not isinstance(sizes, str) and all(type(size) is int for size in sizes)
    if sizes is not None and not (valid and sizes):
        raise ConfigError(f"{name}={value!r}: expected a whole number or a list of them, such as [4, 64]")
    return sizes


def policy_names(policy: Any) -> tuple[str | None, ...]:
    """Policy names from `a,b` or a list of such; (None,) for None.

    >>> policy_names("overwrite,recall"), policy_names(["overwrite", "recall, prune"]), policy_names(None)
    (('overwrite', 'recall'), ('overwrite', 'recall', 'prune'), (None,))
    """
    if policy is None:
        return (None,)
    if not isinstance(policy, Iterable):
        return (policy,)  # `Agent` rejects it
    words = [policy] if isinstance(policy, str) else list(policy)
    names = tuple(name.strip() for word in words for name in word.split(","))
    if not names or not all(names):
        raise ConfigError(f"policy={policy!r}: name one policy, or several as overwrite,recall")
    return names
