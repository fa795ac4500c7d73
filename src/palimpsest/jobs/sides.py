"""A folder of an evaluation or of a run, as a side of a comparison: its samples and what it was configured as.

Of an evaluation these are samples.jsonl and evaluation.json, beside them the configuration of the run whose model it
played, as `run.KEY`, where that run is still there. Of a quickstart they are the logs under `evaluations/` and its
config.yaml.

Guaranteed: the samples are those that were asked for last, as in summary.json; others, and lines that can't be read,
are counted; a folder without samples is refused by name.
Not covered: logs of a quickstart that were set aside (`.old-1`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from palimpsest.config.reward import RewardConfig
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.evaluation import comparison
from palimpsest.evaluation.asked import read_log
from palimpsest.evaluation.comparison import settings_of_evaluation, settings_of_run
from palimpsest.evaluation.samples import SAMPLES, SUMMARY, logs_below, read_identity
from palimpsest.jobs.judge_card import parsed_card
from palimpsest.jobs.regrading import stored_reward
from palimpsest.runs.run_folder import CONFIG, load_config

Folder = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(comparison.Side):
    """What one folder holds; its name is its path, without what all sides have in common."""

    folder: Path
    editions: Mapping[str, str]
    """File of the data to its SHA-256, where it is known."""
    reward: RewardConfig | None
    """What graded it; None where that can't be told."""
    judged: str | None
    """How far its judge can be believed, in a sentence; None where no judge graded it, or no card was made."""


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


def _side(folder: Path, name: str) -> Side:
    logs = list(_logs(folder))
    if not logs:
        raise RunError(
            f"{folder}: holds neither {SAMPLES} nor a quickstart's evaluations: give the --out of palimpsest eval, or "
            f"make one with palimpsest eval --model {folder} --out DIR"
            if folder.is_dir()
            else f"{folder}: no such folder; give folders that palimpsest eval or quickstart wrote"
        )
    read = [read_log(log.parent) for log in logs]
    samples = {sample.key: sample for each in read for sample in each.samples}
    if not samples:
        raise RunError(f"{folder}: no episode in it has ended yet; run the same palimpsest eval again")
    return Side(
        name=name,
        folder=folder,
        samples=tuple(each for each in samples.values() if each.baseline is None),
        baselines=tuple(each for each in samples.values() if each.baseline is not None),
        unreadable=sum(each.unreadable for each in read),
        not_asked=sum(each.not_asked for each in read),
        settings=_settings(folder),
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
    yield from logs_below(folder).values()


def _settings(folder: Path) -> dict[str, Any]:
    if (folder / CONFIG).is_file():
        return settings_of_run(_run_settings(folder) or {})
    return settings_of_evaluation(read_identity(folder), _summary(folder).get("model"), _run_settings)


def _run_settings(run: Path) -> Mapping[str, Any] | None:
    if not (run / CONFIG).is_file():
        return None
    try:
        return load_config(run).model_dump(mode="json")
    except PalimpsestError:  # of another version: what it was configured as can't be told
        return {}


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
