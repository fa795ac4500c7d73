"""`--gpus` of eval and sft: its overrides, and that copies of the sampler play the same episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from palimpsest.app.config_resolution import run_config
from palimpsest.app.evaluate.evaluation_plan import EvalRequest
from palimpsest.engines.open import layout_on, open_engine
from palimpsest.errors import ConfigError
from support.command import Run
from support.small_run import small_evaluation


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine of so many GPUs, as CUDA counts them."""

    def has(gpus: int) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    return has


def test_the_option_stands_for_one_copy_of_the_sampler_on_each_gpu(machine: Callable[[int], None]) -> None:
    machine(8)
    config = EvalRequest(overrides=layout_on(3, None)).plan().config
    assert (config.engine.name, config.cluster.samplers, config.cluster.gpus_per_sampler) == ("ray", 3, 1.0)
    assert layout_on(1, None) == []


def test_supervised_training_has_a_rank_on_each_gpu(machine: Callable[[int], None]) -> None:
    machine(8)
    config = run_config("memact-cold-start", layout_on(3, "nll"))
    assert (config.engine.name, config.cluster.learners, config.cluster.gpus_per_learner) == ("ray", 3, 1.0)


def test_a_resumed_training_keeps_its_layout(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "omit --gpus" in refused("sft", "--gpus", "2", "--resume", str(tmp_path))


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
async def test_the_engine_has_room_for_as_many_copies_as_there_are_gpus(machine: Callable[[int], None]) -> None:
    machine(2)
    config = EvalRequest(overrides=layout_on(2, None)).plan().config
    await open_engine(config, objective=None).close()


@pytest.mark.parametrize(("there", "fix"), [(0, "compute on the CPU"), (2, "give --gpus 2")])
def test_fewer_gpus_than_asked_for_are_an_error_with_the_fix(
    there: int, fix: str, machine: Callable[[int], None], refused: Callable[..., str]
) -> None:
    machine(there)
    assert fix in refused("eval", "--gpus", "3", "--chunks", "1")


def test_gpus_hidden_from_the_process_do_not_count(
    machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert layout_on(2, None)
    with pytest.raises(ConfigError, match="sees 2 GPUs"):
        layout_on(3, None)


@pytest.mark.parametrize("elsewhere", [["--base-url", "http://127.0.0.1:1/v1"], ["--regrade", "evals/first"]])
def test_gpus_are_refused_where_none_is_used(elsewhere: list[str], refused: Callable[..., str]) -> None:
    assert "--gpus 2" in refused("eval", "--gpus", "2", *elsewhere)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_two_copies_of_the_sampler_play_the_episodes_of_one(
    palimpsest: Run, tiny_model_folder: Path, tmp_path: Path
) -> None:
    def played(name: str, *overrides: str) -> dict[str, Any]:
        done = palimpsest(*small_evaluation(tiny_model_folder, tmp_path / name), *overrides)
        assert done.returncode == 0, done.stderr
        rows = map(json.loads, (tmp_path / name / "samples.jsonl").read_text().splitlines())
        return {row["id"]: (row["answer"], row["value"]) for row in rows if "id" in row}

    assert played("one") == played("two", "engine.name=ray", "cluster.samplers=2")
