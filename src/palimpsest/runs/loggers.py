"""Where a run's numbers go: the run folder, the terminal, TensorBoard, wandb, a sink of the user's own.

A sink takes one row a step. Guaranteed: a sink outside the run folder (remote service, terminal) that fails never
ends a run, and its failures are counted and told once; a sink whose package is missing is refused at the start.
Not covered: taking back what a remote sink was sent. After a kill, steps behind the checkpoint are sent again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palimpsest import plugins
from palimpsest.config.install_hints import install_line
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, PalimpsestError
from palimpsest.plugins import is_given, plain
from palimpsest.progress.reporter import Progress, Silent, StepDisplay
from palimpsest.runs.run_folder import RunFolder

_PACKAGES = ("tensorboard", "wandb")  # the sinks that need one, which is called as they are
Row = Mapping[str, float]
ROW = ("step", "metrics", "timings")
"""What a user's sink is called with."""


class Logger:
    """One sink. The methods do nothing, so that a sink defines what it cares for."""

    name = "logger"

    def resumed(self, step: int) -> None:
        """The run goes on after `step`, which another process did."""

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        """One finished step. `metrics` repeat from run to run, `timings` read a clock."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """How far the present step is."""

    def message(self, text: str) -> None:
        """A line for whoever watches."""

    def close(self) -> None:
        """The run is over."""


class JsonlLogger(Logger):
    """metrics.jsonl and timings.jsonl of the run folder."""

    name = "jsonl"

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._folder.append_metrics(step, metrics)
        self._folder.append_timings(step, timings)


class ConsoleLogger(Logger):
    """Whoever watches the run: a terminal, a notebook."""

    name = "console"

    def __init__(self, console: StepDisplay) -> None:
        self._console = console

    def resumed(self, step: int) -> None:
        self._console.resumed(step)

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._console.step(step, metrics, timings)

    def progress(self, stage: str, done: int, total: int) -> None:
        self._console.progress(stage, done, total)

    def message(self, text: str) -> None:
        self._console.message(text)

    def close(self) -> None:
        self._console.close()


class TensorboardLogger(Logger):
    """Event files in the run folder's `tensorboard/`."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        _require("tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event  # the package's own writer: it needs no torch
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
    """A wandb run named after the folder; WANDB_MODE=offline keeps it on this machine."""

    name = "wandb"

    def __init__(self, folder: Path, config: RunConfig) -> None:
        wandb = _require("wandb")
        self._run = wandb.init(
            project=config.logging.project,
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


class OwnSink(Logger):
    """A user's function `(step, metrics, timings)`, or an object with `log` and whatever else of `Logger`."""

    def __init__(self, name: str, log: Callable[[int, Row, Row], Any]) -> None:
        self.name = name
        self._log = log
        self._sink = plugins.owner(log)

    def resumed(self, step: int) -> None:
        self._call("resumed", step)

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._log(step, metrics, timings)

    def progress(self, stage: str, done: int, total: int) -> None:
        self._call("progress", stage, done, total)

    def message(self, text: str) -> None:
        self._call("message", text)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        defined = getattr(self._sink, method, None)
        if defined is not None:
            defined(*arguments)


class Supervised(Logger):
    """Another sink, whose failures are counted instead of raised."""

    def __init__(self, inner: Logger, warn: Callable[[str], None]) -> None:
        self.name = inner.name
        self.failures = 0
        self._inner = inner
        self._warn = warn

    def resumed(self, step: int) -> None:
        self._try(lambda: self._inner.resumed(step))

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        self._try(lambda: self._inner.log(step, metrics, timings))

    def progress(self, stage: str, done: int, total: int) -> None:
        self._try(lambda: self._inner.progress(stage, done, total))

    def message(self, text: str) -> None:
        self._try(lambda: self._inner.message(text))

    def close(self) -> None:
        self._try(self._inner.close)
        if self.failures > 1:
            self._warn(f"{self._called} failed {self.failures} times in this run")

    @property
    def _called(self) -> str:
        return f"callback {plain(self.name)}" if is_given(self.name) else f"sink {self.name}"

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  the border around other people's services; counted
            self.failures += 1
            if self.failures == 1:
                self._warn(f"{self._called} failed ({type(error).__name__}: {error}); the run continues without it")


class LoggerSet(Logger):
    """Several sinks as one, in order."""

    name = "all"

    def __init__(self, sinks: Sequence[Logger]) -> None:
        self.sinks = tuple(sinks)

    @property
    def failures(self) -> int:
        """Calls that failed in supervised sinks."""
        return sum(sink.failures for sink in self.sinks if isinstance(sink, Supervised))

    def resumed(self, step: int) -> None:
        for sink in self.sinks:
            sink.resumed(step)

    def log(self, step: int, metrics: Row, timings: Row) -> None:
        for sink in self.sinks:
            sink.log(step, metrics, timings)

    def progress(self, stage: str, done: int, total: int) -> None:
        for sink in self.sinks:
            sink.progress(stage, done, total)

    def message(self, text: str) -> None:
        for sink in self.sinks:
            sink.message(text)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def check_sinks(config: RunConfig) -> None:
    """Refuse, before there is a run folder, a sink that isn't there or has no package. Raises ConfigError."""
    for name in config.logging.sinks:
        if plugins.is_own(name):
            target = plugins.own(name, where := f"logging.sinks={name}")
            plugins.check_shape(name, target, {}, where=where, arguments=ROW, method="log", given=("folder", "config"))
        elif name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise _missing(name)


def build_loggers(config: RunConfig, folder: RunFolder, progress: Progress | None = None) -> LoggerSet:
    """The sinks `logging.sinks` names; `progress` is what the sink `console` shows the steps on.

    Raises ConfigError for a package that is missing, with the command that installs it, and for a service that
    doesn't start.
    Warnings are shown and go to events.jsonl; of the console to events.jsonl only, as the terminal may have failed.
    """
    builders: dict[str, Callable[[], Logger]] = {
        "jsonl": lambda: JsonlLogger(folder),
        "console": lambda: ConsoleLogger((progress or Silent()).steps(config.train.steps)),
        "tensorboard": lambda: TensorboardLogger(folder.path),
        "wandb": lambda: WandbLogger(folder.path, config),
    }

    def own(name: str) -> Logger:
        given = {"folder": folder.path, "config": config}
        where = f"logging.sinks={name}"
        log = plugins.build(name, {}, where=where, arguments=ROW, method="log", given=given)
        if inspect.iscoroutinefunction(log):
            raise ConfigError(f"{where}: log is asynchronous and nobody awaits it: write def, not async def")
        return OwnSink(name, log)

    def quietly(message: str) -> None:
        folder.event("warning", message=message)

    names = dict.fromkeys(config.logging.sinks)
    sinks = [own(name) if plugins.is_own(name) else _started(name, builders[name]) for name in names]
    return LoggerSet(
        [
            sink
            if isinstance(sink, JsonlLogger)
            else Supervised(sink, quietly if isinstance(sink, ConsoleLogger) else folder.warn)
            for sink in sinks
        ]
    )


def _started(name: str, build: Callable[[], Logger]) -> Logger:
    try:
        return build()
    except PalimpsestError:
        raise
    except Exception as error:  # whatever a service raises: not logged in, say
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"logging.sinks={name} can't start ({reason}); set it up, or leave it out") from error


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise _missing(package) from None


def _missing(package: str) -> ConfigError:
    return ConfigError(f"logging.sinks={package}: the package is not installed; {install_line(package)}")


def _merged(metrics: Row, timings: Row) -> dict[str, float]:
    return {**metrics, **{f"time/{name}": value for name, value in timings.items()}}


def _run_id(folder: Path) -> str:
    """An id that a resumed run finds again, and a new folder in the place of an old one doesn't."""
    place = f"{folder.resolve()}:{folder.stat().st_ino}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]
