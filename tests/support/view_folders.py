"""Folders of runs and evaluations for a viewer, written without training."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from palimpsest.evaluation.sample_log import Sample, encoded
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.runs.jsonl_rows import encode_row
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn


def run_folder(
    path: Path,
    metrics: Iterable[Mapping[str, Any]] = (),
    *,
    steps: int = 4,
    timings: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] = (),
    records: Mapping[int, Sequence[Group]] | None = None,
    config: str = "",
) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(f"recipe: small\nseed: 0\ntrain:\n  max_steps: {steps}\n{config}")
    (path / "metrics.jsonl").write_bytes(b"".join(map(encode_row, metrics)))
    (path / "timings.jsonl").write_bytes(b"".join(map(encode_row, timings)))
    rows = [{"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **row} for row in events]
    (path / "events.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (path / ".lock").write_bytes(b"")
    (path / "trajectories").mkdir()
    for step, groups in (records or {}).items():
        (path / "trajectories" / f"step-{step:06d}.jsonl.zst").write_bytes(encode_groups(groups))
    return path


def evaluation_folder(path: Path, samples: Iterable[Sample], identity: Mapping[str, Any] | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "samples.jsonl").write_bytes(b"".join(map(encoded, samples)))
    (path / "evaluation.json").write_bytes(orjson.dumps(identity or {"weights": "w", "seed": 0}))
    (path / "summary.json").write_bytes(b"{}")
    return path


def sample(
    set: str, id: str, value: float | None, *, length: int | None = 4, answer: str = "tea", **more: Any
) -> Sample:
    """A graded episode of an evaluation; `more`: further fields."""
    fields = {"question": f"What does {id} drink?", "answers": ("tea",), "memory": f"{id} drinks tea.", "reason": None}
    counts = {"turns": 2, "prompt_tokens": 20, "sampled_tokens": 4, "outcome": "answered"}
    values = {"set": set, "player": "recall", "id": id, "value": value, "length": length, "answer": answer}
    return Sample(**{**fields, **counts, **values, **more})


def chunks(count: int, id: str, value: float | None, **more: Any) -> Sample:
    """A graded episode on a generated document."""
    return sample("synthetic", id, value, size=count, unit="chunks", length=count, **more)


def group(
    name: str, rewards: Sequence[float | None] = (0.0, 1.0), *, turns: int = 2, prompt: Sequence[int] = (5, 6, 7)
) -> Group:
    """A problem with one episode per reward; None: ungraded."""

    def turn(rollout: int, step: int) -> Turn:
        completion = Completion((8 + rollout, 9), (-0.5, -0.25), StopReason.STOP)
        return Turn(tuple(prompt), completion, step, "read" if step < turns - 1 else "answer")

    def episode(rollout: int) -> Trajectory:
        made = tuple(turn(rollout, step) for step in range(turns))
        return Trajectory(name, f"g-{name}", rollout, made, Outcome.ANSWERED, f"answer {rollout}")

    problem = Problem(name, f"What is {name}?", ("gold",), metadata={"evidence": ["gold is here"]})
    grades = tuple(Grade(value, None if value is not None else "lost", {"em": value or 0.0}) for value in rewards)
    return Group(problem, tuple(map(episode, range(len(rewards)))), grades)


def state_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Contents and modification times of everything in a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
    }
