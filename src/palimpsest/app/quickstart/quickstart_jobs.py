"""Jobs of a quickstart (a shard of an evaluation, the training of a baseline) and the worker processes that run them.

A shard is every n-th problem of some players. Shards, and so the batched sequences, depend only on the configuration,
never on the speed of a process: the same configuration gives the same answers.

    parent    one line of JSON on the worker's stdin: class and fields of a job
    worker    lines of JSON on its stdout: {"part": 3}, {"message": TEXT}, at last {"done": true} or
              {"error": CLASS, "text": TEXT}

Each worker has its own engine. It imports the job's module and nothing of the caller's script (which `spawn` would run
again).

Guaranteed: an interrupted shard resumes from its log, with more or fewer problems if the configuration changed; a log
of other weights, policies, data or sampling is renamed and the shard starts over; the parent raises a job's error; a
worker that dies fails its job; a worker ends with its parent, even within a job; only the parent gets an interrupt of
the terminal.
Not covered: a resumed shard has other batches, so near ties of greedy decoding may differ as far as the sampler's
results depend on the batch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from palimpsest import errors
from palimpsest.app.config_resolution import on_embedded
from palimpsest.app.evaluate.evaluator import Evaluator, measure_memory
from palimpsest.app.quickstart.quickstart_plan import Grid
from palimpsest.app.train.run_setup import open_setup
from palimpsest.app.train.training_run import train_in_folder
from palimpsest.config.engine import SamplerConfig
from palimpsest.config.keys import with_keys
from palimpsest.config.load import parse_config
from palimpsest.engines.open import open_engine, using
from palimpsest.engines.protocol import Sampler
from palimpsest.errors import PalimpsestError, RunError
from palimpsest.evaluation.sample_log import SAMPLES, Cell, Sample, read_samples, set_aside_other
from palimpsest.memory.registry import admit_all
from palimpsest.provenance import evaluation_identity
from palimpsest.reward.grading import build_reward, closing
from palimpsest.rollout.speculation import Speculation
from palimpsest.runs.checkpoint import CHECKPOINTS, step_name
from palimpsest.runs.run_folder import open_run

# ---- Jobs in worker processes --------------------------------------------------------------------------------


_PATIENCE_S = 5.0  # between SIGTERM and SIGKILL
_LONGEST_LINE = 1 << 24


class JobReport(Protocol):
    """Progress reports of a running job."""

    def part(self, count: int = 1) -> None:
        """Report `count` more finished parts of the work, such as turns."""
        ...

    def message(self, text: str) -> None:
        """Report a line to show."""
        ...


class WorkerJob(Protocol):
    """Work for a process: a dataclass of JSON values in an importable module."""

    def run(self, report: JobReport) -> None:
        """Run the job."""
        ...


# ---- In the parent -------------------------------------------------------------------------------------------


class Worker:
    """A worker process, for one job at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Worker:
        """Start a process; it needs a few seconds."""
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "palimpsest.app.quickstart.quickstart_jobs"),
                stdin=PIPE,
                stdout=PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                limit=_LONGEST_LINE,
                process_group=0,  # the terminal's Ctrl-C is for the parent
            )
        )

    async def do(self, job: WorkerJob, report: JobReport) -> None:
        """Run `job` in the worker. Raises the job's error, and RunError if the process dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # a dead process shows when reading
            self._process.stdin.write(_line(job))
            await self._process.stdin.drain()
        async for line in self._process.stdout:
            match json.loads(line):
                case {"part": count}:
                    report.part(count)
                case {"message": text}:
                    report.message(text)
                case {"error": kind, "text": text}:
                    raise _as_raised(kind, text)
                case {"done": _}:
                    return
        code = await self._process.wait()
        raise RunError(f"a worker process ended with exit code {code}: run again with --resume")

    async def end(self) -> None:
        """End the process, even during a job."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _line(job: WorkerJob) -> bytes:
    assert dataclasses.is_dataclass(job)
    cls = type(job)
    values: dict[str, Any] = dataclasses.asdict(job)
    return json.dumps({"job": f"{cls.__module__}:{cls.__qualname__}", "values": values}).encode() + b"\n"


def _as_raised(kind: str, text: str) -> Exception:
    """The worker's exception: an error that the user can fix, or a bug with its traceback as the text."""
    cls = getattr(errors, kind, None)
    if isinstance(cls, type) and issubclass(cls, PalimpsestError):
        return cls(text)
    return RuntimeError("in a worker process:\n" + text)


# ---- In the worker -------------------------------------------------------------------------------------------


class _Answers:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, **values: Any) -> None:
        self._stream.write(json.dumps(values) + "\n")
        self._stream.flush()

    def part(self, count: int = 1) -> None:
        self.send(part=count)

    def message(self, text: str) -> None:
        self.send(message=text)


def main() -> None:
    """Run jobs until the parent ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # releases locks of libraries, unlike the default
    answers = _Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # a job's prints must not mix with the answers
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(asked,), daemon=True).start()
    while True:
        _do(json.loads(asked.get()), answers)


def _read(asked: queue.SimpleQueue[str]) -> None:
    """Queue jobs from the parent; exit the process when it ends. Logs and run folders survive that."""
    for line in sys.stdin:
        asked.put(line)
    os._exit(1)


def _do(asked: dict[str, Any], answers: _Answers) -> None:
    try:
        module, _, name = asked["job"].partition(":")
        getattr(importlib.import_module(module), name)(**asked["values"]).run(answers)
    except PalimpsestError as error:
        answers.send(error=type(error).__name__, text=str(error))
    except Exception:  # noqa: BLE001  border of the process: the parent raises it, with the trace as its text
        answers.send(error="", text=traceback.format_exc())
    else:
        answers.send(done=True)


# ---- Jobs of a quickstart ------------------------------------------------------------------------------------


_REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` of `count` of an evaluation of some players on one set of weights."""

    config: str
    """Run configuration as YAML."""
    model: str
    names: tuple[str, ...]
    """Names of the players."""
    folder: str
    index: int = 0
    count: int = 1

    @property
    def path(self) -> Path:
        """Folder of its log."""
        return Path(self.folder) / f"shard-{self.index + 1}-of-{self.count}"

    def samples(self) -> list[Sample]:
        """Samples in its log."""
        log = self.path / SAMPLES
        return read_samples(log)[0] if log.is_file() else []

    def turns_played(self) -> int:
        """Turns of the episodes in its log."""
        return sum(sample.turns for sample in self.samples())

    def run(self, report: JobReport) -> None:
        """Run the episodes missing from its log."""
        asyncio.run(self.play(report))

    async def play(self, report: JobReport) -> None:
        """`run` on the current event loop."""
        config = on_embedded(parse_config(self.config))  # regardless of the training engine
        config = with_keys(config, {"model.path": self.model, "sampler": SamplerConfig(name="embedded")})
        engine = await asyncio.to_thread(open_engine, config, objective=None)
        grid = Grid(config)
        own = grid.entries(self.names, self.index, self.count)
        for each in own:
            admit_all(each.policy, each.problems, engine.codec, engine.sampler.max_context)
        reward = build_reward(config.reward, engine.codec, Path(self.folder))
        evaluator = Evaluator(config, engine, reward.answer, key="quickstart", measure=measure_memory)
        policies = {name: grid.players[name] for name in self.names}
        identity = {**evaluation_identity(config, policies), "trained": grid.planned}  # points are multiples of it
        if aside := set_aside_other(self.path, identity):
            report.message(f"weights or settings changed: evaluating again, old episodes are in {aside}")
        playing = evaluator.play(own, out=self.path, identity=identity, on_warning=report.message)
        reporting = asyncio.create_task(_report_turns(engine.sampler, evaluator.speculation, report))
        try:
            await using(engine, closing(reward, playing))
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])


async def _report_turns(sampler: Sampler, speculation: Speculation | None, report: JobReport) -> None:
    """Report started turns until cancelled: long episodes run concurrently and end at the same time."""
    reported, playing = 0, True
    while playing:
        try:
            await asyncio.sleep(_REPORT_EVERY_S)
        except asyncio.CancelledError:
            playing = False
        started = sampler.stats().requests - (speculation.wasted if speculation else 0)
        if started > reported:
            report.part(started - reported)
            reported = started


def samples_of(shards: Iterable[Shard]) -> dict[Cell, list[Sample]]:
    """Samples of finished shards by cell, for the problems of the current configuration."""
    found: dict[Cell, list[Sample]] = {}
    for shard in shards:
        own = Grid(parse_config(shard.config)).entries(shard.names, shard.index, shard.count)
        asked = {(each.cell, problem.id) for each in own for problem in each.problems}
        for sample in shard.samples():
            if (sample.cell, sample.id) in asked:
                found.setdefault(sample.cell, []).append(sample)
    return found


@dataclass(frozen=True, slots=True)
class BaselineTraining:
    """The training of a baseline."""

    config: str
    """Its run configuration as YAML."""
    folder: str

    @property
    def model(self) -> str:
        """Folder of the trained weights."""
        return str(Path(self.folder) / CHECKPOINTS / step_name(parse_config(self.config).train.max_steps))

    def run(self, report: JobReport) -> None:
        """Train to the end, resuming the run in `folder`."""
        config = parse_config(self.config)
        with open_run(self.folder, config, resume=True, on_warning=report.message) as folder:
            finished = asyncio.run(train_in_folder(folder, config, open_setup(config, folder.path)))
        if finished.interrupted:
            raise RunError(f"{self.folder}: interrupted after step {finished.step}; resume its quickstart")


if __name__ == "__main__":
    main()
