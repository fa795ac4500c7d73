"""The gated agent: what its gates do, what they save, what they are worth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from palimpsest.config.reward import GateRewardConfig
from palimpsest.config.schema import SamplingConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.gated import GatedPolicy
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.metrics.memory_metrics import memory_metrics
from palimpsest.metrics.reading_trace import Texts
from palimpsest.reward.turn_rewards import GateLayer, gate_rewards
from palimpsest.rollout.episode import play as play_episode
from palimpsest.text.codec import Codec
from palimpsest.training.step_metrics import prompt_tokens, sampled_tokens
from palimpsest.types import Grade, Group, Problem, Trajectory
from support.recall import DOCUMENT, SMALL, Script

PROBLEM = Problem("p", "Who is blue?", ("Anna",), DOCUMENT, {"evidence": ["Anna is blue."]})
OPTIONS = {key: value for key, value in SMALL.items() if key != "reply_tokens"}
SKIP, GO, END = "<check>no</check>", "<next>continue</next>", "<next>end</next>"
WRITE = "<check>yes</check><update>Anna is blue.</update>"


def play(codec: Any, replies: Sequence[str], policy: Any = None) -> Trajectory:
    episode = play_episode(
        PROBLEM,
        policy=policy or GatedPolicy(**OPTIONS, reply_tokens=120),
        sampler=Script(codec, replies),
        codec=codec,
        sampling=SamplingConfig(),
        key=(0,),
        group_id="g",
        rollout=0,
    )
    return asyncio.run(episode)


def memories(trajectory: Trajectory) -> list[str]:
    return [event.detail["text"] for event in trajectory.events if event.kind == "memory"]


def test_a_shut_update_gate_keeps_the_memory_and_an_open_exit_gate_ends_the_reading(tiny_codec: Any) -> None:
    trajectory = play(tiny_codec, [SKIP + GO, SKIP + GO, WRITE + END])
    assert memories(trajectory) == [" none", " none", "Anna is blue."]
    assert [turn.name for turn in trajectory.turns] == ["read"] * 3 + ["answer"]
    (event,) = [event for event in trajectory.events if event.kind == "exit"]
    assert event.detail == {"chunk": 2, "unread": 1}


def test_without_early_exit_every_chunk_is_read(tiny_codec: Any) -> None:
    policy = GatedPolicy(**OPTIONS, reply_tokens=120, early_exit=False)
    assert len(play(tiny_codec, [WRITE + END] * 4, policy).turns) == 5


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (WRITE, "no <next>"),
        (GO, "no <check>"),
        ("<check>maybe</check>" + GO, "<check> says 'maybe', not no or yes"),
        ("<check>yes</check>" + GO, "no <update>"),
        (WRITE + WRITE + END, "2 times <check>"),
    ],
)
def test_a_malformed_reply_keeps_the_memory_and_reads_on(tiny_codec: Any, reply: str, reason: str) -> None:
    trajectory = play(tiny_codec, [WRITE + GO, reply, SKIP + END])
    assert memories(trajectory) == ["Anna is blue."] * 3
    assert [event.detail["reason"] for event in trajectory.events if event.kind == "malformed"] == [reason]


def test_the_gates_save_tokens(tiny_codec: Any) -> None:
    """An agent that writes once and ends there, beside one that writes as much after each of the four chunks."""
    gated = play(tiny_codec, [SKIP + GO, SKIP + GO, WRITE + END])
    never_ends = play(tiny_codec, [SKIP + GO, SKIP + GO, WRITE + GO, SKIP + GO])
    always = play(tiny_codec, [WRITE + GO] * 4)
    overwrite = play(tiny_codec, ["Anna is blue."] * 4, OverwritePolicy(**OPTIONS))
    assert prompt_tokens(gated) < 0.85 * prompt_tokens(always)
    assert sampled_tokens(never_ends) < 0.8 * sampled_tokens(always)
    assert len(gated.turns) < len(overwrite.turns)


def test_gate_rewards_by_hand(tiny_codec: Any) -> None:
    """Chunk 3 of 4 holds the evidence; only there is writing right, and from there on ending."""
    policy = GatedPolicy(**OPTIONS, reply_tokens=120, early_exit=False)
    trajectory = play(tiny_codec, [SKIP + GO, WRITE + END, WRITE + GO, "broken"], policy)
    rewards = gate_rewards(PROBLEM, trajectory, tiny_codec)
    assert [(r.update, r.exit, r.format) for r in rewards] == [(1, 1, 1), (0, 0, 1), (1, 0, 1), (0, 0, 0), (0, 0, 1)]
    config = GateRewardConfig(exit=0.5)
    grade = GateLayer(tiny_codec, config)(PROBLEM, trajectory, Grade(1.0))
    assert grade.per_turn == (2.5, 1.0, 2.0, 0.0, 1.0)
    without = Problem("p", "?", ("x",), DOCUMENT)
    assert [r.total(config) for r in gate_rewards(without, trajectory, tiny_codec)] == [1.0, 1.0, 1.0, 0.0, 1.0]


def test_metrics_tell_how_often_the_gate_is_open(tiny_codec: Any) -> None:
    trajectory = play(tiny_codec, [SKIP + GO, "broken", WRITE + END])
    found = memory_metrics(Group(PROBLEM, (trajectory,), (Grade(1.0),)), Texts(tiny_codec))
    expected = {
        "recall_rate": None,
        "recall_hit_rate": None,
        "malformed_rate": pytest.approx(1 / 3),
        "update_rate": 0.5,
    }
    assert {name: found[name] for name in expected} == expected


def test_keeping_the_memory_on_an_empty_reply_is_refused_as_a_closed_gate_does_that() -> None:
    with pytest.raises(ConfigError, match=r"policy\.options\.empty_memory='keep': does nothing"):
        GatedPolicy(**SMALL, empty_memory="keep")


@pytest.mark.parametrize("budget", [{"reply_tokens": None, "memory_tokens": 8}, {"reply_tokens": 24}])
def test_a_budget_that_the_tags_alone_fill_is_refused(budget: dict[str, Any]) -> None:
    codec = Codec.load("embedded")
    tags = len(codec.encode("<check>no</check><next>continue</next>"))
    assert tags == 24
    problem = Problem("p", "Who?", ("Bob",), "Bob.")
    with pytest.raises(ConfigError, match=r"the tags of a reply take 24 tokens .*reply_tokens to \d+"):
        GatedPolicy(**{**OPTIONS, **budget}).admit(problem, codec)
    GatedPolicy(**{**OPTIONS, "reply_tokens": 25}).admit(problem, codec)
