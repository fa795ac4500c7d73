"""Golden records: what tiny runs of the three methods sampled, did and were rewarded with, episode by episode.

    PYTHONPATH=tests python -m support.golden [NAME...]     # records them anew in tests/golden

Each run goes through the command line, on the model inside the package. A record holds one JSON line an episode:
tokens of every turn, how turns and episodes ended, answers, kinds of events in their order, rewards: all of that
has to be the same. Log-probabilities have to be close (`ROUNDED`): processors differ in the last bits of a sum.
Weights are not recorded; those of one step show in the log-probabilities of the next. When a record may change:
CONTRIBUTING.md.
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
        "memagent-quickstart",
        "train.max_steps=3",
        "data.curriculum=null",
        "data.synthetic.chunks=2",
        "policy.options.grounded=off",
        "reward.unsupported_penalty=2.0",
        *_SMALL,
    ),
    "rememr1": ("rememr1-quickstart", "train.max_steps=2", "cold_start.max_steps=60", *_SMALL),
    "memact": (
        "memact-quickstart",
        "train.max_steps=2",
        "data.search.objectives=[2,4]",
        "train.variant.share=0.3",
        *_SMALL,
    ),
}
"""Recipe and overrides of each run."""

CLOSE, FAR = 5e-5, 1e-2
"""Nats: two log-probabilities no further apart than the first are the same; as far as the second, they never are."""
ROUNDED = {"rememr1": 0.1}
"""Of the log-probabilities of a run, the share that may lie between: 0 where nothing is said.

AdamW makes a step of the whole rate of a gradient that is 0 but for rounding; after the 60 steps of a cold start sums
of AVX-512 and of AVX2 leave weights of `rememr1` 1.2e-7 apart on average and 1e-5 at most, after one step of training
1e-4. Of its 1,995 log-probabilities 50 are then more than `CLOSE` apart, the furthest 1.3e-3; between AVX-512 and SSE
43, 1.4e-3. A learning rate 1 % higher puts 479 of them apart, one of the cold start 0.1 % higher 1,449, both with
other tokens.
"""

Episode = dict[str, Any]
_COMMAND = "from palimpsest.cli.main import main; main()"


def episodes_of(run: Path) -> list[Episode]:
    """What a run folder's trajectories hold of a record, in the order of groups and rollouts."""
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
    """The recorded episodes of the run called `name`."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]


def differences(recorded: Sequence[Episode], played: Sequence[Episode], rounded: float = 0.0) -> list[str]:
    """Where two lists of episodes differ, in words; `rounded`: the share of log-probabilities that may be only near."""
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
    """(place, recorded, played) of all that isn't equal; of log-probabilities, all that isn't close."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _unequal(f"{path}.{key}".lstrip("."), old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _unequal(f"{path}[{index}]", a, b)
    elif old != new and _gap(path, old, new) > CLOSE:
        yield path, old, new


def _gap(path: str, old: Any, new: Any) -> float:
    """Nats between two log-probabilities; of anything else, that it is never near."""
    return abs(old - new) if ".logprobs[" in path else math.inf


def record(name: str) -> None:
    """Play the run called `name` and write down its episodes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-c", _COMMAND, "train", *RUNS[name], "--out", str(run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        lines = [json.dumps(episode, separators=(",", ":")) for episode in episodes_of(run)]
    (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or RUNS:
        record(chosen)
