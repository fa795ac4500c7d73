"""`cluster.max_restarts`: a training whose processes were lost goes on from its newest checkpoint by itself."""

from __future__ import annotations

import warnings
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.engine import EmbeddedEngine
from palimpsest.engines.protocol import Objective
from palimpsest.errors import CheckpointError, EngineError
from palimpsest.jobs import composing
from palimpsest.jobs.training import train
from palimpsest.runs.rows import read_rows
from palimpsest.types import Completion
from support.small_run import small_run


class Lossy(EmbeddedEngine):
    """Loses its processes, as it were, when it publishes for the third time or samples after that (`at`), and as often
    after it as `losses` says."""

    at: ClassVar[str] = "publish"
    published: ClassVar[int] = 0
    losses: ClassVar[int] = 0
    folders: ClassVar[list[Path | None]] = []

    def __init__(self, config: RunConfig, *, objective: Objective | None, folder: Path | None) -> None:
        super().__init__(config, objective=objective)
        Lossy.folders.append(folder)
        learner = self.learner
        assert learner is not None
        publish, generate = learner.publish, self.sampler.generate
        lost = False

        def lose() -> None:
            nonlocal lost
            if Lossy.published >= 3 and Lossy.losses and not lost:
                Lossy.losses -= 1
                lost = True
            if lost:
                raise EngineError("a process was lost")

        async def published() -> int:
            Lossy.published += 1
            if Lossy.at == "publish":
                lose()
            return await publish()

        async def generated(*arguments: Any, **options: Any) -> Completion:
            if Lossy.at == "generate":
                lose()
            return await generate(*arguments, **options)

        learner.publish = published  # type: ignore[method-assign]
        self.sampler.generate = generated  # type: ignore[method-assign]


@pytest.mark.parametrize(("losses", "ends"), [(1, True), (3, False)])
@pytest.mark.parametrize("at", ["publish", "generate"])
def test_lost_processes_are_started_again_so_many_times(
    at: str, losses: int, ends: bool, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composing, "open_engine", Lossy)
    Lossy.at, Lossy.published, Lossy.losses, Lossy.folders = at, 0, losses, []
    settings: dict[str, Any] = small_run(tiny_model_folder, steps=6) | {"cluster.max_restarts": 2}
    if ends:
        run = train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
        assert [row["step"] for row in run.metrics] == [1, 2, 3, 4, 5, 6]
        assert "a process was lost; going on from the newest checkpoint" in (tmp_path / "run/events.jsonl").read_text()
    else:
        with pytest.raises(EngineError, match="a process was lost"):
            train("memagent-quickstart", settings, out=tmp_path / "run", quiet=True)
    assert Lossy.folders == [tmp_path / "run"] * len(Lossy.folders)
    assert len(Lossy.folders) == (2 if ends else 3)


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


def test_what_an_engine_warns_of_in_a_training_is_an_event_of_the_run(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composing, "open_engine", Warns)
    with pytest.warns(UserWarning, match="a server left at 1"):
        train("memagent-quickstart", small_run(tiny_model_folder, steps=2), out=tmp_path / "run", quiet=True)
    events = read_rows(tmp_path / "run/events.jsonl")
    told = [event["message"] for event in events if "a server" in event.get("message", "")]
    assert told == [f"a server left at {number}" for number in range(3)]


def test_ranks_that_cant_take_up_what_one_process_saved_say_so_and_the_run_goes_on_as_it_was(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    train("memagent-quickstart", small_run(tiny_model_folder, steps=1), out=tmp_path, quiet=True)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"was saved by engine\.name=embedded; resume with that"):
        train(resume=tmp_path, overrides={"engine.name": "ray", "train.steps": 2}, quiet=True)
    assert (tmp_path / "config.yaml").read_bytes() == before
    assert train(resume=tmp_path, overrides={"train.steps": 2}, quiet=True).steps == 2
