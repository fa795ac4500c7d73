"""Episodes as logs for `inspect view`: an EvalLog of inspect_ai, version 2, as the archive FILE.eval.

A sample is an episode: its messages are the prompts as `user` and the replies as `assistant`, its epoch is the rollout,
its score the reward. Samples and scores of an evaluation come from samples.jsonl; the turns come from the record, if it
contains the episode.

Guaranteed: the same files yield the same bytes; an ungraded episode has no score; an evaluation's agent, further
policies and baselines have one log each, whose metric `mean` is the accuracy in its summary.
Not covered: token ids and log-probabilities, for which inspect's log has no field.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any

from palimpsest._version import __version__
from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.evaluation.comparison import cell_at_length
from palimpsest.evaluation.sample_log import SAMPLES, Sample
from palimpsest.notes import Note
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import counted
from palimpsest.text.json_text import storable, to_json
from palimpsest.types import Group, StopReason, Turn
from palimpsest.viewer.export.inline_page import Content, EpisodeIndex, check_places, chosen_step, left_out
from palimpsest.viewer.export.trace_formats import EpisodeForm
from palimpsest.viewer.records import recorded_episodes as records
from palimpsest.viewer.records.run_status import Status
from palimpsest.viewer.records.sources import Source, SourceKind, updated
from palimpsest.viewer.screens.viewer_api import ViewerApi

_STOPS = {StopReason.STOP: "stop", StopReason.LENGTH: "max_tokens"}
_STATUS = {Status.FINISHED: "success", Status.RUNNING: "started"}
"""Status of an evaluation; any other is `cancelled`."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # time stamp of all archive entries, so that equal logs have equal bytes


Recorded = tuple[Group, int]
"""A group, and the index of an episode in it."""
Episode = tuple[Sample, Recorded | None]
"""A sample, whose set has no name outside of evaluations, and its record; None: its turns were not recorded."""


def inspect_logs(answers: ViewerApi, source: Source, only: Sequence[EpisodeIndex], step: str | None) -> list[Content]:
    """The log of a record or of a run's step; for an evaluation one per agent, further policy and baseline, in this
    order. Raises ConfigError for unrecorded episodes.
    """
    steps = answers.get(f"/api/runs/{source.key}/steps")
    recorded, notes, evaluated = list[Recorded](), list[str](), source.kind is SourceKind.EVALUATION
    if steps or only or step is not None or not evaluated:
        recorded, notes = recorded_episodes(answers, source, steps, step, only)
    episodes: list[Episode] = [(sample_of(*episode), episode) for episode in recorded]
    if evaluated:
        by_key = {
            (group.trajectories[at].group_id, group.trajectories[at].rollout): (group, at) for group, at in recorded
        }
        logged = answers.samples.all(source)
        episodes = [(sample, by_key.get(records.episode_key(sample))) for sample in logged.samples]
        notes += [Note("episodes_not_requested", count=logged.not_asked)] if logged.not_asked else []
        notes += [f"omitted {logged.unreadable} unreadable lines of {SAMPLES}"] if logged.unreadable else []
        if only:
            episodes = [episode for episode in episodes if episode[1] is not None]
            notes.append(
                f"the log's score covers {counted(len(episodes), 'selected episode')}, not the whole evaluation"
            )
    if not episodes:
        raise ConfigError(f"--export: {source.name} contains no selected episode")
    players = dict[tuple[bool, str], list[Episode]]()
    for episode in episodes:
        players.setdefault((episode[0].baseline, episode[0].player), []).append(episode)
    return [_log_of(answers, source, group, notes) for _, group in sorted(players.items(), key=itemgetter(0))]


def episode_lines(
    answers: ViewerApi, source: Source, only: Sequence[EpisodeIndex], step: str | None, made: EpisodeForm
) -> Content:
    """Recorded episodes in a form of other tools, a line each. Raises ConfigError without any."""
    steps = answers.get(f"/api/runs/{source.key}/steps")
    recorded, notes = recorded_episodes(answers, source, steps, step, only)
    codec, model = answers.decoders.of(source).codec, answers.facts.model(source) or "unknown"
    data = b"".join(to_json(made(group, index, codec, model)) + b"\n" for group, index in recorded)
    return Content(data, len(recorded), notes)


def recorded_episodes(
    answers: ViewerApi, source: Source, steps: Sequence[int | str], step: str | None, only: Sequence[EpisodeIndex]
) -> tuple[list[Recorded], list[str]]:
    """Episodes of one of the recorded steps, and what was left out. Raises ConfigError without a record."""
    chosen = chosen_step(source, steps, step)
    if chosen is None:
        raise ConfigError(f"--export: {source.name} has no record of episodes")
    index = answers.records.index(source, chosen)
    rows = index.rows()
    check_places(only, rows.rows)
    episodes, notes = list[Recorded](), [rows.torn] if rows.torn else []
    notes += [f"this file has the episodes of step {chosen} only"] if len(steps) > 1 else []
    places = sorted(only or [(row["group"], row["rollout"]) for row in rows.rows])
    for number, rollouts in groupby(places, key=lambda pair: pair[0]):
        try:
            group = index.group(number)
        except PalimpsestError as error:
            notes.append(left_out(f"group {number}", error))
            continue
        episodes += [(group, rollout) for _, rollout in rollouts]
    return episodes, notes


def _log_of(answers: ViewerApi, source: Source, episodes: Sequence[Episode], notes: Sequence[str]) -> Content:
    facts, samples = answers.facts, [sample for sample, _ in episodes]
    model, cell = facts.model(source) or "unknown", samples[0].cell
    player = records.player_of(cell, {})
    held = {records.episode_key(sample) for sample, recorded in episodes if recorded is not None}
    left = [*notes, *records.unrecorded(samples, held, "and have a score without messages")]
    status = (
        _STATUS.get(facts.row(source)["status"], "cancelled") if source.kind is SourceKind.EVALUATION else "success"
    )
    task = f"{source.name}, {cell.player}" if cell.player else source.name
    log = inspect_log(episodes, answers.decoders.of(source).codec, task, model, updated(source) or 0.0, status)
    metadata = {"player": player, "left_out": left}
    log["eval"]["metadata"] = storable(metadata, [])
    values = [sample.value for sample in samples if sample.value is not None]
    return Content(inspect_archive(log), len(samples), left, player, fmean(values) if values else None)


def sample_of(group: Group, index: int) -> Sample:
    """The sample that an evaluation would log for a recorded episode."""
    problem, trajectory, grade = group.problem, group.trajectories[index], group.grades[index]
    return Sample(
        set="",
        player="",
        id=trajectory.group_id,
        question=problem.question,
        answers=tuple(problem.answers),
        answer=trajectory.answer,
        memory=None,
        outcome=str(trajectory.outcome),
        value=grade.value,
        reason=grade.reason,
        length=None,
        turns=len(trajectory.turns),
        prompt_tokens=trajectory.prompt_tokens,
        sampled_tokens=trajectory.sampled_tokens,
        metrics=dict(grade.breakdown),
        draw=trajectory.rollout if isinstance(trajectory.rollout, int) else index,  # text: not a JSON number
    )


def inspect_log(
    episodes: Sequence[Episode], codec: Codec, task: str, model: str, written: float, status: str = "success"
) -> dict[str, Any]:
    """An EvalLog as JSON; `written`: time of the record in seconds since 1970."""
    samples = [_sample(*episode, codec, model) for episode in episodes]
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    key, at = _id(task, model, *ids), datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")
    usage = _usage([sample for sample, _ in episodes])
    return {
        "version": 2,
        "status": status,
        "eval": {
            "eval_id": key,
            "run_id": key,
            "created": at,
            "task": task,
            "task_id": key,
            "task_version": 0,
            "task_args": {},
            "model": model,
            "model_args": {},
            "packages": {"palimpsest": __version__},
            "dataset": {"name": task, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "config": {"epochs": max((sample["epoch"] for sample in samples), default=1)},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {"total_samples": len(samples), "completed_samples": len(samples), "scores": _results(episodes)},
        "stats": {"started_at": at, "completed_at": at, "model_usage": {model: usage} if episodes else {}},
        "samples": samples,
    }


def _results(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """The mean over all graded episodes, and over each of several parts; empty without graded episodes."""
    by_part: dict[str, list[float]] = {}
    for sample, _ in episodes:
        if sample.value is not None:
            by_part.setdefault(cell_at_length(sample).part, []).append(sample.value)
    values = [value for part in by_part.values() for value in part]
    if not values:
        return []
    metrics = {"mean": {"name": "mean", "value": fmean(values), "params": {}}}
    for part, scores in by_part.items() if len(by_part) > 1 else ():
        metrics[part] = {"name": part, "group": "mean of a part", "value": fmean(scores), "params": {}}
    counts = {"scored_samples": len(values), "unscored_samples": len(episodes) - len(values)}
    return [{"name": "reward", "scorer": "reward", "params": {}, **counts, "metrics": metrics}]


def _sample(sample: Sample, recorded: Recorded | None, codec: Codec, model: str) -> dict[str, Any]:
    turns = recorded[0].trajectories[recorded[1]].turns if recorded else ()
    name, epoch = sample.group_id if sample.set else sample.id, sample.draw + 1
    message = {"role": "assistant", "content": sample.answer or "", "source": "generate", "model": model}
    stop = _STOPS.get(turns[-1].completion.stop_reason, "unknown") if turns else "unknown"
    choices = [] if sample.answer is None and not turns else [{"message": message, "stop_reason": stop}]
    return {
        "id": _file_name(name),
        "epoch": epoch,
        "input": sample.question,
        "target": list(sample.answers),
        "messages": [message for turn in turns for message in _messages(turn, codec, model, (name, epoch))],
        "output": {"model": model, "choices": choices},
        "scores": {} if sample.value is None else {"reward": {"value": sample.value, "answer": sample.answer}},
        "metadata": storable(_metadata(sample, recorded), []),
        "store": {},
        "events": [],
        "model_usage": {model: _usage([sample])},
        "attachments": {},
    }


def _messages(turn: Turn, codec: Codec, model: str, key: tuple[str, int]) -> Iterator[dict[str, Any]]:
    prompt, reply = codec.decode(turn.prompt_ids), codec.decode(turn.completion.token_ids, control=False)
    ids = [_id(*key, turn.step, name) for name in ("prompt", "reply")]
    yield {"id": ids[0], "role": "user", "content": prompt, "source": "input"}
    yield {"id": ids[1], "role": "assistant", "content": reply, "source": "generate", "model": model}


def _metadata(sample: Sample, recorded: Recorded | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"outcome": sample.outcome, "reason": sample.reason, "breakdown": dict(sample.metrics)}
    if recorded is not None:
        group, trajectory = recorded[0], recorded[0].trajectories[recorded[1]]
        events = [{"kind": event.kind, "before_turn": event.before_turn, **event.detail} for event in trajectory.events]
        metadata |= {"group_id": trajectory.group_id, "problem": dict(group.problem.metadata), "events": events}
    if sample.set:
        metadata |= {**asdict(sample.cell), "turns": sample.turns}
        metadata |= {"measures": dict(sample.measures), "recorded": recorded is not None}
    return metadata


def inspect_archive(log: dict[str, Any]) -> bytes:
    """The log as an `.eval` file."""
    header = {name: value for name, value in log.items() if name != "samples"}
    start = {name: header[name] for name in ("version", "eval", "plan")}
    names = ("id", "epoch", "input", "target", "scores")
    summaries = [
        {name: sample[name] for name in names} | {"metadata": {}, "completed": True} for sample in log["samples"]
    ]
    files = {"_journal/start.json": start, "header.json": header, "summaries.json": summaries}
    files |= {f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in log["samples"]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, to_json(value))
    return buffer.getvalue()


def _usage(samples: Sequence[Sample]) -> dict[str, int]:
    read, sampled = sum(sample.prompt_tokens for sample in samples), sum(sample.sampled_tokens for sample in samples)
    return {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled}


def _file_name(name: str) -> str:
    """`name` as a part of a file's name, unlike that of any other.

    >>> _file_name("musique-7"), _file_name("a/b")[:4]
    ('musique-7', 'a_b-')
    """
    safe = "".join(c if c.isalnum() or c in " .-_,@#" else "_" for c in name)
    return safe if safe == name else f"{safe}-{_id(name)}"


def _id(*fields: object) -> str:
    return hashlib.blake2b(repr(fields).encode("utf-8", "replace"), digest_size=11).hexdigest()
