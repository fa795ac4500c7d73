"""Evaluation plan: policies on sets of problems at sizes, under one reward; presets.

    policies x data x documents     rows named `overwrite, dev, 50 documents`, without the policy where there is one,
                                    without the documents where no numbers of them are asked for

Imports are light, as in app/config_resolution.py: a request is checked before anything heavy is imported.

Guaranteed: of a preset, files that the folder lacks are named with the command that makes each; settings that change a
preset are reported and recorded in summary.json.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.app.composition import fitted
from palimpsest.app.config_resolution import Agent, Model, Recipe, Remote, evaluation_config
from palimpsest.config.data import Sources
from palimpsest.config.load import Overrides, split_overrides
from palimpsest.config.presets import Preset, load_preset
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import build_policy, policy_class
from palimpsest.plugin_options import options_of
from palimpsest.types import Problem

# ---- A preset on the files of a folder -----------------------------------------------------------------------


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


# ---- What one evaluation plays -------------------------------------------------------------------------------


DRAWN = ("synthetic", "synthetic_search")


_OPTIONS = "policy.options."
MOST_SAMPLES = 10_000
"""Of each problem: so many keys are held in memory, times the problems."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that an evaluation plays."""

    config: RunConfig
    """With the first of the policies, and the first number of documents."""
    policies: tuple[PolicyConfig, ...]
    chunks: Sequence[int] | None = None
    documents: tuple[int, ...] = ()
    """Several numbers of documents per context; empty: as the configuration says."""
    problems: Sequence[Problem] | None = None
    """In place of the configuration's data."""
    samples: int = 1
    """Of each problem."""
    baselines: bool = True
    """Whether the question alone, the whole document and retrieval are played, too."""
    chosen: Chosen | None = None
    """The preset it follows."""
    soft: frozenset[str] = frozenset()
    """Options of policies that give way where the window is too small for them."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        names = [policy.name for policy in self.policies]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"policy={','.join(names)}: {twice[0]} is named twice; name each policy once")
        temperature = self.config.eval_sampling.temperature
        if type(self.samples) is not int or self.samples < 1:
            raise ConfigError(f"samples={self.samples!r}: expected a whole number from 1")
        if self.samples > MOST_SAMPLES:
            raise ConfigError(f"samples={self.samples}: expected at most {MOST_SAMPLES:,} of a problem")
        if self.samples > 1 and temperature == 0:
            raise ConfigError(
                f"samples={self.samples}: at temperature 0 every sample of a problem is the same; set "
                "eval_sampling.temperature, e.g. --set eval_sampling.temperature=0.7"
            )


@dataclass(frozen=True, slots=True)
class Agents:
    """Who is asked for: policies that share a model, a recipe and overrides."""

    model: Model
    policies: tuple[str | None, ...]
    """None: the recipe's or the run's."""
    recipe: Recipe | None = None
    overrides: Overrides = ()
    seed: int = 0
    chosen: Chosen | None = None
    """A preset, whose options and settings stand beneath the overrides."""
    remote: Remote | None = None
    """Where `model` is asked; None: it is opened here."""

    @classmethod
    def of(
        cls,
        model: Model,
        policy: str | Iterable[str] | None,
        recipe: Recipe | None,
        overrides: Overrides,
        seed: int,
        chosen: Chosen | None = None,
        remote: Remote | None = None,
    ) -> Agents:
        """Those of `a,b`, of a list, or of the preset. Raises ConfigError."""
        if chosen is not None:
            check_needs(chosen, overrides)
        names = policy_names(policy if policy is not None or chosen is None else chosen.preset.policy)
        return cls(model, names, recipe, overrides, seed, chosen, remote)

    def each(self) -> list[Agent]:
        """An agent a policy. Of several, each takes the options that it has."""
        given = list(split_overrides(self.overrides))
        if len(self.policies) == 1 and self.chosen is None:
            return [Agent(self.model, self.policies[0], self.recipe, self.overrides, self.seed, self.remote)]
        check_taken(self.overrides, [name for name in self.policies if name is not None])
        agents = []
        for name in self.policies:
            own = {key: value for key, value, _ in given if name is None or takes(name, key)}
            texts = [f"{key}={json.dumps(value)}" for key, value in {**self._beneath(name), **own}.items()]
            agents.append(Agent(self.model, name, self.recipe, texts, self.seed, self.remote))
        return agents

    def _beneath(self, name: str | None) -> dict[str, Any]:
        """What the preset says for a policy; a run that trained it has budgets of its own."""
        if self.chosen is None:
            return {}
        preset, known = self.chosen.preset, Agent(self.model, name, self.recipe).known()
        if known is not None and known.policy.name == name:
            return dict(preset.settings)
        return defaults_for(preset, name)

    @property
    def names(self) -> tuple[str, ...]:
        """The policies that play, the recipe's or the run's too."""
        known = Agent(self.model, None, self.recipe).known()
        own = (known or RunConfig()).policy.name
        return tuple(own if name is None else name for name in self.policies)

    def told(self, config: RunConfig) -> list[str]:
        """What is to be known of the preset, and `Agent.told` of each, every line once."""
        told = [line for agent in self.each() for line in agent.told(_as(config, agent))]
        return list(dict.fromkeys([*(self.chosen.told() if self.chosen else []), *told]))

    def sweep(
        self,
        *,
        data: Sources | Path | None = None,
        documents: Sequence[int] | None = None,
        asked: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Sweep:
        """What they play: `asked` are further arguments of `evaluation_config`, `more` fields of `Sweep`.

        Raises ConfigError, where policies answer in forms that one reward can't read, too.
        """
        if self.chosen is not None:
            files = tuple(map(str, self.chosen.files))
            data = files if len(files) > 1 else files[0]
            corpus = self.chosen.corpus
            asked = {"corpus": corpus, **{k: v for k, v in (asked or {}).items() if v is not None}}
        _check_data(data)
        first = documents[0] if documents else None
        configs = [evaluation_config(agent, data=data, documents=first, **(asked or {})) for agent in self.each()]
        for config in configs[1:]:
            if config.reward != configs[0].reward:
                names = ",".join(each.policy.name for each in configs)
                raise ConfigError(
                    f"policy={names}: {configs[0].policy.name} answers for "
                    f"reward.name={configs[0].reward.name}, {config.policy.name} for {config.reward.name}; set "
                    "reward.name for all, or evaluate them apart"
                )
        several = tuple(documents) if documents and len(documents) > 1 else ()
        policies = tuple(config.policy for config in configs)
        return Sweep(configs[0], policies, documents=several, chosen=self.chosen, soft=self._soft(), **more)

    def _soft(self) -> frozenset[str]:
        """Options that the preset set, and nobody else: where the window is too small for them they give way."""
        if self.chosen is None:
            return frozenset()
        given = {key for key, _, _ in split_overrides(self.overrides)}
        return frozenset(self.chosen.preset.options) - given


def takes(policy: str, key: str) -> bool:
    """Whether an override is for a policy: an option that it has, or a setting of something else.

    >>> [takes("prune", key) for key in ("chunk_size", "policy.options.tools.search.source", "reward.name")]
    [False, True, True]
    """
    option = key.removeprefix(_OPTIONS)
    return ("." in key and option == key) or option.partition(".")[0] in options_of(policy_class(policy))


def check_taken(overrides: Overrides, policies: Sequence[str]) -> None:
    """Raise ConfigError for an option that none of several policies has."""
    for key, _, _ in split_overrides(overrides):
        if policies and not any(takes(policy, key) for policy in policies):
            raise ConfigError(
                f"{_OPTIONS}{key.removeprefix(_OPTIONS)}: none of {', '.join(dict.fromkeys(policies))} has such an "
                "option"
            )


def _as(config: RunConfig, agent: Agent) -> RunConfig:
    """`config` with the agent's policy, as far as what is told depends on it."""
    if agent.policy is None:
        return config
    return config.model_copy(update={"policy": PolicyConfig(name=agent.policy)})


def _check_data(data: Sources | Path | None) -> None:
    if isinstance(data, tuple) and (drawn := [each for each in data if each in DRAWN]):
        raise ConfigError(f"data={drawn[0]}: drawn problems stand alone, not beside files: evaluate them apart")


def policy_names(policy: str | Iterable[str] | None) -> tuple[str | None, ...]:
    """Those of `a,b`, of a list, or none.

    >>> policy_names("overwrite,recall"), policy_names(None)
    (('overwrite', 'recall'), (None,))
    """
    if policy is None:
        return (None,)
    if isinstance(policy, str):
        names = tuple(name.strip() for name in policy.split(","))
    elif isinstance(policy, Iterable):
        names = tuple(policy)
    else:
        return (policy,)  # which `Agent` refuses, by name
    if not names or not all(names):
        raise ConfigError(f"policy={policy!r}: name one policy, or several as overwrite,recall")
    return names


def with_budgets(sweep: Sweep, problems: Sequence[Problem], engine: Engine) -> Sweep:
    """`sweep` with the policies' open budgets chosen for the model's window."""
    window = engine.sampler.max_context
    given = [
        _without(policy, sweep.soft) if sweep.soft and _too_large(policy, engine) else policy
        for policy in sweep.policies
    ]
    policies = tuple(fitted(each, problems=problems, codec=engine.codec, max_context=window) for each in given)
    return replace(sweep, config=sweep.config.model_copy(update={"policy": policies[0]}), policies=policies)


def _too_large(policy: PolicyConfig, engine: Engine) -> bool:
    return build_policy(policy).required_context(engine.codec) > engine.sampler.max_context


def _without(policy: PolicyConfig, options: Container[str]) -> PolicyConfig:
    return PolicyConfig(name=policy.name, options={k: v for k, v in policy.options.items() if k not in options})
