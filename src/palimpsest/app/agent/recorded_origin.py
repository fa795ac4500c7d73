"""Location and origin of a recorded episode: file, configuration, policy, random keys, weights.

Forms that name an episode. Group, rollout and turn are positions from 0, as in the viewer's links:

    runs/q/trajectories/step-000400.jsonl.zst#3/2      a file, group and rollout
    runs/q#/r/q/s/400/e/3/2/t/5                        a run, and the viewer's link
    evals/a#/e/3/2/t/5                                 an evaluation, or a file, and the link's short form
    evals/a                                            the first episode of its agent that is recorded

Files that its origin is read from, and the keys of its draws:

    RUN/trajectories/step-000400.jsonl.zst     the run's config.yaml; draws keyed by (seed, train, step, round)
    EVAL/episodes.jsonl.zst                    evaluation.json, and the run that the model comes from; (seed, eval, set)

Weights of a training episode are those of the checkpoint with the number of optimiser steps that the recorded turns
name, else of the nearest one. Weights of an evaluation are those whose fingerprint is in its identity.
`RecordedWeights` reports which were found and whether they are the same.

Not covered: endpoints, whose draws have no key; baselines, whose options no file holds; custom engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.app.composition import weights_fingerprint
from palimpsest.app.config_resolution import on_embedded
from palimpsest.app.evaluate.rescoring import with_judge_address
from palimpsest.app.resume import COLD_START
from palimpsest.config.load import parse_config
from palimpsest.config.model import named
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.problem_source import build_source
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.evaluation.episode_files import EPISODES, read_episodes
from palimpsest.evaluation.sample_log import IDENTITY, SAMPLES, SUMMARY, read_identity
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.rollout.group import build_variant, is_variant
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step, step_name
from palimpsest.runs.run_folder import CONFIG, TRAJECTORIES, load_config
from palimpsest.seeding import Key
from palimpsest.types import Grade, Group, Problem, Trajectory
from palimpsest.viewer.records.episode_rows import checked

# ---- Location of an episode ----------------------------------------------------------------------------------


_LINK = re.compile(
    r"(?:/r/[^/]+)?(?:/s/(?P<step>\d{1,9}|all))?"
    r"/e/(?P<group>\d{1,9})/(?P<rollout>\d{1,9})(?:/t/(?P<turn>\d{1,9})(?!\d).*)?"
)
_SHORT = re.compile(r"(?P<group>\d{1,9})/(?P<rollout>\d{1,9})")
_FORMS = "FILE.jsonl.zst#GROUP/ROLLOUT, or a folder and the viewer's link, RUN#/r/RUN/s/STEP/e/GROUP/ROLLOUT/t/TURN"


@dataclass(frozen=True, slots=True)
class EpisodePlace:
    """Where an episode lies, and a turn of it."""

    file: Path
    group: int
    rollout: int
    turn: int | None = None

    def owners(self) -> list[Path]:
        """The file, and the run and evaluation that it belongs to."""
        above = self.file.resolve().parents[:2]
        return [
            self.file,
            *(folder for folder in above if any((folder / each).is_file() for each in (CONFIG, SAMPLES))),
        ]


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode of a file."""

    place: EpisodePlace
    recorded: Group
    """Its group."""

    @property
    def problem(self) -> Problem:
        """Without its document, which a record leaves out."""
        return self.recorded.problem

    @property
    def trajectory(self) -> Trajectory:
        return self.recorded.trajectories[self.place.rollout]

    @property
    def grade(self) -> Grade:
        return self.recorded.grades[self.place.rollout]


def place_of(
    episode: str,
    *,
    step: int | None = None,
    group: int | None = None,
    rollout: int | None = None,
    turn: int | None = None,
) -> EpisodePlace:
    """What `episode` and the options together name. Raises ConfigError, DataError."""
    path, _, fragment = episode.partition("#")
    match = _LINK.fullmatch(fragment.partition("?")[0]) or _SHORT.fullmatch(fragment)
    if fragment and match is None:
        raise ConfigError(f"{path}: #{fragment:.80} names no episode; give {_FORMS}")
    linked = {} if match is None else {name: value for name, value in match.groupdict().items() if value is not None}
    given = {"step": step, "group": group, "rollout": rollout, "turn": turn}
    known = linked | {name: value for name, value in given.items() if value is not None}
    if not known.keys() & {"group", "rollout"} and (Path(path) / EPISODES).is_file():
        known |= {"group": first_of_an_agent(Path(path) / EPISODES) or 0, "rollout": 0}
    for name in ("group", "rollout"):
        if name not in known:
            raise ConfigError(f"{episode}: which {name} is not said; give --{name}, or {_FORMS}")
    numbers = {name: int(value) for name, value in known.items() if name != "step"}
    return EpisodePlace(_file(Path(path), known.get("step")), numbers["group"], numbers["rollout"], numbers.get("turn"))


def is_baseline(name: str) -> bool:
    """Whether the set of an evaluation is that of a baseline, which writes no memory."""
    return name.endswith((", closed book", ", whole document", ", retrieval"))


def first_of_an_agent(file: Path) -> int | None:
    """The place of the first group in an evaluation's record that isn't a baseline's: those end early, so they stand
    before it. Raises DataError."""
    groups = read_episodes(file).groups
    names = (group.trajectories[0].group_id.removesuffix(f"/{group.problem.id}") for group in groups)
    return next((at for at, name in enumerate(names) if not is_baseline(name)), None)


def _file(path: Path, step: int | str | None) -> Path:
    """The record file that `path` is, or that lies in it."""
    if not path.is_dir():
        return path
    if (path / TRAJECTORIES).is_dir():
        if step in (None, "all"):
            raise ConfigError(f"{path}: a run records each step in a file of its own; give --step, or the file")
        return path / TRAJECTORIES / f"{step_name(int(str(step)))}.jsonl.zst"
    if (path / EPISODES).is_file():
        return path / EPISODES
    raise DataError(f"{path}: holds neither {TRAJECTORIES}/ nor {EPISODES}; give {_FORMS}")


def read_episode(place: EpisodePlace) -> RecordedEpisode:
    """The episode at a place. Raises DataError for one that isn't there, or of other types than a record's."""
    recording = read_episodes(place.file) if place.file.name == EPISODES else read_groups(place.file)
    groups = recording.groups
    if place.group >= len(groups):
        torn = f"; {recording.torn}" if recording.torn else ""
        raise DataError(
            f"{place.file}: --group {place.group} is not one of its {len(groups)} groups, 0 the first{torn}"
        )
    group = groups[place.group]
    if place.rollout >= len(group.trajectories):
        raise DataError(
            f"{place.file}: --rollout {place.rollout} is not one of the {len(group.trajectories)} of group "
            f"{place.group}, 0 the first"
        )
    return RecordedEpisode(place, checked(place.file, group))


# ---- Origin of an episode, read from the files around it -----------------------------------------------------


_LOOKED_AT = (64, 2048)
"""Problems of an evaluation's data among which one is looked for: first few, then many."""
_TRAINED = re.compile(r"(?P<step>\d+)/(?P<round>\d+)/")


@dataclass(frozen=True, slots=True)
class RecordedWeights:
    """Of a model in a folder."""

    path: str
    same: bool
    """Whether they are those that sampled the episode, as far as the files tell."""
    told: str


@dataclass(frozen=True, slots=True)
class EpisodeOrigin:
    """All that playing it again needs, but the model itself and the document."""

    config: RunConfig
    """With the weights' folder as its model."""
    policy: MemoryPolicy
    key: tuple[Key, ...]
    """The draws of turn t are keyed by (*key, problem, rollout, t)."""
    training: bool
    """Whether it was played to be trained on, with the training's sampling and the whole of its reward."""
    weights: RecordedWeights
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


def origin_of(episode: RecordedEpisode, model: str | None) -> EpisodeOrigin:
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


def _of_training(episode: RecordedEpisode, run: Path, model: str | None) -> EpisodeOrigin:
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
    return EpisodeOrigin(
        config=_with_model(config, weights.path),
        policy=variant.policy if variant else build_policy(config.policy),
        key=(config.seed, "train", step, round_number, *occurrence),
        training=True,
        weights=weights,
        drawn=(step, round_number),
    )


def _of_evaluation(episode: RecordedEpisode, folder: Path, model: str | None) -> EpisodeOrigin:
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
    return EpisodeOrigin(
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


def _given(model: str) -> RecordedWeights:
    return RecordedWeights(model, False, f"the weights of {model}, as asked for")


def _trained_weights(run: Path, config: RunConfig, trajectory: Trajectory, step: int) -> RecordedWeights:
    """Those with as many optimiser steps as the recorded turns say, or of the nearest step."""
    version = trajectory.turns[0].completion.policy_version if trajectory.turns else None
    saved = checkpoint_paths(run / CHECKPOINTS)
    models = [_first_model(run, config), *map(str, saved)]
    versions = [0, *map(_version, saved)]
    told = ["the weights that training began with", *(f"the checkpoint {path.name}" for path in saved)]
    if version is not None and version in versions:
        at = versions.index(version)
        return RecordedWeights(models[at], True, f"{told[at]}, which sampled it")
    steps = [0, *map(checkpoint_step, saved)]
    at = min(range(len(steps)), key=lambda each: (abs(steps[each] - (step - 1)), -steps[each]))
    lost = f"those after step {step - 1}, which sampled it, weren't kept"
    return RecordedWeights(models[at], False, f"{told[at]}, the nearest: {lost}")


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


def _evaluated_weights(folder: Path, identity: Mapping[str, Any]) -> RecordedWeights:
    """The model with the fingerprint of the identity, among those that the files around name."""
    candidates = list(dict.fromkeys(_models_around(folder)))
    for path in candidates:
        if weights_fingerprint(path) == identity.get("weights"):
            return RecordedWeights(path, True, f"the weights of {path}, which sampled it")
    if not candidates:
        raise RunError(f"{folder}: which model played isn't told by any file; give --model")
    return RecordedWeights(
        candidates[0], False, f"the weights of {candidates[0]}, which are others than those that sampled it"
    )


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
