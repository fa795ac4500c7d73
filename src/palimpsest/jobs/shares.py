"""Evaluation, and other work, shared between processes, each with an engine of its own.

A share is every n-th problem of some sets. How problems are dealt out, and so which sequences are batched together,
depends on the configuration alone, never on which process is faster: the same configuration gives the same answers.

Guaranteed: a share that was interrupted goes on where its log ends, with more or fewer problems if the configuration
now says so; a log of other weights, policies, data or sampling is set aside and the share played anew; a helper ends
with its parent, however that ends; an error in a helper is raised in the parent.
Not covered: more processes than cores, which is slower and nothing worse; a resumed share is batched differently,
so near ties of greedy decoding may fall otherwise by as much as the sampler's results depend on the batch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from palimpsest.config.load import parse_config
from palimpsest.config.models import model_path
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.open import open_engine, using
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.evaluate.run import Arena, EvalSet, Measure, evaluate_sets
from palimpsest.evaluate.samples import SAMPLES, Sample, read_samples, set_aside_other
from palimpsest.jobs.evaluation import longest_first, measure_memory, weights_fingerprint
from palimpsest.jobs.methods import METHODS
from palimpsest.jobs.show import note
from palimpsest.measures.memory import reply_metrics
from palimpsest.measures.tools import tool_measures
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.reward.compose import build_reward
from palimpsest.reward.grading import closing
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Group, Problem, Trajectory

_PATIENCE_S = 5.0  # for a helper to end by itself
_MEASURED_TURNS = 100  # reading every prompt of longer episodes would cost more than playing them


@dataclass(frozen=True, slots=True)
class Share:
    """Share `index` of `count` of an evaluation of some policies on one set of weights."""

    config: str
    """The run configuration as YAML."""
    model: str
    policies: tuple[str, ...]
    """Names of `evaluation.baselines` or `evaluation.rivals`; any other is the configured policy."""
    folder: Path
    index: int
    count: int
    method: str = "memagent"

    @property
    def path(self) -> Path:
        return self.folder / f"share-{self.index + 1}-of-{self.count}"

    def episodes(self, config: RunConfig) -> int:
        """Episodes to play, finished ones included."""
        each = len(range(self.index, config.evaluation.problems, self.count))
        return each * len(self.policies) * len(METHODS[self.method].axis.points(config))

    def run(self, on_episode: Callable[[], None]) -> None:
        """Play it."""
        play_share(self, on_episode)


def set_name(policy: str, point: int) -> str:
    return f"{policy}@{point}"


def play_share(share: Share, on_episode: Callable[[], None]) -> None:
    """Play what the share's log does not hold yet."""
    config = parse_config(share.config)
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": share.model})})
    engine = open_engine(config, objective=None)
    sets = longest_first(_sets(share, config))
    for one in sets:
        admit_all(one.policy, list(one.problems), engine.codec, engine.sampler.max_context)
    reward = build_reward(config.reward, engine.codec, share.folder)
    arena = Arena(
        sampler=engine.sampler,
        codec=engine.codec,
        grader=reward.answer,
        sampling=config.eval_sampling,
        key=(config.seed, "quickstart"),
        measure=_measure(engine.codec),
    )
    concurrency = engine.limits.concurrency
    identity = {
        "weights": weights_fingerprint(model_path(config.model)),
        "policies": {name: _policy(name, config).model_dump(mode="json") for name in share.policies},
        "data": config.data.model_dump(mode="json"),
        "sampling": config.eval_sampling.model_dump(mode="json"),
        "seed": config.seed,
    }
    if aside := set_aside_other(share.path, identity):
        note(f"{aside}: played with other weights or settings than now, so set aside and played anew")
    played = evaluate_sets(
        sets,
        arena,
        out=share.path,
        concurrency=concurrency,
        identity=identity,
        on_progress=lambda _: on_episode(),
        on_warning=note,
    )
    asyncio.run(using(engine, closing(reward, played)))


def samples_of(shares: Sequence[Share]) -> dict[str, list[Sample]]:
    """Samples of finished shares by the name of their set, of the problems that the configuration asks for now."""
    found: dict[str, list[Sample]] = {}
    for share in shares:
        sets = _sets(share, parse_config(share.config))
        asked = {(one.name, problem.id) for one in sets for problem in one.problems}
        for sample in read_samples(share.path / SAMPLES)[0]:
            if (sample.name, sample.id) in asked:
                found.setdefault(sample.name, []).append(sample)
    return found


def _sets(share: Share, config: RunConfig) -> list[EvalSet]:
    axis = METHODS[share.method].axis
    sets = []
    for point in axis.points(config):
        problems = axis.problems(config, point)
        for name in share.policies:
            mine = problems[share.index :: share.count]
            sets.append(EvalSet(set_name(name, point), mine, build_policy(_policy(name, config))))
    return sets


def _policy(name: str, config: RunConfig) -> PolicyConfig:
    others = {**config.evaluation.rivals, **config.evaluation.baselines}
    return others.get(name, config.policy)


def _measure(codec: Codec) -> Measure:
    measure = measure_memory(codec)

    def measured(problem: Problem, trajectory: Trajectory, grade: Grade) -> Mapping[str, float]:
        if len(trajectory.turns) <= _MEASURED_TURNS:
            return measure(problem, trajectory, grade)
        asked = reply_metrics(Group(problem, (trajectory,), (grade,)), codec) | tool_measures(trajectory)
        return {name: value for name, value in asked.items() if value is not None}

    return measured


class Task(Protocol):
    """Work that can be handed to another process."""

    def run(self, on_episode: Callable[[], None]) -> None:
        """Do it, calling back after each episode of an evaluation."""
        ...


class Helper:
    """A second process that does the tasks it is handed, one after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the parent's torch threads in mid-air
        self._inbox: Any = context.SimpleQueue()
        self._results: Any = context.SimpleQueue()
        self._count: Any = context.Value("l", 0)
        self._handed = self._done = 0
        self._process: BaseProcess = context.Process(
            target=_serve, args=(self._inbox, self._results, self._count), daemon=True
        )
        self._process.start()

    @property
    def played(self) -> int:
        """Episodes played so far, of all shares."""
        return int(self._count.value)

    def hand(self, task: Task) -> int:
        """Queue a task; returns how many were handed so far."""
        self._handed += 1
        self._inbox.put(task)
        return self._handed

    def wait(self, on_wait: Callable[[], None], tasks: int | None = None, every_s: float = 0.5) -> None:
        """Until the first `tasks` are done, or all, calling `on_wait` meanwhile; raises what went wrong there."""
        wanted = self._handed if tasks is None else tasks
        while self._done < wanted:
            while not self._results.empty():
                self._done += 1
                if (failure := self._results.get()) is not None:
                    raise failure
            if self._done < wanted and not self._process.is_alive():
                raise RunError(
                    f"a helper process ended with exit code {self._process.exitcode}: run again with --resume"
                )
            on_wait()
            if self._done < wanted:
                self._process.join(every_s)

    def stop(self) -> None:
        """End the process, in the middle of a share if need be: its log stays usable."""
        self._process.terminate()
        self._process.join(_PATIENCE_S)
        self._process.kill()
        self._process.join()


def _leave_with_parent() -> None:
    """End this process when nobody is left to read its results: logs and run folders bear it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _serve(inbox: Any, results: Any, count: Any) -> None:
    """The helper's life. An interrupt is the parent's to handle: it decides what becomes of a run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # not the default: locks of libraries are to be released
    threading.Thread(target=_leave_with_parent, daemon=True).start()

    def on_episode() -> None:
        with count.get_lock():
            count.value += 1

    while True:
        task: Task = inbox.get()
        try:
            task.run(on_episode)
        except PalimpsestError as error:
            results.put(error)
        except Exception:  # noqa: BLE001  border of the process: the parent raises it, with the trace as its text
            results.put(RuntimeError("in a helper process:\n" + traceback.format_exc()))
        else:
            results.put(None)
