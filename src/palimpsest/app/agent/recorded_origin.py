"""Location and origin of a recorded episode: file, configuration, policy, random keys, weights.

Forms that name an episode. Group, rollout and turn are positions from 0, as in the viewer's links:

    runs/q/trajectories/step-000400.jsonl.zst#3/2      a file, group and rollout
    runs/q#/r/q/s/400/e/3/2/t/5                        a run, and the viewer's link
    evals/a#/e/3/2/t/5                                 an evaluation, or a file, and the link's short form
    evals/a                                            the first recorded episode of its agent

The record contains the key of the episode's random draws (`Group.key`). The rest comes from files next to it: the run's
config.yaml, or evaluation.json.

Weights of a training episode are those of the checkpoint with the number of optimizer steps in the recorded turns,
otherwise of the nearest one. Weights of an evaluation are found by the fingerprint in its identity.

Not covered: endpoints, whose draws have no key; baselines, whose options no file stores; custom engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.app.config_resolution import COLD_START, on_embedded
from palimpsest.app.evaluate.regrading import identified
from palimpsest.config.engine import named
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.sources.file_source import build_source
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.evaluation.episode_files import EPISODES, read_episodes
from palimpsest.evaluation.sample_log import (
    IDENTITY,
    SAMPLES,
    SUMMARY,
    Cell,
    logs_below,
    read_identity,
    read_object,
    read_samples,
)
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import build_policy
from palimpsest.provenance import WHOLE, same_weights, weights_fingerprint
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.rollout.variant import build_variant, is_variant
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step, step_name
from palimpsest.runs.run_folder import CONFIG, TRAJECTORIES, load_config
from palimpsest.seeding import Key
from palimpsest.types import Grade, Group, Problem, Trajectory
from palimpsest.viewer.records.record_index import checked

# ---- Location of an episode ----------------------------------------------------------------------------------


_LINK = re.compile(
    r"(?:/r/[^/]+)?(?:/s/(?P<step>\d{1,9}|[a-z_][\w.-]{0,200}))?"
    r"/e/(?P<group>\d{1,9})/(?P<rollout>\d{1,9})(?:/t/(?P<turn>\d{1,9})(?!\d).*)?"
)
_SHORT = re.compile(r"(?P<group>\d{1,9})/(?P<rollout>\d{1,9})")
_FORMS = "FILE.jsonl.zst#GROUP/ROLLOUT, or a folder and the viewer's link, RUN#/r/RUN/s/STEP/e/GROUP/ROLLOUT/t/TURN"


@dataclass(frozen=True, slots=True)
class EpisodeRef:
    """Location of an episode, and of one of its turns."""

    file: Path
    group: int
    rollout: int
    turn: int | None = None

    def owners(self) -> list[Path]:
        """The file, and the run and evaluation around it."""
        above = self.file.resolve().parents[:2]
        return [self.file, *(parent for parent in above if (parent / CONFIG).is_file() or (parent / SAMPLES).is_file())]


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode of a file. A record omits the document of its problem."""

    location: EpisodeRef
    group: Group

    @property
    def trajectory(self) -> Trajectory:
        return self.group.trajectories[self.location.rollout]

    @property
    def grade(self) -> Grade:
        return self.group.grades[self.location.rollout]


def locate_episode(
    episode: str,
    *,
    step: int | None = None,
    group: int | None = None,
    rollout: int | None = None,
    turn: int | None = None,
) -> EpisodeRef:
    """Location by `episode` and the options. Raises ConfigError, DataError."""
    path, _, fragment = episode.partition("#")
    match = _LINK.fullmatch(fragment.partition("?")[0]) or _SHORT.fullmatch(fragment)
    if fragment and match is None:
        raise ConfigError(f"{path}: #{fragment:.80} names no episode; use {_FORMS}")
    linked = {} if match is None else {name: value for name, value in match.groupdict().items() if value is not None}
    options = {"step": step, "group": group, "rollout": rollout, "turn": turn}
    ids = linked | {name: value for name, value in options.items() if value is not None}
    if not ids.keys() & {"group", "rollout"} and (Path(path) / EPISODES).is_file():
        ids["group"] = _first_of_an_agent(Path(path)) or 0
    if (Path(path) / EPISODES).is_file():
        ids.setdefault("rollout", 0)
    for name in ("group", "rollout"):
        if name not in ids:
            fault = f"{name} is missing; set --{name}, or" if Path(path).exists() else "no such file or folder;"
            raise ConfigError(f"{episode}: {fault} use {_FORMS}")
    numbers = {name: int(value) for name, value in ids.items() if name != "step"}
    return EpisodeRef(_file(Path(path), ids.get("step")), numbers["group"], numbers["rollout"], numbers.get("turn"))


def _file(path: Path, step: int | str | None) -> Path:
    if not path.is_dir():
        return path
    if log := logs_below(path, EPISODES).get(str(step)):
        return log
    if (path / TRAJECTORIES).is_dir():
        if step is None or not str(step).isdigit():
            raise ConfigError(f"{path}: a run has one record file per step; set --step, or pass the file")
        return path / TRAJECTORIES / f"{step_name(int(str(step)))}.jsonl.zst"
    if (path / EPISODES).is_file():
        return path / EPISODES
    raise DataError(f"{path}: contains neither {TRAJECTORIES}/ nor {EPISODES}; use {_FORMS}")


def read_episode(location: EpisodeRef) -> RecordedEpisode:
    """The episode at a location. Raises DataError for a missing one, or for fields of wrong types."""
    recording = read_episodes(location.file) if location.file.name == EPISODES else read_groups(location.file)
    groups = recording.groups
    if location.group >= len(groups):
        torn = f"; {recording.torn}" if recording.torn else ""
        raise DataError(
            f"{location.file}: --group {location.group} is not one of its {len(groups)} groups, 0 the first{torn}"
        )
    group = groups[location.group]
    if location.rollout >= len(group.trajectories):
        raise DataError(
            f"{location.file}: --rollout {location.rollout} is not one of the {len(group.trajectories)} of group "
            f"{location.group}, 0 the first"
        )
    return RecordedEpisode(location, checked(location.file, group))


# ---- Origin of an episode, read from the record and the files around it --------------------------------------


_SEARCHED = 2048
"""Problems of an evaluation's data to search."""


@dataclass(frozen=True, slots=True)
class EpisodeOrigin:
    """Everything that a replay needs, except the model and the document."""

    config: RunConfig
    """Its model is the weights' folder."""
    policy: MemoryPolicy
    key: tuple[Key, ...]
    """Key of the group's draws."""
    weights: str
    """Description of the weights, and whether they sampled the episode."""

    @property
    def training(self) -> bool:
        """True for a training episode, with the training's sampling and full reward."""
        return self.key[1] == "train"

    def find_problem(self, problem: Problem) -> Problem | None:
        """The same problem with its document, from the data; None if the problem or the data is missing."""
        wanted = (problem.id, problem.question, problem.answers)
        try:
            matches = (item for item in self._problems(problem) if (item.id, item.question, item.answers) == wanted)
            return next(matches, None)
        except (PalimpsestError, OSError):
            return None

    def _problems(self, problem: Problem) -> Iterator[Problem]:
        size = problem.metadata.get("chunks", problem.metadata.get("objectives"))
        size = size if type(size) is int else None
        data, golds = self.config.data, self.config.needs_golds
        source = build_source(data, self.config.seed, split="train" if self.training else "eval", golds=golds)
        if not self.training:
            yield from source.problems(step=0, count=_SEARCHED, size=size)
            return
        (step, round_number), most = map(int, self.key[2:4]), self.config.train.batch_size
        for count in (most, *range(1, most if round_number else 1)):  # a refill requests the missing ones
            yield from source.problems(step=step - 1, count=count, round=round_number, size=size)


def origin_of(episode: RecordedEpisode, model: str | None) -> EpisodeOrigin:
    """Origin of `episode`; `model` replaces the recorded weights.

    Raises ConfigError, DataError or RunError.
    """
    file, key = episode.location.file, episode.group.key
    folder = file.absolute().parent
    is_training = (folder.parent / CONFIG).is_file()
    if not is_training and not (folder / IDENTITY).is_file():
        raise RunError(
            f"{file}: belongs to no run ({CONFIG}) and no evaluation ({IDENTITY}), so its origin is unknown; pass the "
            "file in its original folder"
        )
    if len(key) < (4 if is_training else 3) or (key[1] == "train") != is_training:
        raise DataError(f"{file}: group {episode.trajectory.group_id!r} has no key of its random draws")
    return _of_training(episode, folder.parent, model) if is_training else _of_evaluation(episode, folder, model)


def _of_training(episode: RecordedEpisode, run: Path, model: str | None) -> EpisodeOrigin:
    config, trajectory, key = load_config(run), episode.trajectory, episode.group.key
    variant = build_variant(config) if is_variant(trajectory) else None
    path, weights = _weights_at(model) if model is not None else _trained_weights(run, config, trajectory, int(key[2]))
    return EpisodeOrigin(
        _with_model(config, path), variant.policy if variant else build_policy(config.policy), key, weights
    )


def _of_evaluation(episode: RecordedEpisode, folder: Path, model: str | None) -> EpisodeOrigin:
    identity, played = read_identity(folder), episode.trajectory.group_id
    cell = next((sample.cell for sample in read_samples(folder / SAMPLES)[0] if sample.group_id == played), None)
    if cell is None:
        raise RunError(f"{folder / SAMPLES}: has no line of {played}, so its origin is unknown")
    if "endpoint" in identity and model is None:
        raise ConfigError(
            f"{folder}: an endpoint sampled it, whose draws can't be repeated; set --model to local weights"
        )
    policy = _policy(identity, cell, folder)
    path, weights = _weights_at(model) if model is not None else _evaluated_weights(folder, identity)
    run = Path(path).absolute().parent.parent  # run of the checkpoint
    in_run = Path(path).parent.name == CHECKPOINTS and (run / CONFIG).is_file()
    base = load_config(run) if in_run else RunConfig()
    sections = base.model_copy(update={"policy": policy}).model_dump(mode="json")
    config = identified(sections, identity, folder)
    return EpisodeOrigin(_with_model(config, path), build_policy(policy), episode.group.key, weights)


def _policy(identity: Mapping[str, Any], cell: Cell, folder: Path) -> PolicyConfig:
    played = identity.get("policies", {}).get(cell.player)
    if played is None:
        first = _first_of_an_agent(folder)
        where = "" if first is None else f", the first is --group {first}"
        raise ConfigError(
            f"{folder}: {cell.title!r} is a baseline without a memory; replay an episode of the agent{where}"
        )
    return PolicyConfig.model_validate(played)


def _first_of_an_agent(folder: Path) -> int | None:
    """Position of the first recorded group of the agent; baselines end early and come before it. Raises DataError."""
    agents = {sample.group_id for sample in read_samples(folder / SAMPLES)[0] if not sample.baseline}
    groups = enumerate(read_episodes(folder / EPISODES).groups)
    return next((index for index, group in groups if group.trajectories[0].group_id in agents), None)


def _with_model(config: RunConfig, path: str) -> RunConfig:
    return on_embedded(config.model_copy(update={"model": config.model.model_copy(update={"path": path})}))


Weights = tuple[str, str]
"""A model's folder, and a description of its weights."""


def _weights_at(model: str) -> Weights:
    return model, f"the weights of {model}, as requested"


def _trained_weights(run: Path, config: RunConfig, trajectory: Trajectory, step: int) -> Weights:
    version = trajectory.turns[0].completion.policy_version if trajectory.turns else None
    saved = checkpoint_paths(run / CHECKPOINTS)
    models = [_first_model(run, config), *map(str, saved)]
    names = ["the weights that training started from", *(f"the checkpoint {path.name}" for path in saved)]
    for at, updates in enumerate([0, *map(_version, saved)]):
        if version is not None and updates == version:
            return models[at], f"{names[at]}, which sampled it"
    steps = [0, *map(checkpoint_step, saved)]
    at = min(range(len(steps)), key=lambda index: (abs(steps[index] - (step - 1)), -steps[index]))
    return models[at], f"{names[at]}, the nearest: no checkpoint of step {step - 1}, which sampled it, exists"


def _first_model(run: Path, config: RunConfig) -> str:
    saved = checkpoint_paths(run / COLD_START / CHECKPOINTS)
    return str(saved[-1]) if config.cold_start is not None and saved else named(config.model.path)


def _version(checkpoint: Path) -> object:
    return (read_object(checkpoint / "learner" / "learner.json") or {}).get("version")


def _evaluated_weights(folder: Path, identity: Mapping[str, Any]) -> Weights:
    candidates = list(dict.fromkeys(_models_around(folder)))
    for path in candidates:
        if same_weights(identity, weights_fingerprint(path)):
            return path, f"the weights of {path}, which sampled it"
    if not candidates:
        raise RunError(f"{folder}: no file records the model; set --model")
    older = same_weights(identity, WHOLE) is None
    why = "an earlier version recorded in part which weights sampled it" if older else "other weights sampled it"
    return candidates[0], f"the weights of {candidates[0]}; {why}"


def _models_around(folder: Path) -> Iterator[str]:
    if isinstance(model := (read_object(folder / SUMMARY) or {}).get("model"), str):
        yield named(model)
    run = next((parent for parent in folder.parents if (parent / CONFIG).is_file()), None)
    if run is not None:
        yield from map(str, reversed(checkpoint_paths(run / CHECKPOINTS)))
        yield _first_model(run, load_config(run))
