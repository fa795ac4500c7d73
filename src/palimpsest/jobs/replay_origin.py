"""How a recorded episode came about, read from the files around it: configuration, policy, sampling, draws, weights.

    RUN/trajectories/step-000400.jsonl.zst     the run's config.yaml; draws keyed by (seed, train, step, round)
    EVAL/episodes.jsonl.zst                    evaluation.json, and the run that the model comes from; (seed, eval, set)

Weights are those of the checkpoint with the number of optimiser steps that the recorded turns name, else of the nearest
one; of an evaluation those whose fingerprint is in its identity. Which they are, and whether they are the same, is
said.
Not covered: endpoints, whose draws have no key; baselines, whose options no file holds; an engine of one's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.load import parse_config
from palimpsest.config.models import named
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.source import build_source
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.evaluation.episodes import EPISODES
from palimpsest.evaluation.samples import IDENTITY, SUMMARY, read_identity
from palimpsest.jobs.composing import weights_fingerprint
from palimpsest.jobs.regrading import with_judge_address
from palimpsest.jobs.replay_episode import RecordedEpisode, first_of_an_agent, is_baseline
from palimpsest.jobs.resuming import COLD_START
from palimpsest.jobs.settings import on_embedded
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.variant import build_variant, is_variant
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.seeding import Key
from palimpsest.types import Problem, Trajectory

_LOOKED_AT = (64, 2048)
"""Problems of an evaluation's data among which one is looked for: first few, then many."""
_TRAINED = re.compile(r"(?P<step>\d+)/(?P<round>\d+)/")


@dataclass(frozen=True, slots=True)
class Weights:
    """Of a model in a folder."""

    path: str
    same: bool
    """Whether they are those that sampled the episode, as far as the files tell."""
    told: str


@dataclass(frozen=True, slots=True)
class Origin:
    """All that playing it again needs, but the model itself and the document."""

    config: RunConfig
    """With the weights' folder as its model."""
    policy: MemoryPolicy
    key: tuple[Key, ...]
    """The draws of turn t are keyed by (*key, problem, rollout, t)."""
    training: bool
    """Whether it was played to be trained on, with the training's sampling and the whole of its reward."""
    weights: Weights
    drawn: tuple[int, int] | None = None
    """Of training: step and round, for its data source."""

    def find_problem(self, problem: Problem) -> Problem | None:
        """The same problem with its document, from the data; None if it isn't there, or the data no longer is."""
        try:
            return next((each for each in self._problems(problem) if _same(each, problem)), None)
        except (PalimpsestError, OSError):
            return None

    def _problems(self, problem: Problem) -> Iterator[Problem]:
        data = self.config.data
        size = problem.metadata.get("chunks", problem.metadata.get("objectives"))
        size = size if type(size) is int else None
        if self.drawn is None:
            source = build_source(data, split="eval")
            for count in _LOOKED_AT:
                yield from source.problems(step=0, count=count, size=size)
            return
        step, round_number = self.drawn
        source, most = build_source(data, split="train"), self.config.train.prompts_per_step
        for count in (most, *range(1, most if round_number else 1)):  # a refill asks for those that are missing
            yield from source.problems(step=step - 1, count=count, round=round_number, size=size)


def _same(one: Problem, other: Problem) -> bool:
    return (one.id, one.question, one.answers) == (other.id, other.question, other.answers)


def origin_of(episode: RecordedEpisode, model: str | None) -> Origin:
    """How `episode` was played; `model` puts other weights in place of those.

    Raises ConfigError, DataError or RunError.
    """
    folder = episode.place.file.absolute().parent
    if (folder.parent / CONFIG).is_file():
        return _of_training(episode, folder.parent, model)
    if (folder / IDENTITY).is_file():
        return _of_evaluation(episode, folder, model)
    raise RunError(
        f"{episode.place.file}: lies in no run ({CONFIG}) and no evaluation ({IDENTITY}), so how it was played isn't "
        "known; give the file where it was written"
    )


def _of_training(episode: RecordedEpisode, run: Path, model: str | None) -> Origin:
    config, trajectory = load_config(run), episode.trajectory
    match = _TRAINED.match(trajectory.group_id)
    if match is None:
        raise DataError(
            f"{episode.place.file}: group {trajectory.group_id!r} is no group of a training; replay knows none"
        )
    step, round_number = int(match["step"]), int(match["round"])
    rest = trajectory.group_id[match.end() :].removeprefix(episode.problem.id)
    occurrence: tuple[Key, ...] = ("occurrence", int(rest[1:])) if rest.startswith("#") else ()
    variant = build_variant(config) if is_variant(trajectory) else None
    weights = _given(model) if model is not None else _trained_weights(run, config, trajectory, step)
    return Origin(
        config=_with_model(config, weights.path),
        policy=variant.policy if variant else build_policy(config.policy),
        key=(config.seed, "train", step, round_number, *occurrence),
        training=True,
        weights=weights,
        drawn=(step, round_number),
    )


def _of_evaluation(episode: RecordedEpisode, folder: Path, model: str | None) -> Origin:
    identity = read_identity(folder)
    name = episode.trajectory.group_id.removesuffix(f"/{episode.problem.id}")
    if "endpoint" in identity and model is None:
        raise ConfigError(
            f"{folder}: was played at an endpoint, whose draws nothing repeats; give --model of weights here"
        )
    policy = _policy(identity, name, folder)
    weights = _given(model) if model is not None else _evaluated_weights(folder, identity)
    run = _run_around(Path(weights.path))
    config = _identified(RunConfig() if run is None else load_config(run), identity, policy, folder)
    return Origin(
        config=_with_model(config, weights.path),
        policy=build_policy(policy),
        key=(config.seed, "quickstart" if "trained" in identity else "eval", name),
        training=False,
        weights=weights,
    )


def _policy(identity: Mapping[str, Any], name: str, folder: Path) -> PolicyConfig:
    """Who played a set: a sweep's and a quickstart's sets say it in their names."""
    policies = {title: PolicyConfig.model_validate(each) for title, each in identity.get("policies", {}).items()}
    if is_baseline(name):
        first = first_of_an_agent(folder / EPISODES)
        where = "" if first is None else f", the first is --group {first}"
        raise ConfigError(
            f"{folder}: {name!r} is a baseline's, which writes no memory; replay an episode of the agent{where}"
        )
    told = [title for title in policies if name.startswith((f"{title}, ", f"{title}@"))]
    if len(policies) != 1 and len(told) != 1:
        raise RunError(
            f"{folder / IDENTITY}: which of {', '.join(policies) or 'no policies'} played {name!r} isn't told"
        )
    return policies[told[0] if told else next(iter(policies))]


def _identified(config: RunConfig, identity: Mapping[str, Any], policy: PolicyConfig, folder: Path) -> RunConfig:
    """`config` with what the identity of an evaluation says."""
    sections = {
        "policy": policy.model_dump(mode="json"),
        "data": identity.get("data", {}),
        "reward": with_judge_address(identity.get("reward", {})),
        "eval_sampling": identity.get("sampling", {}),
        "seed": identity.get("seed", 0),
    }
    values = config.model_dump(mode="json") | sections
    return parse_config(json.dumps(values), name=str(folder / IDENTITY), read_files=False)


def _with_model(config: RunConfig, path: str) -> RunConfig:
    return on_embedded(config.model_copy(update={"model": config.model.model_copy(update={"path": path})}))


def _given(model: str) -> Weights:
    return Weights(model, False, f"the weights of {model}, as asked for")


def _trained_weights(run: Path, config: RunConfig, trajectory: Trajectory, step: int) -> Weights:
    """Those with as many optimiser steps as the recorded turns say, or of the nearest step."""
    version = trajectory.turns[0].completion.policy_version if trajectory.turns else None
    saved = checkpoint_paths(run / CHECKPOINTS)
    models = [_first_model(run, config), *map(str, saved)]
    versions = [0, *map(_version, saved)]
    told = ["the weights that training began with", *(f"the checkpoint {path.name}" for path in saved)]
    if version is not None and version in versions:
        at = versions.index(version)
        return Weights(models[at], True, f"{told[at]}, which sampled it")
    steps = [0, *map(checkpoint_step, saved)]
    at = min(range(len(steps)), key=lambda each: (abs(steps[each] - (step - 1)), -steps[each]))
    lost = f"those after step {step - 1}, which sampled it, weren't kept"
    return Weights(models[at], False, f"{told[at]}, the nearest: {lost}")


def _first_model(run: Path, config: RunConfig) -> str:
    """What training with rewards began with: the end of the cold start, where there was one."""
    begun = checkpoint_paths(run / COLD_START / CHECKPOINTS)
    return str(begun[-1]) if config.cold_start is not None and begun else named(config.model.path)


def _version(checkpoint: Path) -> int | None:
    """Optimiser steps that its weights have seen, where its learner says so."""
    try:
        version = json.loads((checkpoint / "learner" / "learner.json").read_text("utf-8"))["version"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return version if type(version) is int else None


def _evaluated_weights(folder: Path, identity: Mapping[str, Any]) -> Weights:
    """The model with the fingerprint of the identity, among those that the files around name."""
    candidates = list(dict.fromkeys(_models_around(folder)))
    for path in candidates:
        if weights_fingerprint(path) == identity.get("weights"):
            return Weights(path, True, f"the weights of {path}, which sampled it")
    if not candidates:
        raise RunError(f"{folder}: which model played isn't told by any file; give --model")
    return Weights(candidates[0], False, f"the weights of {candidates[0]}, which are others than those that sampled it")


def _models_around(folder: Path) -> Iterator[str]:
    try:
        model = json.loads((folder / SUMMARY).read_text("utf-8"))["model"]
    except (OSError, ValueError, LookupError, TypeError):
        model = None
    if isinstance(model, str):
        yield named(model)
    for parent in folder.parents:
        if (parent / CONFIG).is_file():
            yield from map(str, reversed(checkpoint_paths(parent / CHECKPOINTS)))
            yield _first_model(parent, load_config(parent))
            return


def _run_around(model: Path) -> Path | None:
    """The run that a checkpoint belongs to."""
    run = model.absolute().parent.parent
    return run if model.parent.name == CHECKPOINTS and (run / CONFIG).is_file() else None
