"""Chosen episodes as JSON lines, and as a log that inspect's own viewer opens.

    FILE.jsonl     the record's lines as they are (rollout/record.py), so that `palimpsest view FILE.jsonl` reads them
    FILE.json      one EvalLog of inspect_ai, version 2
    FILE.eval      the same as inspect's archive: header.json, summaries.json, samples/ID_epoch_N.json

A sample is an episode: its messages are the prompts as `user` and the replies as `assistant`, its epoch is the rollout,
its score the reward, its metadata the outcome, the events and the place in the record.

Guaranteed: the same episodes give the same bytes; an ungraded episode has no score. Not covered: token ids and
log-probabilities, for which inspect's log has no place.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from palimpsest import __version__
from palimpsest.rollout.record import group_lines
from palimpsest.text.codec import Codec
from palimpsest.text.storable import storable, to_json
from palimpsest.types import Grade, Group, StopReason, Trajectory, Turn

SCORER = "reward"
_STOPS = {StopReason.STOP: "stop", StopReason.LENGTH: "max_tokens"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of an archive's entries: the time when it was made isn't in it


@dataclass(frozen=True, slots=True)
class Described:
    """What a log says of the whole."""

    task: str
    model: str
    written: float
    """When its record was, in seconds since 1970."""


def json_lines(groups: Iterable[Group]) -> bytes:
    """The lines of a record."""
    return b"".join(map(group_lines, groups))


def inspect_log(groups: Sequence[Group], codec: Codec, told: Described) -> dict[str, Any]:
    """An EvalLog as JSON has it."""
    pairs = [pair for group in groups for pair in _episodes(group)]
    samples = [_sample(alone, epoch, codec, told) for alone, epoch in pairs]
    values = [grade.value for group in groups for grade in group.grades if grade.value is not None]
    written = datetime.fromtimestamp(told.written, UTC).isoformat(timespec="seconds")
    return {
        "version": 2,
        "status": "success",
        "eval": _described(samples, told, written),
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_mean(values)] if values else [],
        },
        "stats": {"started_at": written, "completed_at": written, "model_usage": {}},
        "samples": samples,
    }


def _described(samples: Sequence[dict[str, Any]], told: Described, written: str) -> dict[str, Any]:
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    key = _id(told.task, told.model, *ids)
    return {
        "eval_id": key,
        "run_id": key,
        "created": written,
        "task": told.task,
        "task_id": key,
        "task_version": 0,
        "task_args": {},
        "dataset": {"name": told.task, "samples": len(ids), "sample_ids": ids, "shuffled": False},
        "model": told.model,
        "model_args": {},
        "config": {"epochs": max((sample["epoch"] for sample in samples), default=1)},
        "packages": {"palimpsest": __version__},
    }


def inspect_archive(log: dict[str, Any]) -> bytes:
    """The log as an `.eval` file."""
    header = {name: value for name, value in log.items() if name != "samples"}
    start = {name: header[name] for name in ("version", "eval", "plan")}
    files = {"_journal/start.json": start, "header.json": header, "summaries.json": list(map(_summary, log["samples"]))}
    files |= {f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in log["samples"]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, to_json(value))
    return buffer.getvalue()


def _mean(values: Sequence[float]) -> dict[str, Any]:
    mean = {"name": "mean", "value": fmean(values), "params": {}}
    return {"name": SCORER, "scorer": SCORER, "params": {}, "metrics": {"mean": mean}}


def _episodes(group: Group) -> Iterator[tuple[Group, int]]:
    """Each episode as a group of its own, and its epoch, from 1: the rollout, or the place of one without a number."""
    for place, (trajectory, grade) in enumerate(zip(group.trajectories, group.grades, strict=True)):
        rollout = trajectory.rollout if isinstance(trajectory.rollout, int) else place  # text: JSON had no place for it
        yield Group(group.problem, (trajectory,), (grade,)), rollout + 1


def _sample(alone: Group, epoch: int, codec: Codec, told: Described) -> dict[str, Any]:
    problem, (trajectory,), (grade,) = alone.problem, alone.trajectories, alone.grades
    messages = [message for turn in trajectory.turns for message in _messages(turn, codec, told, trajectory)]
    metadata = {
        "group_id": trajectory.group_id,
        "outcome": str(trajectory.outcome),
        "problem": dict(problem.metadata),
        "events": [{"kind": each.kind, "before_turn": each.before_turn, **each.detail} for each in trajectory.events],
        "reason": grade.reason,
        "breakdown": dict(grade.breakdown),
    }
    value: dict[str, Any] = {
        "id": _safe(trajectory.group_id),
        "epoch": epoch,
        "input": problem.question,
        "target": list(problem.answers),
        "messages": messages,
        "output": _output(trajectory, told),
        "scores": _scores(trajectory, grade),
        "metadata": storable(metadata, []),
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
    }
    return value


def _messages(turn: Turn, codec: Codec, told: Described, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    key = (trajectory.group_id, trajectory.rollout, turn.step)
    reply = codec.decode(turn.completion.token_ids, control=False)
    yield {"id": _id(*key, "prompt"), "role": "user", "content": codec.decode(turn.prompt_ids), "source": "input"}
    yield {"id": _id(*key, "reply"), "role": "assistant", "content": reply, "source": "generate", "model": told.model}


def _output(trajectory: Trajectory, told: Described) -> dict[str, Any]:
    if not trajectory.turns:
        return {"model": told.model, "choices": []}
    stop = trajectory.turns[-1].completion.stop_reason
    message = {"role": "assistant", "content": trajectory.answer or "", "source": "generate", "model": told.model}
    choice = {"message": message, "stop_reason": _STOPS.get(stop, "unknown")}
    return {"model": told.model, "choices": [choice]}


def _scores(trajectory: Trajectory, grade: Grade) -> dict[str, Any]:
    if grade.value is None:
        return {}
    return {SCORER: {"value": grade.value, "answer": trajectory.answer}}


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "epoch", "input", "target", "scores")
    return {name: sample[name] for name in names} | {"metadata": {}, "completed": True}


def _safe(name: str) -> str:
    """An id that can be a file's name.

    >>> _safe("4 chunks/../p"), _safe("4 chunks/p 1")
    ('4 chunks_.._p', '4 chunks_p 1')
    """
    return "".join(c if c.isalnum() or c in " .-_,@#" else "_" for c in name)


def _id(*parts: object) -> str:
    """22 characters that are the same for the same parts."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=11).hexdigest()
