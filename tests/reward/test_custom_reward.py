"""Rewards and layers from a user's own file: what they may return, what becomes of what they may not, who waits."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.load import dump_config, parse_config
from palimpsest.config.reward import RewardConfig
from palimpsest.errors import ConfigError
from palimpsest.reward.grading import Reward, build_reward, check_reward, closing, layers_note
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn
from support.clock import overdue
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()
PROBLEM = Problem("p", "Where?", ("Oslo",))

MODULE = """
import asyncio, math, time
from palimpsest.types import Grade, SpanReward

def length(problem, trajectory, *, scale=1.0):
    return scale * len(trajectory.answer or "")

async def later(problem, trajectory):
    await asyncio.sleep(0)
    return True

def nothing(problem, trajectory): return None
def text(problem, trajectory): return "1.0"
def nan(problem, trajectory): return math.nan
def vast(problem, trajectory): return 1e308
def vast_part(problem, trajectory): return Grade(1.0, breakdown={"style": -1e200})
def stops(problem, trajectory): raise StopIteration
def raises(problem, trajectory): raise KeyError("judge\\nof many lines")
async def cancels(problem, trajectory): raise asyncio.CancelledError
def short(problem, trajectory): return Grade(1.0, per_turn=(1.0,))
def bad_part(problem, trajectory): return Grade(1.0, breakdown={"style": math.inf})
def abstains(problem, trajectory): return Grade(None, reason="not my language")
def blocks(problem, trajectory): time.sleep(0.05); return 1.0

class Silent(Exception):
    def __str__(self): raise RuntimeError
def speechless(problem, trajectory): raise Silent
def leaves(problem, trajectory): raise SystemExit(3)
async def leaves_later(problem, trajectory): raise SystemExit(3)
def huge(problem, trajectory): return 10**400
def huge_part(problem, trajectory): return Grade(1.0, breakdown={"style": 10**400})
def no_parts(problem, trajectory): return Grade(1.0, breakdown=None)
def numbered(problem, trajectory): return Grade(None, reason=5)
def one_for_all(problem, trajectory): return Grade(1.0, per_turn=5)
def bare_span(problem, trajectory): return Grade(1.0, spans=((0, 0, 1, 1.0),))
def half_token(problem, trajectory): return Grade(1.0, spans=(SpanReward(0, 0.5, 1, 1.0),))
class Mute:
    def __repr__(self): raise RuntimeError
def mute(problem, trajectory): return Mute()

import threading
FREE = threading.Event()
def stuck(problem, trajectory):
    if trajectory.answer == "stuck": FREE.wait()
    return 1.0
async def never(problem, trajectory): await asyncio.sleep(3600)
def times_out(problem, trajectory): raise TimeoutError("of its own")

class Weighed:
    def __init__(self, codec, weight: float):
        self.codec, self.weight = codec, weight
    def grade(self, problem, trajectory):
        said = self.codec.decode(trajectory.turns[0].completion.token_ids)
        return Grade(self.weight, breakdown={"letters": len(said)}, per_turn=[0, 1])

def weighed(problem, trajectory, grade, *, by: float = 1.0): return grade.value * by
def half(problem, trajectory, grade): return grade.value / 2
async def marked(problem, trajectory, grade): return Grade(grade.value, breakdown={"seen": 1})
def lost(problem, trajectory, grade): return Grade(None, reason="the layer lost it")
def wrong(problem): return 1.0
THRESHOLD = 3
class Broken:
    def __init__(self): raise OSError("no such file: weights.bin")
    def grade(self, problem, trajectory): return 0.0
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def episode(answer: str | None = "\\boxed{Oslo}", outcome: Outcome = Outcome.ANSWERED) -> Trajectory:
    turns = tuple(
        Turn((1,), Completion(tuple(map(ord, text)), (-0.5,) * len(text), StopReason.STOP), step, "act")
        for step, text in enumerate(("look", "Oslo"))
    )
    return Trajectory("p", "g", 0, turns, outcome, answer)


def reward(**config: Any) -> Reward:
    return build_reward(RewardConfig.model_validate(config), CODEC)


def grade(trajectory: Trajectory | None = None, **config: Any) -> Grade:
    made = reward(**config)
    return asyncio.run(closing(made, made.grade(PROBLEM, trajectory or episode())))


@pytest.mark.parametrize(
    ("name", "options", "value"), [("length", {}, 12.0), ("length", {"scale": 2}, 24.0), ("later", {}, 1.0)]
)
def test_a_function_plain_or_async_gives_the_reward(name: str, options: dict[str, Any], value: float) -> None:
    found = grade(name=f"own_rewards:{name}", options=options)
    assert found.value == value
    assert type(found.value) is float
    assert found.breakdown["sub_em"] == 1.0  # the shipped measures are there whatever the reward


def test_a_class_gets_its_options_and_the_codec() -> None:
    found = grade(name="own_rewards:Weighed", options={"weight": 0.25})
    assert (found.value, found.breakdown["letters"], found.per_turn) == (0.25, 4.0, (0.0, 1.0))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "own_rewards:nothing returned None, not a number"),
        ("text", "own_rewards:text returned '1.0', not a number"),
        ("nan", "own_rewards:nan returned nan as value: must be finite"),
        ("vast", "own_rewards:vast returned 1e+308 as value: must be from -1e+09 to 1e+09"),
        ("vast_part", "own_rewards:vast_part returned -1e+200 as breakdown['style']: must be from"),
        ("stops", "own_rewards:stops raised RuntimeError: coroutine raised StopIteration"),
        ("raises", r"own_rewards:raises raised KeyError: 'judge\nof many lines'"),
        ("cancels", "own_rewards:cancels raised CancelledError"),
        ("short", "own_rewards:short returned 1 numbers as per_turn for 2 turns"),
        ("bad_part", "own_rewards:bad_part returned inf as breakdown['style']"),
        ("abstains", "not my language"),
        ("speechless", "own_rewards:speechless raised Silent"),
        ("leaves", "own_rewards:leaves raised SystemExit: 3"),
        ("leaves_later", "own_rewards:leaves_later raised SystemExit: 3"),
        ("huge", "own_rewards:huge returned 1000"),
        ("huge_part", "own_rewards:huge_part returned 1000"),
        ("no_parts", "own_rewards:no_parts returned a Grade that palimpsest cannot read: AttributeError"),
        ("numbered", "5"),
        ("one_for_all", "own_rewards:one_for_all returned a Grade that palimpsest cannot read: TypeError"),
        ("bare_span", "own_rewards:bare_span returned a Grade that palimpsest cannot read: AttributeError"),
        ("half_token", "own_rewards:half_token returned SpanReward(turn=0, start=0.5, end=1, value=1.0) as spans[0]"),
        ("mute", "own_rewards:mute returned a Mute that palimpsest cannot read: RuntimeError"),
    ],
)
def test_what_is_no_grade_leaves_the_episode_ungraded_with_the_reason(name: str, reason: str) -> None:
    found = grade(name=f"own_rewards:{name}")
    assert found.value is None
    assert found.reason is not None
    assert found.reason.startswith(reason)
    assert not found.breakdown


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.gradable])
def test_an_episode_that_the_machinery_lost_is_ungraded_before_anybody_is_asked(outcome: Outcome) -> None:
    found = grade(episode(None, outcome), name="own_rewards:length", layers=["own_rewards:half"])
    assert (found.value, found.reason) == (None, f"episode ended as {outcome}")


def test_layers_follow_each_other_over_the_shipped_ones() -> None:
    layers = ["own_rewards:half", "own_rewards:half", "own_rewards:marked"]
    found = grade(name="em", layers=layers)
    assert (found.value, found.breakdown) == (0.25, {"seen": 1.0})
    assert grade(name="sub_em", layers=layers[:2]).value == 0.25
    assert grade(name="sub_em", layers=["own_rewards:lost", "own_rewards:half"]).reason == "the layer lost it"


def test_evaluation_asks_for_the_answer_without_the_layers() -> None:
    made = reward(name="sub_em", layers=["own_rewards:half"])
    found = made.answer.grade(PROBLEM, episode())
    assert isinstance(found, Grade)
    assert found.value == 1.0


async def test_a_plain_function_that_blocks_does_not_stop_the_event_loop_and_is_called_once_at_a_time() -> None:
    made = reward(name="own_rewards:blocks")
    turns_of_the_loop = 0

    async def spin() -> None:
        nonlocal turns_of_the_loop
        while True:
            turns_of_the_loop += 1
            await asyncio.sleep(0.001)

    spinning = asyncio.create_task(spin())
    grades = await asyncio.gather(*(made.grade(PROBLEM, episode()) for _ in range(4)))
    spinning.cancel()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("reward")]
    await made.close()
    assert [found.value for found in grades] == [1.0] * 4
    assert turns_of_the_loop > 4  # blocked, it would have had one turn an episode at the most
    assert len(threads) == 1
    while threads[0].is_alive():
        time.sleep(0.001)


async def test_what_never_returns_is_ungraded_and_holds_up_nobody_behind_it() -> None:
    import own_rewards  # type: ignore[import-not-found]

    for name in ("stuck", "never"):
        made = reward(name=f"own_rewards:{name}", timeout_s=30)
        first = asyncio.create_task(made.grade(PROBLEM, episode("stuck")))
        second = asyncio.create_task(made.grade(PROBLEM, episode()))
        await overdue(first)
        if name == "never":
            await overdue(second)
        assert (await first).reason == f"own_rewards:{name} did not return within 30 s, reward.timeout_s"
        assert (await second).value == (1.0 if name == "stuck" else None)
        await made.close()
    own_rewards.FREE.set()


async def test_a_timeout_of_the_rewards_own_is_told_as_its_own() -> None:
    made = reward(name="own_rewards:times_out")
    reason = (await made.grade(PROBLEM, episode())).reason or ""
    assert re.fullmatch(r"own_rewards:times_out raised TimeoutError: of its own \(.*own_rewards.py:\d+\)", reason)
    await made.close()


def test_layers_on_top_of_an_own_reward_are_told() -> None:
    config = {"name": "own_rewards:length", "unsupported_penalty": 2.0, "layers": ["own_rewards:half"]}
    told = layers_note(RewardConfig.model_validate(config))
    assert told is not None
    assert "reward.unsupported_penalty=2, reward.layers=own_rewards:half" in told
    assert layers_note(RewardConfig.model_validate({**config, "name": "em"})) is None
    assert layers_note(RewardConfig(name="own_rewards:length")) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"name": "no_such_module:f"},
            "reward.name='no_such_module:f': no module 'no_such_module' here or on PYTHONPATH",
        ),
        ({"name": "own_rewards:lenght"}, r"own_rewards has no 'lenght'; did you mean length\?"),
        ({"name": "own_rewards:THRESHOLD"}, "an int, not a class or a function"),
        ({"name": "own_rewards:wrong"}, r"takes \(problem\), but palimpsest calls it with \(problem, trajectory\)"),
        ({"name": "own_rewards:half"}, r"takes \(problem, trajectory, grade\), but palimpsest calls it with"),
        (
            {"name": "own_rewards:Weighed"},
            "reward.options.weight is missing: own_rewards:Weighed has no default for it",
        ),
        (
            {"name": "own_rewards:length", "options": {"scael": 1}},
            r"reward.options.scael is unknown to own_rewards:length; did you mean scale\?; known: scale",
        ),
        (
            {"layers": [{"name": "own_rewards:weighed", "options": {"by": "much"}}]},
            "reward.layers.own_rewards:weighed.by='much': must be a number",
        ),
        ({"name": "em", "options": {"scale": 1}}, "reward.name=em has none"),
        ({"layers": ["own_rewards:length"]}, "reward.layers='own_rewards:length': .* calls it with"),
    ],
)
def test_what_can_not_be_a_reward_is_refused_before_any_model_is_loaded(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_reward(RewardConfig.model_validate(config))


def test_a_class_that_does_not_come_up_is_told_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"could not be made: OSError: no such file: weights.bin \(own_rewards.py"):
        reward(name="own_rewards:Broken")


def test_names_are_checked_when_the_configuration_is_read_and_own_ones_survive_writing_it() -> None:
    with pytest.raises(ConfigError, match=r"reward.name='boxd': no such reward; did you mean boxed\?; choose one of"):
        parse_config("reward: {name: boxd}")
    text = "reward: {name: 'm:f', options: {a: 1}, layers: ['m:g', {name: 'm:h', options: {b: 2}}]}"
    config = parse_config(text)
    assert [layer.options for layer in config.reward.layers] == [{}, {"b": 2}]
    assert parse_config(dump_config(config)) == config


def test_turn_rewards_of_an_own_reward_may_be_mixed_in() -> None:
    assert parse_config("credit: {adv_estimator: state_mix}\nreward: {name: 'm:f'}").credit.adv_estimator == "state_mix"
    assert (
        parse_config("credit: {adv_estimator: state_mix}\nreward: {layers: ['m:f']}").credit.adv_estimator
        == "state_mix"
    )
