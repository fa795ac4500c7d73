"""Evaluation runner: runs the episodes of every problem, grades and logs each episode, summarises.

Guaranteed: every problem is counted (see `summary`); at most `concurrency` episodes are in flight, and at most twice
as many including unrecorded ones; a document of a file is read when its episode starts, so memory does not grow with
the number of problems; a rerun on the same folder runs only problems without a grade; results do not depend on the
order in which episodes end; the first sample of a problem is the same for any number of samples; a logged episode
never counts for a problem whose question, golds or document changed since.
Not covered: changes of a problem's metadata.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.sources.file_source import outlines
from palimpsest.engines.protocol import Sampler
from palimpsest.errors import DataError, RunError
from palimpsest.evaluation.episode_files import EpisodeFile
from palimpsest.evaluation.sample_log import Cell, Sample, SampleKey, SampleLog, group_id, write_request
from palimpsest.evaluation.summary import EvalSummary, summarise
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.metrics.reading_trace import GroupTexts, last_memory
from palimpsest.provenance import document_digest
from palimpsest.reward.grading import Grades, by_question, graded
from palimpsest.rollout.episode import Roles, failure, play
from palimpsest.rollout.speculation import Speculation
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.types import Grade, Problem, Trajectory

Measure = Callable[[Problem, Trajectory, Grade, GroupTexts], Mapping[str, float]]
OnSample = Callable[[Sample], None]
Samples = Mapping[SampleKey, Sample]


@dataclass(frozen=True, slots=True)
class Entry:
    """Problems of one cell and the policy that runs them."""

    cell: Cell
    policy: MemoryPolicy
    problems: Sequence[Problem]
    samples: int = 1
    """Episodes per problem, each with separate random draws."""
    fits_window: int | None = None
    """Problems of the part whose document fits the model's window; None: unknown."""
    part_problems: int | None = None
    """Problems of the part, if this entry has only some of them."""

    @property
    def keys(self) -> Iterator[SampleKey]:
        return ((self.cell, problem.id, draw) for problem in outlines(self.problems) for draw in range(self.samples))

    def longest_first(self) -> tuple[int, int]:
        """Sort key: length of the first problem's document, or of its question without a document, longest first."""
        first = self.problems[0] if self.problems else None
        if first is None:
            return 0, 0
        return (-len(first.context), 0) if first.context is not None else (0, -len(first.question))


@dataclass(frozen=True, slots=True)
class Arena:
    """Settings that all episodes of an evaluation share."""

    sampler: Sampler
    codec: Codec
    grader: Grades
    sampling: SamplingConfig
    key: tuple[Key, ...]
    """Random draws of an episode are keyed by (*key, title of the cell, problem, number of the sample, turn)."""
    measure: Measure | None = None
    roles: Roles | None = None
    episodes: EpisodeFile | None = None
    """Record of episodes, token for token."""
    speculation: Speculation | None = None
    environment: OpenEnvironment | None = None


async def play_entries(
    entries: Sequence[Entry],
    arena: Arena,
    *,
    out: Path | None = None,
    concurrency: int = 64,
    identity: Mapping[str, Any] | None = None,
    on_sample: OnSample | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Samples:
    """Run the missing episodes and return the sample of every problem, including those already in the log in `out`.

    All entries share one pool of at most `concurrency` episodes. The longest documents start first, so that short
    episodes fill the batch next to them.

    Raises DataError if two problems of a cell share an id, RunError if `out` contains another evaluation, or episodes
    of data that changed since.
    """
    _refuse_repeated(entries)
    entries = sorted(entries, key=Entry.longest_first)
    concurrency = min(concurrency, sum(len(entry.problems) * entry.samples for entry in entries))
    if out is None:
        return await _play_all(_jobs(entries, {}), arena, concurrency, on_sample)
    with SampleLog(out, identity) as log:
        await asyncio.to_thread(refuse_changed_data, out, entries, log.finished)
        write_request(out, ((entry.cell, entry.samples, (p.id for p in outlines(entry.problems))) for entry in entries))
        if on_warning is not None:
            for warning in log.warnings:
                on_warning(warning)

        def finish(sample: Sample) -> None:
            log.append(sample)
            if on_sample is not None:
                on_sample(sample)

        played = await _play_all(_jobs(entries, log.finished), arena, concurrency, finish)
        return {**log.finished, **played}


Job = tuple[Entry, Problem, int]
"""Entry, problem and number of the sample of an episode to run."""


def _jobs(entries: Sequence[Entry], finished: Samples) -> Iterator[Job]:
    for entry in entries:
        for index, outline in enumerate(outlines(entry.problems)):
            draws = [draw for draw in range(entry.samples) if (entry.cell, outline.id, draw) not in finished]
            if draws:
                problem = entry.problems[index]  # with its document
                yield from ((entry, problem, draw) for draw in draws)


class _Records:
    """Records ended episodes one at a time, so that no request waits longer than one recording."""

    def __init__(self, arena: Arena, finish: OnSample | None) -> None:
        self.samples: dict[SampleKey, Sample] = {}
        self._arena, self._finish = arena, finish
        self.ended: asyncio.Queue[Ended | None] = asyncio.Queue()
        """None: a worker has no more."""

    async def run(self, workers: int, room: asyncio.Semaphore) -> None:
        """Record until all `workers` have finished; every recorded episode frees a slot of `room`."""
        while workers:
            episode = await self.ended.get()
            if episode is None:
                workers -= 1
                continue
            try:
                await asyncio.sleep(0)  # lets waiting requests run first
            finally:
                self._record(episode)
            room.release()

    def rest(self) -> None:
        while not self.ended.empty():
            if (episode := self.ended.get_nowait()) is not None:
                self._record(episode)

    def _record(self, episode: Ended) -> None:
        sample = _recorded(episode, self._arena)
        self.samples[sample.key] = sample
        if self._finish is not None:
            self._finish(sample)


async def _play_all(
    jobs: Iterator[Job], arena: Arena, concurrency: int, finish: OnSample | None
) -> dict[SampleKey, Sample]:
    """Run jobs in `concurrency` workers that share one iterator. Records graded episodes even on an error."""
    records, room = _Records(arena, finish), asyncio.Semaphore(2 * concurrency)

    async def worker() -> None:
        for job in jobs:
            await room.acquire()
            records.ended.put_nowait(await _play_one(*job, arena))
        records.ended.put_nowait(None)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(records.run(concurrency, room))
            for _ in range(concurrency):
                tasks.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others were cancelled because of it
    finally:
        records.rest()
    return records.samples


async def _play_one(entry: Entry, problem: Problem, draw: int, arena: Arena) -> Ended:
    trajectory = await play(
        problem,
        policy=entry.policy,
        sampler=arena.sampler,
        codec=arena.codec,
        sampling=arena.sampling,
        key=(*arena.key, entry.cell.title),
        group_id=group_id(entry.cell, problem.id),
        rollout=draw,
        roles=arena.roles,
        speculation=arena.speculation,
        environment=arena.environment,
    )
    return Ended(entry.cell, problem, trajectory, await graded(arena.grader, problem, trajectory))


def _recorded(episode: Ended, arena: Arena) -> Sample:
    played, texts = (episode.problem, episode.trajectory, episode.grade), GroupTexts(arena.codec)
    if arena.episodes is not None:
        arena.episodes.add(*played, (*arena.key, episode.cell.title))
    return sample_of(episode, {} if arena.measure is None else arena.measure(*played, texts), texts)


def summaries_of(entries: Sequence[Entry], samples: Samples) -> list[EvalSummary]:
    return [
        summarise(
            entry.cell,
            [samples[key] for key in entry.keys],
            drawn=entry.samples,
            fits_window=entry.fits_window,
            part_problems=entry.part_problems,
        )
        for entry in entries
    ]


def _refuse_repeated(entries: Sequence[Entry]) -> None:
    cells = Counter(entry.cell for entry in entries)
    occurrences = Counter((entry.cell, outline.id) for entry in entries for outline in outlines(entry.problems))
    for (cell, problem), times in occurrences.items():
        if times > 1:
            where = f"problem {problem} occurs {times} times in {cell.part}"
            raise DataError(f"{where}: use unique ids")
    for cell, times in cells.items():
        if times > 1:
            raise DataError(f"{times} evaluations are called {cell.title}: use unique names")


# ---- Log line of an episode ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """An episode that ran and was graded."""

    cell: Cell
    problem: Problem
    trajectory: Trajectory
    grade: Grade


def _reason(trajectory: Trajectory, grade: Grade) -> str:
    reason = grade.reason or str(trajectory.outcome)
    error = None if trajectory.outcome.gradable else failure(trajectory)
    return reason if error is None else f"{reason} ({error})"


def sample_of(episode: Ended, measures: Mapping[str, float], texts: GroupTexts) -> Sample:
    problem, trajectory, grade = episode.problem, episode.trajectory, episode.grade
    memory = last_memory(trajectory, texts)
    return Sample(
        **asdict(episode.cell),
        id=problem.id,
        question=problem.question,
        answers=problem.answers,
        answer=trajectory.answer,
        memory=None if memory is None else memory.text,
        outcome=str(trajectory.outcome),
        value=grade.value,
        reason=grade.reason if grade.value is not None else _reason(trajectory, grade),
        length=_length(problem),
        turns=len(trajectory.turns),
        prompt_tokens=trajectory.prompt_tokens,
        sampled_tokens=trajectory.sampled_tokens,
        metrics=dict(grade.breakdown),
        measures=dict(measures),
        events=dict(Counter(event.kind for event in trajectory.events)),
        questions=_questions(problem, trajectory, grade) if problem.questions else [],
        document=document_digest(problem.context) if problem.context else None,
        draw=trajectory.rollout,
        grading=problem.grading,
    )


def _questions(problem: Problem, trajectory: Trajectory, grade: Grade) -> list[dict[str, Any]]:
    """Rows of a problem's questions: question, golds, answer and value (None if ungraded)."""
    pairs = by_question(problem, trajectory)
    return [
        {
            "question": question.question,
            "answers": list(question.answers),
            "answer": reply.answer,
            "value": grade.breakdown.get(f"question_{number}"),
        }
        for number, (question, reply) in enumerate(pairs, 1)
    ]


def _length(problem: Problem) -> int | None:
    counts = (problem.metadata.get(key) for key in ("chunks", "num_docs"))
    return next((count for count in counts if type(count) is int), None)


# ---- Check for changed data ----------------------------------------------------------------------------------


def refuse_changed_data(folder: Path, entries: Sequence[Entry], finished: Samples) -> None:
    """Raise RunError if `finished` contains an episode with another question, other golds or another document."""
    counts = {"questions": 0, "golds": 0, "documents": 0}
    first, played = None, 0
    digests: dict[tuple[int, int], str | None] = {}
    for entry in entries:
        for index, outline in enumerate(outlines(entry.problems)):
            keys = [(entry.cell, outline.id, draw) for draw in range(entry.samples)]
            for sample in (finished[key] for key in keys if key in finished):
                if (at := (id(entry.problems), index)) not in digests:
                    context = entry.problems[index].context
                    digests[at] = document_digest(context) if context else None
                changed = _changes(sample, outline, digests[at])
                played, first = played + 1, first or (outline.id if changed else None)
                for part in changed:
                    counts[part] += 1
    if first is not None:
        raise RunError(_changed_data_message(folder, counts, played, first))


def _changes(sample: Sample, problem: Problem, document: str | None) -> list[str]:
    questions = [(row["question"], row["answers"]) for row in sample.questions] or [(sample.question, sample.answers)]
    was = {"questions": [question for question, _ in questions], "golds": [list(golds) for _, golds in questions]}
    now = {
        "questions": [_logged(question.question) for question in problem.by_question],
        "golds": [[_logged(gold) for gold in question.answers] for question in problem.by_question],
    }
    return [part for part in was if was[part] != now[part]] + ["documents"] * (sample.document != document)


def _logged(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _changed_data_message(folder: Path, counts: dict[str, int], played: int, first: str) -> str:
    changes = ", ".join(f"{part} of {count}" for part, count in counts.items() if count)
    return (
        f"{folder}: the data changed after its episodes ran ({changes} of {played} episodes, first problem: {first}): "
        f"use another --out, or --force to rename the folder and start over"
    )
