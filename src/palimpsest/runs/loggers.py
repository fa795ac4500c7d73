"""Log sinks of a run: run folder, terminal, TensorBoard, wandb, custom sinks.

A sink takes one row per step. Guaranteed: a failing sink outside the run folder (remote service, terminal) never ends
a run, and its failures are counted and reported once; a sink with a missing package is rejected at the start.
Not covered: removing rows from a remote sink. After a kill, the steps since the checkpoint are sent again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest import plugins
from palimpsest.config.install_hints import install_line
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError
from palimpsest.notes import Note
from palimpsest.plugin_kinds import OBJECT
from palimpsest.plugins import plain
from palimpsest.progress.reporter import Logger as Logger
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.run_folder import RunFolder

_PACKAGES = ("tensorboard", "wandb")  # sinks that need a package of the same name
Row = Mapping[str, float]


class _Passing(Logger):
    def resumed(self, step: int) -> None:
        self._call("resumed", step)

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._call("log", step, metrics, timings)

    def progress(self, stage: str, done: int, total: int) -> None:
        self._call("progress", stage, done, total)

    def message(self, text: str) -> None:
        self._call("message", text)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        raise NotImplementedError


class JsonlLogger(Logger):
    """metrics.jsonl and timings.jsonl of the run folder."""

    def __init__(self, run: RunFolder) -> None:
        self._folder = run

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._folder.append_metrics(step, metrics)
        self._folder.append_timings(step, timings)


class ConsoleLogger(_Passing):
    def __init__(self, display: Progress, config: RunConfig) -> None:
        self._console = display.steps(config.train.max_steps)

    def _call(self, method: str, *arguments: Any) -> None:
        getattr(self._console, method)(*arguments)


class TensorboardLogger(Logger):
    def __init__(self, folder: Path) -> None:
        _require("tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event  # this writer needs no torch
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder / "tensorboard"))

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        row = _merged(metrics, timings)
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()


class WandbLogger(Logger):
    """A wandb run named after the folder. WANDB_MODE=offline stores it locally; WANDB_PROJECT names its project."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        wandb = _require("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "palimpsest"),
            name=folder.name,
            id=_run_id(folder),
            resume="allow",
            dir=str(folder),
            config=config.model_dump(mode="json"),
        )

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._run.log(_merged(metrics, timings), step=step)

    def close(self) -> None:
        self._run.finish()


class Supervised(_Passing):
    """A function `(step, metrics, timings)`, or an object with methods of `Logger`; failures are counted, not
    raised."""

    def __init__(self, name: str, log: Callable[[int, Row, Row], Any], warn: Callable[[str], None]) -> None:
        self.name = name
        self.failures = 0
        self._log = log
        self._sink = plugins.owner(log)
        self._warn = warn

    def close(self) -> None:
        super().close()
        if self.failures > 1:
            self._warn(Note("sink_failed_often", sink=self._called, count=self.failures))

    @property
    def _called(self) -> str:
        return f"callback {plain(self.name)}" if self.name.startswith(OBJECT) else f"sink {self.name}"

    def _call(self, method: str, *arguments: Any) -> None:
        defined = self._log if method == "log" else getattr(self._sink, method, None)
        if defined is None:
            return
        try:
            defined(*arguments)
        except Exception as error:  # noqa: BLE001  external services may fail; counted
            self.failures += 1
            if self.failures == 1:
                self._warn(Note("sink_failed", sink=self._called, error=f"{type(error).__name__}: {error}"))


class LoggerSet(_Passing):
    """Several sinks as one, in order."""

    def __init__(self, sinks: Sequence[Logger]) -> None:
        self.sinks = tuple(sinks)

    @property
    def failures(self) -> int:
        """Failed calls of supervised sinks."""
        return sum(sink.failures for sink in self.sinks if isinstance(sink, Supervised))

    def _call(self, method: str, *arguments: Any) -> None:
        for sink in self.sinks:
            getattr(sink, method)(*arguments)


def check_sinks(config: RunConfig) -> None:
    """Raise ConfigError for an unknown sink or a missing package, before the run folder exists."""
    for name in config.logging.report_to:
        plugins.check("sink", name, {})
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise _missing(name)


def build_loggers(config: RunConfig, folder: RunFolder, progress: Progress | None = None) -> LoggerSet:
    """The sink `jsonl`, which every run has, and those of `logging.report_to`; `console` shows steps on `progress`.

    Raises ConfigError for a missing package, with the command that installs it, and for a service that does not start.
    Warnings of sinks are shown and recorded in events.jsonl; the console's only in events.jsonl, as the terminal may
    have failed.
    """

    def quietly(message: str) -> None:
        folder.event("warning", message=message)

    sinks = list[Logger]()
    for name in dict.fromkeys((*config.logging.report_to, "jsonl")):
        display = progress or Silent()
        log = plugins.build("sink", name, folder=folder.path, config=config, run=folder, display=display)
        warn = quietly if name == "console" else folder.warn
        sinks.append(plugins.owner(log) if name == "jsonl" else Supervised(name, log, warn))
    return LoggerSet(sinks)


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise _missing(package) from None


def _missing(package: str) -> ConfigError:
    return ConfigError(f"logging.report_to={package}: missing package; {install_line(package)}")


def _merged(metrics: Row, timings: Row) -> dict[str, float]:
    return {**metrics, **{f"time/{name}": value for name, value in timings.items()}}


def _run_id(folder: Path) -> str:
    """Stable id for a resumed run; a new folder at the same path has another one."""
    location = f"{folder.resolve()}:{folder.stat().st_ino}"
    return hashlib.sha256(location.encode()).hexdigest()[:16]
