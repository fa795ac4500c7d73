"""Evaluation runner: plays every problem as often as requested, grades, logs each episode, summarises.

Guaranteed: every problem is counted (see `summary`); at most `concurrency` episodes are in flight, and with those not
recorded yet at most twice as many; a document of a file is read when its episode starts, so memory does not grow with
the number of problems; a rerun on the same folder plays only problems without a grade; results do not depend on the
order in which episodes end; the first sample of a problem is the same for any number of samples; a logged episode never
counts for a problem whose question, golds or document changed since.
Not covered: changes of a problem's metadata, and of the document of a line from an earlier version, which has no
fingerprint.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.fingerprints import document_digest
from palimpsest.data.sources.file_source import outlines
from palimpsest.engines.protocol import Sampler
from palimpsest.errors import DataError, RunError
from palimpsest.evaluation.episode_files import EpisodeFile
from palimpsest.evaluation.sample_log import AskedSet, Sample, SampleKey, SampleLog, write_asked
from palimpsest.evaluation.summary import EvalSummary, summarise
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.metrics.reading_trace import GroupTexts, last_memory
from palimpsest.reward.grading import Grades, by_question, graded
from palimpsest.rollout.episode import Roles, failure, play
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory

Measure = Callable[[Problem, Trajectory, Grade, GroupTexts], Mapping[str, float]]
OnProgress = Callable[[Sample], None]
Samples = Mapping[SampleKey, Sample]
"""By name of the set, id of the problem and number of the draw."""


@dataclass(frozen=True, slots=True)
class EvalSet:
    """Problems to be played with one policy, under one name in log and summary."""

    name: str
    problems: Sequence[Problem]
    policy: MemoryPolicy
    samples: int = 1
    """Episodes of each problem; the draws of each are its own."""
    baseline: str | None = None
    """The name of the baseline that plays; None: the agent."""

    @property
    def keys(self) -> Iterator[SampleKey]:
        """Those of its samples."""
        return ((self.name, each.id, draw) for each in outlines(self.problems) for draw in range(self.samples))


@dataclass(frozen=True, slots=True)
class Arena:
    """What the episodes of an evaluation have in common."""

    sampler: Sampler
    codec: Codec
    grader: Grades
    sampling: SamplingConfig
    key: tuple[Key, ...]
    """The draws of an episode are keyed by (*key, name of its set, problem, number of the sample, turn)."""
    timeout_s: float | None = None
    retries: int = 2
    measure: Measure | None = None
    roles: Roles | None = None
    """That turns may have."""
    episodes: EpisodeFile | None = None
    """Where episodes are written token for token."""


async def evaluate(
    *,
    problems: Sequence[Problem],
    policy: MemoryPolicy,
    sampler: Sampler,
    codec: Codec,
    grader: Grades,
    sampling: SamplingConfig,
    out: Path | None = None,
    key: tuple[Key, ...] = (0,),
    concurrency: int = 64,
    name: str = "eval",
    identity: Mapping[str, Any] | None = None,
    measure: Measure | None = None,
    roles: Roles | None = None,
    on_progress: OnProgress | None = None,
) -> EvalSummary:
    """Play `problems` once each with `policy` and summarise; samples are logged in `out` if it is given.

    Raises DataError if two problems share an id, RunError if `out` belongs to another evaluation.
    """
    arena = Arena(sampler=sampler, codec=codec, grader=grader, sampling=sampling, key=key, measure=measure, roles=roles)
    summaries = await evaluate_sets(
        [EvalSet(name, problems, policy)],
        arena,
        out=out,
        concurrency=concurrency,
        identity=identity,
        on_progress=on_progress,
    )
    return summaries[0]


async def evaluate_sets(
    sets: Sequence[EvalSet],
    arena: Arena,
    *,
    out: Path | None = None,
    concurrency: int = 64,
    identity: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> list[EvalSummary]:
    """Several evaluations in one pool of episodes, begun in the order given; summaries in that order.

    Give the sets with the longest documents first: short episodes then fill the batch beside them.
    """
    samples = await play_sets(
        sets,
        arena,
        out=out,
        concurrency=concurrency,
        identity=identity,
        on_progress=on_progress,
        on_warning=on_warning,
    )
    return summaries_of(sets, samples)


async def play_sets(
    sets: Sequence[EvalSet],
    arena: Arena,
    *,
    out: Path | None = None,
    concurrency: int = 64,
    identity: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Samples:
    """The sample of every problem of `evaluate_sets`, those that `out` held already included.

    Raises RunError if `out` belongs to another evaluation, or holds episodes of data that changed since.
    """
    _refuse_repeated_ids(sets)
    concurrency = min(concurrency, sum(len(each.problems) * each.samples for each in sets))
    if out is None:
        return await _play_all(_jobs(sets, {}), arena, concurrency, on_progress)
    with SampleLog(out, identity) as log:
        await asyncio.to_thread(refuse_changed_data, out, sets, log.finished)
        write_asked(out, {each.name: AskedSet(each.samples, (p.id for p in outlines(each.problems))) for each in sets})
        if log.unreadable and on_warning is not None:
            on_warning(f"{log.path}: lines that can't be read: {log.unreadable}; what they told is played again")

        if log.other_versions and log.finished and on_warning is not None:
            on_warning(
                f"{out}: its episodes were played under other versions or on another machine ({log.other_versions}): "
                "the rest may round differently"
            )

        def finish(sample: Sample) -> None:
            log.append(sample)
            if on_progress is not None:
                on_progress(sample)

        played = await _play_all(_jobs(sets, log.finished), arena, concurrency, finish)
        return {**log.finished, **played}


Job = tuple[EvalSet, Problem, int]
"""An episode to be played: of which set, which problem, which sample of it."""


def _jobs(sets: Sequence[EvalSet], finished: Samples) -> Iterator[Job]:
    for group in sets:
        for place, outline in enumerate(outlines(group.problems)):
            draws = [draw for draw in range(group.samples) if (group.name, outline.id, draw) not in finished]
            if draws:
                problem = group.problems[place]  # with its document
                yield from ((group, problem, draw) for draw in draws)


class _Records:
    """What ended, recorded an episode at a time, so that nobody's next request waits for more than that."""

    def __init__(self, arena: Arena, finish: OnProgress | None) -> None:
        self.samples: dict[SampleKey, Sample] = {}
        self._arena, self._finish = arena, finish
        self.ended: asyncio.Queue[Ended | None] = asyncio.Queue()
        """None: a worker has no more."""

    async def run(self, workers: int, room: asyncio.Semaphore) -> None:
        """Until so many workers have no more; makes room for an episode with each."""
        while workers:
            episode = await self.ended.get()
            if episode is None:
                workers -= 1
                continue
            self._record(episode)
            room.release()
            await asyncio.sleep(0)  # whatever has come meanwhile goes first

    def rest(self) -> None:
        """Record what still lies there."""
        while not self.ended.empty():
            if (episode := self.ended.get_nowait()) is not None:
                self._record(episode)

    def _record(self, episode: Ended) -> None:
        sample = _recorded(episode, self._arena)
        self.samples[sample.key] = sample
        if self._finish is not None:
            self._finish(sample)


async def _play_all(
    jobs: Iterator[Job], arena: Arena, concurrency: int, finish: OnProgress | None
) -> dict[SampleKey, Sample]:
    """Workers draw from one iterator: a place freed by a short episode is taken at once. However this ends, no episode
    that was graded is lost."""
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


async def _play_one(group: EvalSet, problem: Problem, draw: int, arena: Arena) -> Ended:
    trajectory = await play(
        problem,
        policy=group.policy,
        sampler=arena.sampler,
        codec=arena.codec,
        sampling=arena.sampling,
        key=(*arena.key, group.name),
        group_id=f"{group.name}/{problem.id}",
        rollout=draw,
        timeout_s=arena.timeout_s,
        retries=arena.retries,
        roles=arena.roles,
    )
    grade = await graded(arena.grader, problem, trajectory)
    return Ended(group.name, group.baseline, problem, trajectory, grade)


def _recorded(episode: Ended, arena: Arena) -> Sample:
    """Write an episode where episodes are written, and say what it comes to."""
    played, texts = (episode.problem, episode.trajectory, episode.grade), GroupTexts(arena.codec)
    if arena.episodes is not None:
        arena.episodes.add(*played)
    return sample_of(episode, {} if arena.measure is None else arena.measure(*played, texts), texts)


def summaries_of(sets: Sequence[EvalSet], samples: Samples) -> list[EvalSummary]:
    """The figures of each set."""
    return [summarise(each.name, [samples[key] for key in each.keys], drawn=each.samples) for each in sets]


def _refuse_repeated_ids(sets: Sequence[EvalSet]) -> None:
    names = Counter(group.name for group in sets)
    seen = Counter((group.name, each.id) for group in sets for each in outlines(group.problems))
    for (name, problem_id), times in seen.items():
        if times > 1:
            raise DataError(f"problem {problem_id} occurs {times} times in {name}: give every problem an id of its own")
    for name, times in names.items():
        if times > 1:
            raise DataError(f"{times} evaluations are called {name}: give each a name of its own")


# ---- Log line of an episode ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """One that was played and graded."""

    name: str
    """Of its set."""
    baseline: str | None
    """The name of the baseline that played; None: the agent."""
    problem: Problem
    trajectory: Trajectory
    grade: Grade


def _reason(trajectory: Trajectory, grade: Grade) -> str:
    """Why there is no grade, with the error of an episode that was lost to one."""
    reason = grade.reason or str(trajectory.outcome)
    error = None if trajectory.outcome.gradable else failure(trajectory)
    return reason if error is None else f"{reason} ({error})"


def sample_of(episode: Ended, measures: Mapping[str, float], texts: GroupTexts) -> Sample:
    """The line of the log."""
    problem, trajectory, grade = episode.problem, episode.trajectory, episode.grade
    memory = last_memory(trajectory, texts)
    return Sample(
        name=episode.name,
        id=problem.id,
        question=problem.question,
        answers=problem.answers,
        answer=trajectory.answer,
        memory=None if memory is None else memory.text,
        outcome=str(trajectory.outcome),
        value=grade.value,
        reason=grade.reason if grade.value is not None else _reason(trajectory, grade),
        size=_size(problem),
        turns=len(trajectory.turns),
        prompt_tokens=sum(len(turn.prompt_ids) for turn in trajectory.turns),
        sampled_tokens=sum(len(turn.completion.token_ids) for turn in trajectory.turns),
        metrics=dict(grade.breakdown),
        measures=dict(measures),
        events=dict(Counter(event.kind for event in trajectory.events)),
        questions=_questions(problem, trajectory, grade) if problem.questions else [],
        document=document_digest(problem.context) if problem.context else None,
        draw=trajectory.rollout,
        baseline=episode.baseline,
    )


def _questions(problem: Problem, trajectory: Trajectory, grade: Grade) -> list[dict[str, Any]]:
    """What was asked, is right, was answered, and is worth (None where the episode is ungraded)."""
    pairs = by_question(problem, trajectory)
    return [
        {
            "question": asked.question,
            "answers": list(asked.answers),
            "answer": answered.answer,
            "value": grade.breakdown.get(f"question_{number}"),
        }
        for number, (asked, answered) in enumerate(pairs, 1)
    ]


def _size(problem: Problem) -> int | None:
    """Chunks or documents; a file may use these names for something else."""
    counts = (problem.metadata.get(key) for key in ("chunks", "num_docs"))
    return next((count for count in counts if type(count) is int), None)


# ---- Check for changed data ----------------------------------------------------------------------------------


def refuse_changed_data(folder: Path, sets: Sequence[EvalSet], finished: Samples) -> None:
    """Raise RunError where `finished` holds an episode of another question, other golds or another document."""
    counts = {"questions": 0, "golds": 0, "documents": 0}
    first, played = None, 0
    digests: dict[tuple[int, int], str | None] = {}
    for group in sets:
        for place, outline in enumerate(outlines(group.problems)):
            keys = [(group.name, outline.id, draw) for draw in range(group.samples)]
            for sample in (finished[key] for key in keys if key in finished):
                if sample.document is not None and (at := (id(group.problems), place)) not in digests:
                    context = group.problems[place].context
                    digests[at] = None if context is None else document_digest(context)
                document = sample.document and digests[id(group.problems), place]
                others = _others(sample, outline, document)
                played, first = played + 1, first or (outline.id if others else None)
                for part in others:
                    counts[part] += 1
    if first is not None:
        raise RunError(_told(folder, counts, played, first))


def _others(sample: Sample, problem: Problem, document: str | None) -> list[str]:
    """The parts of `problem` that `sample` did not play."""
    asked = [(each["question"], each["answers"]) for each in sample.questions] or [(sample.question, sample.answers)]
    was = {"questions": [question for question, _ in asked], "golds": [list(golds) for _, golds in asked]}
    now = {
        "questions": [_logged(each.question) for each in problem.by_question],
        "golds": [[_logged(gold) for gold in each.answers] for each in problem.by_question],
    }
    return [part for part in was if was[part] != now[part]] + ["documents"] * (sample.document != document)


def _logged(text: str) -> str:
    """As a line of the log has it: lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()


def _told(folder: Path, counts: dict[str, int], played: int, first: str) -> str:
    parts = ", ".join(f"{part} of {count}" for part, count in counts.items() if count)
    return (
        f"{folder}: the data changed since its episodes were played ({parts} of {played} episodes, problem {first} "
        f"the first): give another --out, or --force to move the folder aside and play again"
    )
