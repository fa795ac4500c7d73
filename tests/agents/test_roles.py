"""Roles from a recipe to the record, on the embedded engine."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from palimpsest import train
from palimpsest.agents.roles import FrozenSampler, open_roles
from palimpsest.app.train.run_setup import open_setup
from palimpsest.app.train.training_run import train_in_folder
from palimpsest.config.load import parse_config
from palimpsest.config.schema import RunConfig
from palimpsest.engines.embedded.compute import ComputeThread
from palimpsest.errors import ConfigError, SamplerError
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.run_folder import open_run
from palimpsest.types import Problem, SamplingParams
from support.agents import base_codec, family_codec
from support.endpoint_server import MODEL, endpoint_server
from support.fakes import SeedSampler, changed, small_config


@dataclass(frozen=True)
class Criticised(MemoryPolicy):
    async def run(self, problem: Problem, model: Model) -> Answered:
        prompt = model.codec.encode(problem.question)
        for name, role in (("draft", None), ("criticise", "critic"), ("doubt", "sceptic"), ("answer", None)):
            completion = await model.generate(prompt, name=name, max_tokens=6, role=role)
            prompt = [*prompt, *completion.token_ids]
        return Answered(model.codec.decode(completion.token_ids, control=False))


def parity(problem: Problem, trajectory: Any) -> float:
    return float(sum(trajectory.turns[-1].completion.token_ids) % 2)


def config(model: str, **roles: Any) -> RunConfig:
    return changed(
        small_config(max_steps=3),
        model={"path": model},
        policy={"name": f"{__name__}:Criticised"},
        roles=roles,
        reward={"name": f"{__name__}:parity"},
        optim={"learning_rate": 1e-2},
        loss={"entropy_coeff": 1e-6},  # every step has a gradient, whatever its rewards
    )


def test_frozen_roles_sample_with_the_trained_weights_or_their_model_and_are_not_trained(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    settings = config(str(tiny_model_folder), critic={}, sceptic={"model": str(tiny_model_folder)})
    with open_run(tmp_path / "run", settings) as folder:
        asyncio.run(train_in_folder(folder, settings, open_setup(settings, folder.path)))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    groups = read_groups(tmp_path / "run" / "trajectories" / "step-000003.jsonl.zst").groups
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    by_role = {role: [turn for turn in turns if turn.role == role] for role in (None, "critic", "sceptic")}
    assert [len(turns) for turns in by_role.values()] == [16, 8, 8]
    versions = {role: {turn.completion.policy_version for turn in turns} for role, turns in by_role.items()}
    assert versions == {None: {2}, "critic": {2}, "sceptic": {0}}
    assert all(turn.trained == (turn.role is None) for turn in turns)
    assert rows[2]["credit/trained_tokens"] == sum(len(turn.completion.token_ids) for turn in by_role[None])
    assert all(row["policy/logprob_gap"] < 1e-4 for row in rows)  # trained tokens are in their sampling context


def test_a_server_samples_the_turns_of_a_role_with_a_url(tiny_model_folder: Path, tmp_path: Path) -> None:
    with endpoint_server() as server:
        there = {"model": MODEL, "url": server.url, "temperature": 0.5}
        settings = config(str(tiny_model_folder), critic={}, sceptic=there)
        with open_run(tmp_path / "run", settings) as folder:
            asyncio.run(train_in_folder(folder, settings, open_setup(settings, folder.path)))
    asked = [body for body in server.asked if body.get("max_tokens") == 6]
    assert len(asked) == 3 * 8
    assert {(body["model"], body["temperature"]) for body in asked} == {(MODEL, 0.5)}
    assert all(isinstance(body["prompt"], list) for body in asked)


def test_a_role_with_a_url_needs_the_name_of_its_model() -> None:
    settings = parse_config("", overrides=["roles.sceptic.url=http://127.0.0.1:1/v1"])
    with pytest.raises(ConfigError) as error:
        open_roles(settings, base_codec())
    assert error.value.key == "roles.sceptic.model"


def test_a_role_is_not_called_as_the_turns_without_one() -> None:
    with pytest.raises(ConfigError) as error:
        open_roles(parse_config("", overrides=["roles.agent.temperature=0"]), base_codec())
    assert (error.value.key, error.value.value) == ("roles", "agent")


def test_a_role_with_another_tokenizer_is_rejected(tiny_model_folder: Path) -> None:
    settings = config(str(tiny_model_folder), sceptic={"model": str(tiny_model_folder)})
    with pytest.raises(ConfigError, match=r"roles.sceptic.model=.* has another tokenizer than model.path"):
        open_roles(settings, family_codec("chatml"))


class Counting(SeedSampler):
    """Counts the requests that start and are cancelled; fails while `fails`."""

    started = cancelled = 0
    fails = False

    async def generate(self, prompt_ids: Any, params: Any, **options: Any) -> Any:
        self.started += 1
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails:
            raise SamplerError("lost")
        return await super().generate(prompt_ids, params, **options)


def greedy(**changes: Any) -> SamplingParams:
    return replace(SamplingParams(max_tokens=4, temperature=0.0), **changes)


async def test_a_frozen_model_samples_a_greedy_reply_once_per_prompt_and_budget() -> None:
    inner = Counting()
    sampler = FrozenSampler(inner)
    first, *others = await asyncio.gather(*(sampler.generate((5, 6), greedy(seed=seed)) for seed in range(4)))
    assert others == [first] * 3
    assert await sampler.generate([5, 6], greedy(seed=9)) == first
    assert inner.started == 1
    await sampler.generate((5, 7), greedy())
    await sampler.generate((5, 6), greedy(max_tokens=5))
    for seed in range(2):
        await sampler.generate((5, 6), greedy(temperature=1.0, seed=seed))
    assert inner.started == 5


async def test_a_failed_reply_is_sampled_again_and_a_request_ends_with_its_last_caller() -> None:
    inner = Counting()
    inner.fails = True
    sampler = FrozenSampler(inner)
    lost = await asyncio.gather(*(sampler.generate((5,), greedy()) for _ in range(2)), return_exceptions=True)
    assert [type(error) for error in lost] == [SamplerError] * 2
    inner.fails = False
    one, other = (asyncio.ensure_future(sampler.generate((5,), greedy())) for _ in range(2))
    await asyncio.sleep(0.001)
    one.cancel()
    reply = await other
    assert (inner.started, inner.cancelled) == (2, 0)
    alone = asyncio.ensure_future(sampler.generate((6,), greedy()))
    await asyncio.sleep(0.001)
    alone.cancel()
    await asyncio.sleep(0.001)
    assert inner.cancelled == 1
    assert await sampler.generate((5,), greedy()) == reply


def test_a_run_with_a_role_writes_the_same_bytes_however_long_steps_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"max_steps": 2, "batch_size": 1, "group_size": 4, "num_minibatches": 1, "save_steps": 1}
    settings = {f"train.{key}": value for key, value in sizes.items()}
    train("lead-quickstart", settings, out=tmp_path / "steady", quiet=True)
    rng, post = random.Random(0), ComputeThread.post

    def late(self: ComputeThread, call: Any, *args: Any) -> Any:
        def slept() -> Any:
            time.sleep(rng.random() * 0.01)
            return call(*args)

        return post(self, slept)

    monkeypatch.setattr(ComputeThread, "post", late)
    train("lead-quickstart", settings, out=tmp_path / "uneven", quiet=True)
    for name in ("metrics.jsonl", "trajectories/step-000001.jsonl.zst", "trajectories/step-000002.jsonl.zst"):
        assert (tmp_path / "steady" / name).read_bytes() == (tmp_path / "uneven" / name).read_bytes()
