"""`cluster.max_restarts`: a training that lost processes restarts from its newest checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from palimpsest.app.train import restarts, run_setup
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.training_run import train
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.engines.protocol import Objective
from palimpsest.errors import CheckpointError, ConfigError, EngineError, ModelError, PalimpsestError, ProcessesLost
from palimpsest.notes import Note
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.types import Completion
from support.small_run import small_run


class Lossy(EmbeddedEngine):
    """An engine that fails in its next publication or generation (`at`), after the number of publications and with the
    error of `losses`: the first entry is of a test's first engine, and so on."""

    at: ClassVar[str] = "publish"
    losses: ClassVar[list[tuple[int, PalimpsestError]]] = []
    folders: ClassVar[list[Path | None]] = []

    def __init__(self, config: RunConfig, *, objective: Objective | None, folder: Path | None) -> None:
        super().__init__(config, objective=objective)
        losses = Lossy.losses[len(Lossy.folders) :][:1]
        Lossy.folders.append(folder)
        assert self.learner is not None
        publish, generate, published = self.learner.publish, self.sampler.generate, 0

        def lose(at: str) -> None:
            for most, error in losses:
                if at == Lossy.at and published > most:
                    raise type(error)(*error.args)

        async def publishing() -> int:
            nonlocal published
            published += 1
            lose("publish")
            return await publish()

        async def generating(*arguments: Any, **options: Any) -> Completion:
            lose("generate")
            return await generate(*arguments, **options)

        self.learner.publish = publishing  # type: ignore[method-assign]
        self.sampler.generate = generating  # type: ignore[method-assign]


@pytest.fixture
def lossy(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Trains six steps with these losses."""
    monkeypatch.setattr(run_setup, "open_engine", Lossy)

    def run(losses: list[tuple[int, PalimpsestError]], *, restarts: int, at: str = "publish") -> Run:
        Lossy.at, Lossy.losses, Lossy.folders = at, losses, []
        settings = small_run(tiny_model_folder, max_steps=6) | {"cluster.max_restarts": restarts}
        try:
            return train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
        finally:
            assert Lossy.folders == [tmp_path / "run"] * len(Lossy.folders)

    return run


def lost(number: int = 1) -> ProcessesLost:
    return ProcessesLost(f"process {number} was lost")


@pytest.mark.parametrize("at", ["publish", "generate"])
def test_lost_processes_are_restarted(at: str, lossy: Callable[..., Run]) -> None:
    run = lossy([(3, lost(1)), (3, lost(2))], restarts=2, at=at)
    assert [row["step"] for row in run.metrics] == [1, 2, 3, 4, 5, 6]
    result = [
        event["message"] for event in read_rows(run.folder / "events.jsonl") if "restart" in event.get("message", "")
    ]
    assert result == [
        Note("restart", error=f"process {number} was lost", number=number, most=2, wait_s=0.0) for number in (1, 2)
    ]


def test_restarts_end(lossy: Callable[..., Run]) -> None:
    with pytest.raises(ProcessesLost, match="process 3 was lost"):
        lossy([(1, lost(1)), (1, lost(2)), (1, lost(3))], restarts=2)
    assert len(Lossy.folders) == 3


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited before restarts; they pass at once."""
    seconds: list[float] = []

    async def sleep(wait_s: float) -> None:
        seconds.append(wait_s)

    monkeypatch.setattr(restarts, "asyncio", SimpleNamespace(sleep=sleep))
    return seconds


def test_restarts_without_a_step_wait_longer(waited: list[float], lossy: Callable[..., Run]) -> None:
    run = lossy([(3, lost(1)), (0, lost(2)), (0, lost(3)), (0, lost(4)), (3, lost(5))], restarts=5)
    assert [row["step"] for row in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert waited == [0, 1, 2, 4, 0]
    assert len(Lossy.folders) == 6


def test_a_run_without_steps_ends_with_the_first_reason(waited: list[float], lossy: Callable[..., Run]) -> None:
    with pytest.raises(ProcessesLost, match="process 4 was lost") as caught:
        lossy([(0, lost(number)) for number in (1, 2, 3, 4)], restarts=3)
    assert caught.value.__notes__ == ["restarts: 3 (cluster.max_restarts=3); the first followed: process 1 was lost"]
    assert waited == [1, 2, 4]
    assert len(Lossy.folders) == 4


@pytest.mark.parametrize(
    ("losses", "notes"),
    [
        ([EngineError("no room for 8 GPUs")], None),
        ([ModelError("no weights")], None),
        ([CheckpointError("full")], None),
        ([lost(), ModelError("no weights")], ["raised after a restart; the restart followed: process 1 was lost"]),
    ],
)
def test_other_errors_end_the_run(
    losses: list[PalimpsestError], notes: list[str] | None, lossy: Callable[..., Run]
) -> None:
    with pytest.raises(type(losses[-1]), match=str(losses[-1])) as caught:
        lossy([(1, error) for error in losses], restarts=3)
    assert (len(Lossy.folders), getattr(caught.value, "__notes__", None)) == (len(losses), notes)


def test_more_than_100_restarts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.max_restarts.*100"):
        load_recipe("memagent-quickstart", ["cluster.max_restarts=101"])


class Warns(EmbeddedEngine):
    """Warns of each publication, as of a server that left the pool."""

    def __init__(self, config: RunConfig, *, objective: Objective | None, folder: Path | None) -> None:
        super().__init__(config, objective=objective)
        learner = self.learner
        assert learner is not None
        publish, numbers = learner.publish, count()

        async def published() -> int:
            warnings.warn(f"a server left at {next(numbers)}", stacklevel=1)
            return await publish()

        learner.publish = published  # type: ignore[method-assign]


def test_warnings_are_events(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_setup, "open_engine", Warns)
    with pytest.warns(UserWarning, match="a server left at 1"):
        train("memagent-quickstart", small_run(tiny_model_folder, max_steps=2), out=tmp_path / "run", quiet=True)
    events = read_rows(tmp_path / "run/events.jsonl")
    result = [event["message"] for event in events if "a server" in event.get("message", "")]
    assert result == [f"a server left at {number}" for number in range(3)]


def test_ranks_reject_a_checkpoint_of_one_process(tiny_model_folder: Path, tmp_path: Path) -> None:
    train("memagent-quickstart", small_run(tiny_model_folder, max_steps=1), out=tmp_path, quiet=True)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"engine\.name=embedded saved it"):
        train(resume=tmp_path, overrides={"engine.name": "ray", "train.max_steps": 2}, quiet=True)
    assert (tmp_path / "config.yaml").read_bytes() == before
    assert train(resume=tmp_path, overrides={"train.max_steps": 2}, quiet=True).steps == 2
