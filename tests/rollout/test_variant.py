"""Training episodes with other policy options: which ones, their marks, and isolation from the others."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from palimpsest.app.quickstart.quickstart_run import baseline_config
from palimpsest.config.schema import CreditConfig, EvaluationConfig, PolicyConfig, RunConfig, SamplingConfig
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import Arena, Entry, play_entries
from palimpsest.evaluation.sample_log import Cell
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.memory.registry import build_policy, policy_class
from palimpsest.plugin_kinds import KINDS
from palimpsest.rollout.group import Player
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.rollout.variant import Variant, build_variant, is_variant
from palimpsest.runs.run_folder import open_run
from palimpsest.training.step_metrics import group_metrics
from palimpsest.types import Grade, Group, Outcome, Problem, SamplingParams, Trajectory
from support.fakes import LetterCodec, SeedSampler, YesGrader, make_trainer, small_config

CODEC: Any = LetterCodec()


@dataclass(frozen=True)
class Shouting(MemoryPolicy):
    """Has its options in the prompt, so that a turn shows which policy played it."""

    tool: bool = True
    max_tokens: int = 8

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError("must be at least 1", key="policy.options.max_tokens", value=self.max_tokens)

    async def run(self, problem: Problem, model: Model) -> Answered:
        prompt = model.codec.encode(problem.question + ("with" if self.tool else "without"))
        completion = await model.generate(prompt, name="answer", max_tokens=self.max_tokens)
        prompt.clear()  # the policy's own list
        return Answered(model.codec.decode(completion.token_ids))


sys.modules.setdefault("variant_example", sys.modules[__name__])


def config(share: float = 0.5, steps: int = 2, **options: Any) -> RunConfig:
    plain = small_config(max_steps=steps, group_size=8, variant={"share": share, "options": options or {"tool": False}})
    return plain.model_copy(update={"policy": PolicyConfig(name="variant_example:Shouting")})


def played(problems: int = 40, key: tuple[int | str, ...] = (0, "train", 1, 0), **parts: Any) -> list[Group]:
    options = {"variant": build_variant(config()), "policy": Shouting(), "sampler": SeedSampler(), **parts}
    player = Player(group_size=8, codec=CODEC, sampling=SamplingConfig(), grader=YesGrader(), **options)
    return asyncio.run(player.batch([Problem(f"p{i}", "yes? ", ("yes",)) for i in range(problems)], key=key))


def without(trajectory: Trajectory) -> bool:
    return "without" in CODEC.decode(trajectory.turns[0].prompt_ids)


def kinds(groups: list[Group]) -> list[bool]:
    return [without(trajectory) for group in groups for trajectory in group.trajectories]


def test_a_share_of_the_episodes_is_played_with_the_changed_options_and_marked() -> None:
    groups = played()
    changed = kinds(groups)
    assert 0.38 < sum(changed) / len(changed) < 0.62  # 320 draws at 0.5: more than four deviations
    for trajectory in (t for group in groups for t in group.trajectories):
        assert is_variant(trajectory) is without(trajectory)
        marks = [dict(event.detail) for event in trajectory.events if event.kind == "variant"]
        assert marks == ([{"options": {"tool": False}}] if without(trajectory) else [])


def test_the_key_of_an_episode_decides_and_other_episodes_are_unchanged() -> None:
    groups = played()
    assert kinds(groups)[:8] == kinds(played(problems=1))  # in any batch
    assert kinds(groups) != kinds(played(key=(0, "train", 2, 0)))
    assert kinds(groups) != kinds(played(key=(1, "train", 1, 0)))
    plain, mixed = ([t for group in made for t in group.trajectories] for made in (played(variant=None), groups))
    others = [t for t, other in zip(plain, mixed, strict=True) if not is_variant(other)]
    assert [t for t in mixed if not is_variant(t)] == others


def test_objects_shared_by_rollouts_are_immutable() -> None:
    for shared in (Problem("p", "?", ("a",)), SamplingParams(max_tokens=4), SamplingConfig()):
        name = "max_tokens" if isinstance(shared, SamplingParams) else next(iter(type(shared).__annotations__))
        with pytest.raises((dataclasses.FrozenInstanceError, ValidationError)):
            setattr(shared, name, 1)
    policies: dict[str, Any] = {name: policy_class(name) for name in KINDS["policy"].shipped}
    for cls in policies.values():
        assert cls.__dataclass_params__.frozen, cls.__name__


def test_the_two_policies_share_no_mutable_option() -> None:
    options: dict[str, Any] = {"nested": {"search": {}, "mine": {}}}
    named = config().model_copy(update={"policy": PolicyConfig(name="variant_example:Nested", options=options)})
    variant, plain = build_variant(named), build_policy(named.policy)
    assert variant is not None
    assert isinstance(variant.policy, Nested)
    assert isinstance(plain, Nested)
    variant.policy.nested.clear()
    assert plain.nested == {"search": {}, "mine": {}} == options["nested"]


@dataclass(frozen=True)
class Nested:
    nested: dict[str, Any]
    tool: bool = True

    async def run(self, problem: Problem, model: Model) -> Answered:
        return Answered("")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": False}, r"^train\.variant\.options\.tol is unknown .*did you mean tool\?"),
        ({"max_tokens": 0}, r"^train\.variant\.options\.max_tokens=0: must be at least 1"),
    ],
)
def test_invalid_options_are_rejected_before_the_run(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        build_variant(config(**options))
    with open_run(tmp_path / "run", config(**options)) as folder, pytest.raises(ConfigError, match=message):
        make_trainer(folder, policy=Shouting())


def test_training_has_variants_evaluation_has_none_and_records_mark_them(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", config()) as folder:
        trainer = make_trainer(folder, policy=Shouting())
        report = asyncio.run(trainer.step(1))
    sampler = SeedSampler()
    problems = [Problem(f"p{i}", "yes? ", ("yes",)) for i in range(30)]
    entry = Entry(Cell("eval", None, None, "shouting"), trainer.policy, problems)
    asyncio.run(play_entries([entry], Arena(sampler, CODEC, YesGrader(), SamplingConfig(), (0,))))
    assert len(sampler.calls) >= 30
    assert not [prompt for prompt, _ in sampler.calls if "without" in CODEC.decode(prompt)]
    counts = Counter(kinds(list(report.groups)))
    assert min(counts[True], counts[False]) > 0
    assert report.metrics["episode/variant_share"] == counts[True] / 16
    path = tmp_path / "groups.jsonl.zst"
    path.write_bytes(encode_groups(report.groups))
    read = read_groups(path).groups
    assert [is_variant(t) for group in read for t in group.trajectories] == kinds(list(report.groups))


def test_rewards_are_reported_separately_and_only_with_a_variant() -> None:
    plain = Trajectory("p", "g", 0, (), Outcome.ANSWERED)
    other = Variant(Shouting(), 0.5, {"tool": False}).marked(plain)
    group = Group(Problem("p", "?", ("a",)), (plain, other, other, plain), tuple(map(Grade, (1.0, 0.0, 0.5, None))))
    metrics = group_metrics([group], CODEC, CreditConfig())
    assert (metrics["reward/mean_plain"], metrics["reward/mean_variant"]) == (1.0, 0.25)
    assert (metrics["episode/variant_share"], metrics["reward/mean"]) == (0.5, 0.5)
    alone = group_metrics([Group(group.problem, (plain,), (Grade(1.0),))], CODEC, CreditConfig())
    assert not {"reward/mean_plain", "reward/mean_variant", "episode/variant_share"} & set(alone)


def test_a_quickstarts_rival_is_trained_without_the_agents_variant() -> None:
    rivals = {"rival": {"name": "overwrite", "options": {"memory_tokens": 8}}}
    agent = config().model_copy(update={"evaluation": EvaluationConfig.model_validate({"trained_baselines": rivals})})
    rival = baseline_config(agent, "rival")
    assert build_variant(rival) is None
    assert rival.train == agent.train.model_copy(update={"variant": None})
