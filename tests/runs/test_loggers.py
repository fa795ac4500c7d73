"""Sinks receive every row, and a failing one never ends a run."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.train.training_run import train
from palimpsest.config.load import parse_config
from palimpsest.config.schema import LoggingConfig, RunConfig
from palimpsest.errors import ConfigError
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import JsonlLogger, Logger, LoggerSet, Supervised, build_loggers
from palimpsest.runs.run_folder import open_run
from support.fakes import make_trainer, small_config


def config(*sinks: str) -> RunConfig:
    return small_config().model_copy(update={"logging": LoggingConfig(report_to=list(sinks))})


def test_rows_go_to_metrics_and_timings(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", config("jsonl")) as folder:
        loggers = build_loggers(folder.config, folder)
        loggers.log(1, {"reward/mean": 0.5}, {"rollout_s": 2.0})
        loggers.close()
    assert read_rows(tmp_path / "run" / "metrics.jsonl") == [{"step": 1, "reward/mean": 0.5}]
    assert read_rows(tmp_path / "run" / "timings.jsonl") == [{"step": 1, "rollout_s": 2.0}]


def test_tensorboard_files_contain_the_logged_values(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_run(tmp_path / "run", config("tensorboard")) as folder:
        loggers = build_loggers(folder.config, folder)
        for step in (1, 2):
            loggers.log(step, {"reward/mean": step / 4}, {"rollout_s": 2.0})
        loggers.close()
        assert loggers.failures == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
    assert [e.value for e in events.Scalars("time/rollout_s")] == [2.0, 2.0]


class NotLoggedIn:
    def init(self, **options: Any) -> None:
        raise PermissionError("No API key configured.\nUse wandb login")


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (None, r"^logging\.report_to=wandb: .* pip install .*\[wandb\]'"),
        (NotLoggedIn(), r"^logging\.report_to='wandb': could not be made: PermissionError: No API key"),
    ],
    ids=["not installed", "not logged in"],
)
def test_a_service_that_does_not_start_is_an_error_of_one_line_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, error: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", module)
    with open_run(tmp_path / "run", config("wandb")) as folder, pytest.raises(ConfigError, match=error):
        build_loggers(folder.config, folder)


class FakeService:
    """A fake of wandb: init gives a run with log and finish."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.options: list[dict[str, Any]] = []
        self.finished = 0

    def init(self, **options: Any) -> FakeService:
        self.options.append(options)
        return self

    def log(self, row: Mapping[str, float], step: int) -> None:
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished += 1


def test_a_service_gets_every_row_once_and_a_resume_continues_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = FakeService()
    monkeypatch.setitem(sys.modules, "wandb", service)
    for step, resume in ((1, False), (2, True)):
        with open_run(tmp_path / "run", config("wandb"), resume=resume) as folder:
            loggers = build_loggers(folder.config, folder)
            loggers.log(step, {"reward/mean": 0.5}, {"rollout_s": 1.0})
            loggers.close()
    assert service.rows == [(step, {"reward/mean": 0.5, "time/rollout_s": 1.0}) for step in (1, 2)]
    assert service.finished == 2
    assert {options["name"] for options in service.options} == {"run"}
    assert len({options.get("id") for options in service.options}) == 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is an extra")
def test_wandb_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with open_run(tmp_path / "run", config("wandb")) as folder:
        loggers = build_loggers(folder.config, folder)
        loggers.log(1, {"reward/mean": 0.5}, {})
        loggers.close()
        assert loggers.failures == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


class Broken(Logger):
    name = "remote"

    def log(self, step: int, metrics: Any, timings: Any) -> None:
        raise ConnectionError("no route to host")


def test_a_failing_sink_is_counted_and_reported_and_the_run_continues(tmp_path: Path) -> None:
    warnings: list[str] = []
    with open_run(tmp_path / "run", small_config(), on_warning=warnings.append) as folder:
        broken = Supervised("remote", Broken().log, folder.warn)
        trainer = make_trainer(folder, loggers=LoggerSet([broken, JsonlLogger(folder)]))
        finished = asyncio.run(trainer.run())
    assert finished.step == 6
    assert broken.failures == 6
    assert warnings == [
        "sink remote failed (ConnectionError: no route to host); the run continues without it",
        "sink remote failed 6 times in this run",
    ]
    assert [row["sink_failures"] for row in read_rows(tmp_path / "run" / "timings.jsonl")] == [0, 1, 2, 3, 4, 5]


CUSTOM = """
from pathlib import Path

class Csv:
    def __init__(self, folder: Path, config): self.file, self.seed = folder / "custom.csv", config.seed
    def log(self, step, metrics, timings):
        with self.file.open("a") as file: print(self.seed, step, metrics["reward/mean"], sep=",", file=file)
    def close(self): self.file.with_suffix(".done").touch()

def breaks(step, metrics, timings): raise OSError("disk full")
def other(step): ...
async def waits(step, metrics, timings): ...
class Silent:
    pass


class Unset:
    def __init__(self): raise RuntimeError("no token: set TOKEN")
    def log(self, step, metrics, timings): ...
"""


@pytest.fixture
def custom_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom_sinks.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("custom_sinks")
def test_a_run_writes_to_custom_sinks_and_one_that_raises_is_reported_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    sinks = config("custom_sinks:Csv", "custom_sinks:breaks", "jsonl")
    with open_run(tmp_path / "run", sinks, on_warning=warnings.append) as folder:
        finished = asyncio.run(make_trainer(folder, loggers=build_loggers(sinks, folder)).run())
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    expected = [f"{sinks.seed},{row['step']},{row['reward/mean']}" for row in rows]
    assert finished.step == len(rows)
    assert (tmp_path / "run" / "custom.csv").read_text().splitlines() == expected
    assert (tmp_path / "run" / "custom.done").exists()
    assert warnings == [
        "sink custom_sinks:breaks failed (OSError: disk full); the run continues without it",
        f"sink custom_sinks:breaks failed {len(rows)} times in this run",
    ]


@pytest.mark.usefixtures("custom_sinks")
@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("custom_sinks:Csvs", r"custom_sinks has no 'Csvs'; did you mean Csv\?"),
        ("custom_sinks:other", r"takes \(step\), but palimpsest calls it with \(step, metrics, timings\)"),
        ("custom_sinks:waits", "is asynchronous: write def"),
        ("custom_sinks:Unset", "could not be made: RuntimeError: no token"),
    ],
)
def test_a_sink_that_can_not_work_is_rejected_at_the_start(tmp_path: Path, sink: str, message: str) -> None:
    with open_run(tmp_path / "run", config(sink)) as folder, pytest.raises(ConfigError, match=message) as failure:
        build_loggers(folder.config, folder)
    assert (failure.value.key, failure.value.value) == ("logging.report_to", sink)


@pytest.mark.usefixtures("custom_sinks")
@pytest.mark.parametrize("sink", ["custom_sinks:Csvs", "custom_sinks:other", "custom_sinks:Silent", "wandb"])
def test_a_sink_that_can_not_work_leaves_no_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=rf"^logging\.report_to='?{sink}'?: "):
        train("memagent-quickstart", {"logging.report_to": [sink]}, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_unknown_sink_is_rejected_with_the_nearest_name() -> None:
    error = r"logging.report_to='tensorbord': no such log sink; did you mean tensorboard\?"
    with pytest.raises(ConfigError, match=error):
        parse_config("logging: {report_to: [tensorbord]}")


def test_a_logger_of_a_resumed_run_gets_its_last_step_before_the_first_row(tmp_path: Path) -> None:
    steps_received: list[int] = []

    class Watching(Logger):
        def resumed(self, step: int) -> None:
            steps_received.append(step)

        def log(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
            steps_received.append(-step)

    for steps, resume in ((2, False), (3, True)):
        values = small_config().model_dump(mode="json")
        settings = RunConfig.model_validate({**values, "train": {**values["train"], "max_steps": steps}})
        with open_run(tmp_path / "run", settings, resume=resume, on_warning=lambda _: None) as folder:
            watching = Supervised("watching", Watching().log, folder.warn)
            asyncio.run(make_trainer(folder, loggers=LoggerSet([JsonlLogger(folder), watching])).run())
    assert steps_received == [-1, -2, 2, -3]
