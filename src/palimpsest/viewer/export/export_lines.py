"""Chosen episodes as JSON lines, and as a log that inspect's own viewer opens.

    FILE.jsonl     the record's lines as they are (rollout/trajectory_file.py), so that `palimpsest view FILE.jsonl`
    reads them
    FILE.json      one EvalLog of inspect_ai, version 2
    FILE.eval      the same as inspect's archive: header.json, summaries.json, samples/ID_epoch_N.json

A sample is an episode: its messages are the prompts as `user` and the replies as `assistant`, its epoch is the rollout,
its score the reward, its metadata the outcome, the events and the place in the record. An evaluation's samples and
scores are those of samples.jsonl; the turns come from the record, where the episode was recorded.

Guaranteed: the same episodes give the same bytes; an ungraded episode has no score; the metric `mean` of an evaluation
is the accuracy of its summary. Not covered: token ids and log-probabilities, for which inspect's log has no place.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from palimpsest._version import __version__
from palimpsest.evaluation.pairing import cell_of
from palimpsest.evaluation.sample_log import Sample
from palimpsest.rollout.trajectory_file import group_lines
from palimpsest.text.codec import Codec
from palimpsest.text.json_text import storable, to_json
from palimpsest.types import Grade, Group, StopReason, Trajectory, Turn
from palimpsest.viewer.records.recorded_episodes import episode_key, player_of

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
    status: str = "success"
    """`success`, `started` or `cancelled`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An episode of a log."""

    id: str
    epoch: int
    """From 1."""
    question: str
    golds: tuple[str, ...]
    answer: str | None
    value: float | None
    """None: ungraded."""
    part: str
    """The set and length that it belongs to; empty where there are none."""
    tokens: tuple[int, int]
    """Read, sampled."""
    trajectory: Trajectory | None
    """None: its turns were not recorded."""
    metadata: Mapping[str, Any]


def json_lines(groups: Iterable[Group]) -> bytes:
    """The lines of a record."""
    return b"".join(map(group_lines, groups))


def entries_of(groups: Iterable[Group]) -> list[Entry]:
    """The episodes of a record, with the grades that it holds."""
    return [_recorded(group, place) for group in groups for place in range(len(group.trajectories))]


def evaluation_entries(samples: Iterable[Sample], groups: Iterable[Group]) -> list[Entry]:
    """An entry for each of `samples`, with the turns of those that `groups` hold."""
    found = {
        (trajectory.group_id, trajectory.rollout): (group, place)
        for group in groups
        for place, trajectory in enumerate(group.trajectories)
    }
    return [_sampled(sample, found.get(episode_key(sample))) for sample in samples]


def _recorded(group: Group, place: int) -> Entry:
    problem, trajectory, grade = group.problem, group.trajectories[place], group.grades[place]
    rollout = trajectory.rollout if isinstance(trajectory.rollout, int) else place  # text: JSON had no place for it
    return Entry(
        trajectory.group_id,
        rollout + 1,
        problem.question,
        tuple(problem.answers),
        trajectory.answer,
        grade.value,
        "",
        (sum(len(turn.prompt_ids) for turn in trajectory.turns), _sampled_tokens(trajectory)),
        trajectory,
        _metadata(group, trajectory, grade),
    )


def _sampled(sample: Sample, recorded: tuple[Group, int] | None) -> Entry:
    trajectory = None if recorded is None else recorded[0].trajectories[recorded[1]]
    known: dict[str, Any] = {
        "set": sample.name,
        "player": player_of(sample.baseline),
        "recorded": trajectory is not None,
        "outcome": sample.outcome,
        "reason": sample.reason,
        "breakdown": dict(sample.metrics),
        "measures": dict(sample.measures),
        "turns": sample.turns,
    }
    if recorded is not None and trajectory is not None:
        known = {**_metadata(recorded[0], trajectory, recorded[0].grades[recorded[1]]), **known}
    return Entry(
        f"{sample.name}/{sample.id}",
        sample.draw + 1,
        sample.question,
        sample.answers,
        sample.answer,
        sample.value,
        cell_of(sample).label,
        (sample.prompt_tokens, sample.sampled_tokens),
        trajectory,
        known,
    )


def _sampled_tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.completion.token_ids) for turn in trajectory.turns)


def _metadata(group: Group, trajectory: Trajectory, grade: Grade) -> dict[str, Any]:
    return {
        "group_id": trajectory.group_id,
        "outcome": str(trajectory.outcome),
        "problem": dict(group.problem.metadata),
        "events": [{"kind": each.kind, "before_turn": each.before_turn, **each.detail} for each in trajectory.events],
        "reason": grade.reason,
        "breakdown": dict(grade.breakdown),
    }


def inspect_log(entries: Sequence[Entry], codec: Codec, told: Described) -> dict[str, Any]:
    """An EvalLog as JSON has it."""
    samples = [_sample(entry, codec, told) for entry in entries]
    written = datetime.fromtimestamp(told.written, UTC).isoformat(timespec="seconds")
    usage = {told.model: _usage(*map(sum, zip(*(entry.tokens for entry in entries), strict=True)))} if entries else {}
    return {
        "version": 2,
        "status": told.status,
        "eval": _described(samples, told, written),
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": _results(entries),
        },
        "stats": {"started_at": written, "completed_at": written, "model_usage": usage},
        "samples": samples,
    }


def _results(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The mean over all that are graded, and over each part where there are several; nothing where none is graded."""
    parts: dict[str, list[float]] = {}
    for entry in entries:
        if entry.value is not None:
            parts.setdefault(entry.part, []).append(entry.value)
    values = [value for part in parts.values() for value in part]
    if not values:
        return []
    metrics = {"mean": {"name": "mean", "value": fmean(values), "params": {}}}
    if len(parts) > 1:
        metrics |= {
            part: {"name": part, "group": "mean of a part", "value": fmean(own), "params": {}}
            for part, own in parts.items()
        }
    counts = {"scored_samples": len(values), "unscored_samples": len(entries) - len(values)}
    return [{"name": SCORER, "scorer": SCORER, "params": {}, **counts, "metrics": metrics}]


def _usage(read: int, sampled: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled}


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
        "metadata": storable(dict(told.metadata), []),
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


def _sample(entry: Entry, codec: Codec, told: Described) -> dict[str, Any]:
    turns = () if entry.trajectory is None else entry.trajectory.turns
    messages = [message for turn in turns for message in _messages(turn, codec, told, entry)]
    return {
        "id": _safe(entry.id),
        "epoch": entry.epoch,
        "input": entry.question,
        "target": list(entry.golds),
        "messages": messages,
        "output": _output(entry, told),
        "scores": {} if entry.value is None else {SCORER: {"value": entry.value, "answer": entry.answer}},
        "metadata": storable(dict(entry.metadata), []),
        "store": {},
        "events": [],
        "model_usage": {told.model: _usage(*entry.tokens)},
        "attachments": {},
    }


def _messages(turn: Turn, codec: Codec, told: Described, entry: Entry) -> Iterator[dict[str, Any]]:
    key = (entry.id, entry.epoch, turn.step)
    reply = codec.decode(turn.completion.token_ids, control=False)
    yield {"id": _id(*key, "prompt"), "role": "user", "content": codec.decode(turn.prompt_ids), "source": "input"}
    yield {"id": _id(*key, "reply"), "role": "assistant", "content": reply, "source": "generate", "model": told.model}


def _output(entry: Entry, told: Described) -> dict[str, Any]:
    turns = () if entry.trajectory is None else entry.trajectory.turns
    if entry.answer is None and not turns:
        return {"model": told.model, "choices": []}
    stop = turns[-1].completion.stop_reason if turns else None
    message = {"role": "assistant", "content": entry.answer or "", "source": "generate", "model": told.model}
    choice = {"message": message, "stop_reason": "unknown" if stop is None else _STOPS.get(stop, "unknown")}
    return {"model": told.model, "choices": [choice]}


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
