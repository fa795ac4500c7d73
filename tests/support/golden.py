"""Golden records: tokens, endings, answers, events and rewards of every episode of tiny runs of the three methods.

    PYTHONPATH=tests python -m support.golden [NAME...]     # records them again in tests/golden

Runs use the command line and the packaged model. All values must be equal, log-probabilities close (`ROUNDED`), since
processors differ in the last bits of a sum. Weights show in the log-probabilities of the next step. When a record may
change: CONTRIBUTING.md.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.types import Grade, Trajectory, Turn

FOLDER = Path(__file__).parents[1] / "golden"

_SMALL = ("train.batch_size=3", "train.group_size=4", "train.num_minibatches=2")
RUNS: dict[str, tuple[str, ...]] = {
    "memagent": (
        *("memagent-quickstart", "train.max_steps=3", "data.curriculum=null", "data.synthetic.chunks=2"),
        *("policy.options.grounded=off", "reward.unsupported_penalty=2.0", *_SMALL),
    ),
    "rememr1": ("rememr1-quickstart", "train.max_steps=2", "cold_start.max_steps=60", *_SMALL),
    "memact": (
        *("memact-quickstart", "train.max_steps=2", "data.search.objectives=[2,4]", "train.variant.share=0.3"),
        *_SMALL,
    ),
}
"""Recipe and overrides of each run."""

CLOSE, FAR = 5e-5, 1e-2
"""Nats: log-probabilities at most `CLOSE` apart are equal, from `FAR` on different."""
ROUNDED = {"rememr1": 0.1}
"""Share of a run's log-probabilities that may be in between, by default 0.

AdamW steps by the full rate for a gradient of mere rounding. After the 60 steps of a cold start, weights of `rememr1`
by AVX-512 and AVX2 differ by 1.2e-7 on average and 1e-5 at most, after a training step by 1e-4, and 50 of its 1,995
log-probabilities by more than `CLOSE`, at most 1.3e-3; with AVX-512 and SSE 43, 1.4e-3. A learning rate 1 % higher
changes 479 of them, one of the cold start 0.1 % higher 1,449, both with other tokens.
"""

Episode = dict[str, Any]
_COMMAND = "from palimpsest.cli.main import main; main()"


def episodes_of(run: Path) -> list[Episode]:
    """The record of a run folder's trajectories, ordered by group and rollout."""
    episodes = [
        _episode(trajectory, grade)
        for file in sorted(run.glob("trajectories/*.zst"))
        for group in read_groups(file).groups
        for trajectory, grade in zip(group.trajectories, group.grades, strict=True)
    ]
    return sorted(episodes, key=lambda episode: (episode["group"], episode["rollout"]))


def _episode(trajectory: Trajectory, grade: Grade) -> Episode:
    return {
        "group": trajectory.group_id,
        "rollout": trajectory.rollout,
        "problem": trajectory.problem_id,
        "outcome": trajectory.outcome.value,
        "answer": trajectory.answer,
        "events": [event.kind for event in trajectory.events],
        "reward": grade.value,
        "turn_rewards": None if grade.per_turn is None else list(grade.per_turn),
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "step": turn.step,
        "name": turn.name,
        "prompt": list(turn.prompt_ids),
        "sampled": list(turn.completion.token_ids),
        "logprobs": [round(logprob, 5) for logprob in turn.completion.logprobs],
        "stop": turn.completion.stop_reason.value,
    }


def golden(name: str) -> list[Episode]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]


def differences(recorded: Sequence[Episode], played: Sequence[Episode], rounded: float = 0.0) -> list[str]:
    """Differences of two lists of episodes; `rounded`: see `ROUNDED`."""
    keys = [[(episode["group"], episode["rollout"]) for episode in episodes] for episodes in (recorded, played)]
    if keys[0] != keys[1]:
        return [f"other episodes: {sorted(set(keys[0]) ^ set(keys[1]))[:4]}"]
    unequal = [
        (f"{old['group']}#{old['rollout']}: {path}: recorded {a!r:.80}, played {b!r:.80}", _gap(path, a, b))
        for old, new in zip(recorded, played, strict=True)
        for path, a, b in _unequal("", old, new)
    ]
    near = [text for text, gap in unequal if gap < FAR]
    if len(near) <= rounded * sum(len(turn["logprobs"]) for episode in recorded for turn in episode["turns"]):
        return [text for text, gap in unequal if gap >= FAR]
    return [text for text, _ in unequal]


def _unequal(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """(path, recorded, played) of unequal values, and of log-probabilities that aren't close."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _unequal(f"{path}.{key}".lstrip("."), old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _unequal(f"{path}[{index}]", a, b)
    elif old != new and _gap(path, old, new) > CLOSE:
        yield path, old, new


def _gap(path: str, old: Any, new: Any) -> float:
    """Nats between two log-probabilities; infinite for other values."""
    return abs(old - new) if ".logprobs[" in path else math.inf


def record(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-c", _COMMAND, "train", *RUNS[name], "--out", str(run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        lines = [json.dumps(episode, separators=(",", ":")) for episode in episodes_of(run)]
    (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or RUNS:
        record(chosen)
