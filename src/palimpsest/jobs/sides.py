"""A folder of an evaluation or of a run, as a side of a comparison: its samples and what it was configured as.

Of an evaluation these are samples.jsonl and evaluation.json, beside them the configuration of the run whose model it
played, as `run.KEY`, where that run is still there. Of a quickstart they are the logs under `evaluations/` and its
config.yaml.

Guaranteed: lines that can't be read are counted, a folder without samples is refused by name.
Not covered: logs of a quickstart that were set aside (`.old-1`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from palimpsest.config.reward import RewardConfig
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.evaluation.identity import leaves
from palimpsest.evaluation.samples import SAMPLES, SUMMARY, Sample, read_identity, read_samples
from palimpsest.jobs.judge_card import parsed_card
from palimpsest.jobs.regrading import stored_reward
from palimpsest.runs.run_folder import CONFIG, load_config

RESCORED = "rescored"
"""Key of an identity, and folder in an evaluation, of grades that were given later."""
Folder = str | os.PathLike[str]
_FOLLOW = ("weights", "model")
"""What differs between two runs of one configuration because their seeds do."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one folder holds."""

    name: str
    """Its path, without what all sides have in common."""
    folder: Path
    samples: tuple[Sample, ...]
    """The agent's, or several agents'."""
    baselines: tuple[Sample, ...]
    """Of what was played beside it: figures of their own, in no difference over everything."""
    unreadable: int
    """Lines of its logs that can't be read."""
    settings: Mapping[str, Any]
    """Dotted key to value."""
    editions: Mapping[str, str]
    """File of the data to its SHA-256, where it is known."""

    reward: RewardConfig | None
    """What graded it; None where that can't be told."""

    judged: str | None
    """How far its judge can be believed, in a sentence; None where no judge graded it, or no card was made."""

    @property
    def seeds(self) -> dict[str, Any]:
        """What it was seeded with, by key."""
        return {key: value for key, value in self.settings.items() if _is_seed(key)}

    @property
    def but_for_seeds(self) -> str:
        """Its configuration without seeds, as a text that is equal for equal ones."""
        trained = any(key.startswith("run.") for key in self.settings)
        left_out = _FOLLOW if trained else ()
        kept = {key: value for key, value in self.settings.items() if key not in left_out and not _is_seed(key)}
        return json.dumps(kept, sort_keys=True, default=str)


def read_sides(folders: Sequence[Folder]) -> list[Side]:
    """The sides, by names that tell them apart. Raises RunError."""
    paths = [Path(folder) for folder in folders]
    names = short_names([str(path) for path in paths])
    return [_side(path, name) for path, name in zip(paths, names, strict=True)]


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths without the folders that all of them begin with; the last part always stays.

    >>> short_names(["runs/a/eval", "runs/b/eval"]), short_names(["evals/a", "evals/b"]), short_names(["x/y"])
    (['a/eval', 'b/eval'], ['a', 'b'], ['y'])
    """
    parts = [Path(path).parts for path in paths]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return [str(Path(*each[shared:])) for each in parts]


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


def _side(folder: Path, name: str) -> Side:
    logs = list(_logs(folder))
    if not logs:
        raise RunError(
            f"{folder}: holds neither {SAMPLES} nor a quickstart's evaluations: give the --out of palimpsest eval, or "
            f"make one with palimpsest eval --model {folder} --out DIR"
            if folder.is_dir()
            else f"{folder}: no such folder; give folders that palimpsest eval or quickstart wrote"
        )
    samples: dict[object, Sample] = {}
    unreadable = 0
    for log in logs:
        read, lost = read_samples(log)
        samples.update({each.key: each for each in read})
        unreadable += lost
    if not samples:
        raise RunError(f"{folder}: no episode in it has ended yet; run the same palimpsest eval again")
    return Side(
        name=name,
        folder=folder,
        samples=tuple(each for each in samples.values() if each.baseline is None),
        baselines=tuple(each for each in samples.values() if each.baseline is not None),
        unreadable=unreadable,
        settings=dict(_settings(folder)),
        editions=_editions(folder),
        reward=_reward(folder),
        judged=_judged(folder),
    )


def _judged(folder: Path) -> str | None:
    """What the evaluation wrote down of its judge: its card, and the score under each prompt."""
    told = _json(folder / SUMMARY).get("judge")
    card = parsed_card(told.get("card")) if isinstance(told, dict) else None
    if card is None or not isinstance(told, dict):
        return None
    scores = {name: score.get("mean") for name, score in told.get("scores", {}).items()}
    shares = ", ".join(f"{name} {100 * mean:.1f}" for name, mean in scores.items() if mean is not None)
    return f"{'; '.join(line.strip() for line in card.told[:2])}; score by prompt: {shares or 'none'}"


def _reward(folder: Path) -> RewardConfig | None:
    if (folder / CONFIG).is_file():
        try:
            return load_config(folder).reward
        except PalimpsestError:  # of another version
            return None
    stored = read_identity(folder).get("reward")
    try:
        return stored_reward(stored) if isinstance(stored, dict) else None
    except ValidationError:
        return None


def _editions(folder: Path) -> dict[str, str]:
    """As the evaluation wrote them down; of a rescoring, as the evaluation that it comes from did."""
    known = _summary(folder).get("editions")
    return {str(file): str(digest) for file, digest in known.items()} if isinstance(known, dict) else {}


def _logs(folder: Path) -> Iterator[Path]:
    if (folder / SAMPLES).is_file():
        yield folder / SAMPLES
    for log in sorted(folder.glob(f"evaluations/*/*/{SAMPLES}")):
        if ".old-" not in log.parent.name:
            yield log


def _settings(folder: Path) -> Iterator[tuple[str, Any]]:
    if (folder / CONFIG).is_file():
        yield from _run_settings(folder)
        return
    identity = {key: value for key, value in read_identity(folder).items() if key != RESCORED}
    yield from leaves(identity)
    model = _summary(folder).get("model")
    if isinstance(model, str):
        yield "model", model
        run = next((each for each in _and_parents(Path(model)) if (each / CONFIG).is_file()), None)
        yield from _run_settings(run) if run else ()


def _and_parents(model: Path) -> Iterable[Path]:
    """A run, or the run of a checkpoint."""
    return (model, *list(model.parents)[:2])


def _run_settings(run: Path) -> Iterator[tuple[str, Any]]:
    try:
        values = load_config(run).model_dump(mode="json")
    except PalimpsestError:  # of another version: what it was configured as can't be told
        return
    yield from leaves(values, "run")


def _summary(folder: Path) -> dict[str, Any]:
    """What an evaluation wrote at its end; of a rescoring, what the evaluation did that it comes from."""
    summary = _json(folder / SUMMARY)
    return _json(folder.parent.parent / SUMMARY) if "rescored_from" in summary else summary


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is none, or none that can be read."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
