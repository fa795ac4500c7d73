"""Rewards and layers from a user's own file."""

from __future__ import annotations

import asyncio
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
def huge(problem, trajectory): return 10**400
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
    (tmp_path / "custom_rewards.py").write_text(MODULE)
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
    result = grade(name=f"custom_rewards:{name}", options=options)
    assert result.value == value
    assert type(result.value) is float
    assert result.breakdown["sub_em"] == 1.0  # shipped metrics are measured for every reward
    weighed = grade(name="custom_rewards:Weighed", options={"weight": 0.25})  # a class gets its options and the codec
    assert (weighed.value, weighed.breakdown["letters"], weighed.per_turn) == (0.25, 4.0, (0.0, 1.0))


def test_shipped_metrics_beside_a_custom_reward_follow_the_rules_of_the_data() -> None:
    made = reward(name="custom_rewards:later")
    every = Problem("p", "Which?", ("tea", "rum"), metadata={"every_gold": True})
    found = asyncio.run(closing(made, made.grade(every, episode("\\boxed{tea}")))).breakdown
    assert (found["em"], found["sub_em"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text", "custom_rewards:text returned '1.0', not a number"),
        ("nan", "custom_rewards:nan returned nan as value: must be finite"),
        ("vast", "custom_rewards:vast returned 1e+308 as value: must be from -1e+09 to 1e+09"),
        ("vast_part", "custom_rewards:vast_part returned -1e+200 as breakdown['style']: must be from"),
        ("stops", "custom_rewards:stops raised RuntimeError: coroutine raised StopIteration"),
        ("raises", r"custom_rewards:raises raised KeyError: 'judge\nof many lines'"),
        ("cancels", "custom_rewards:cancels raised CancelledError"),
        ("short", "custom_rewards:short returned 1 numbers as per_turn for 2 turns"),
        ("bad_part", "custom_rewards:bad_part returned inf as breakdown['style']"),
        ("abstains", "not my language"),
        ("speechless", "custom_rewards:speechless raised Silent"),
        ("leaves", "custom_rewards:leaves raised SystemExit: 3"),
        ("huge", "custom_rewards:huge returned 1000"),
        ("no_parts", "custom_rewards:no_parts returned a Grade that palimpsest cannot read: AttributeError"),
        ("numbered", "5"),
        ("one_for_all", "custom_rewards:one_for_all returned a Grade that palimpsest cannot read: TypeError"),
        ("bare_span", "custom_rewards:bare_span returned a Grade that palimpsest cannot read: AttributeError"),
        (
            "half_token",
            "custom_rewards:half_token returned SpanReward(turn=0, start=0.5, end=1, value=1.0) as spans[0]",
        ),
        ("times_out", "custom_rewards:times_out raised TimeoutError: of its own ("),
        ("mute", "custom_rewards:mute returned a Mute that palimpsest cannot read: RuntimeError"),
    ],
)
def test_an_invalid_return_value_or_an_error_leaves_the_episode_ungraded(name: str, reason: str) -> None:
    result = grade(name=f"custom_rewards:{name}")
    assert (result.value, not result.breakdown) == (None, True)
    assert (result.reason or "").startswith(reason)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.gradable])
def test_a_lost_episode_is_ungraded_without_calling_the_reward(outcome: Outcome) -> None:
    result = grade(episode(None, outcome), name="custom_rewards:length", layers=["custom_rewards:half"])
    assert (result.value, result.reason) == (None, f"episode ended as {outcome}")


def test_layers_apply_in_order_and_only_in_training() -> None:
    layers = ["custom_rewards:half", "custom_rewards:half", "custom_rewards:marked"]
    result = grade(name="em", layers=layers)
    assert (result.value, result.breakdown) == (0.25, {"seen": 1.0})
    assert grade(name="sub_em", layers=["custom_rewards:lost", "custom_rewards:half"]).reason == "the layer lost it"
    answer = reward(name="sub_em", layers=layers).answer.grade(PROBLEM, episode())
    assert isinstance(answer, Grade)
    assert answer.value == 1.0


async def test_a_blocking_function_runs_in_one_thread_outside_the_event_loop() -> None:
    made = reward(name="custom_rewards:blocks")
    iterations = 0

    async def spin() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0.001)

    spinning = asyncio.create_task(spin())
    grades = await asyncio.gather(*(made.grade(PROBLEM, episode()) for _ in range(4)))
    spinning.cancel()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("reward")]
    await made.close()
    assert [result.value for result in grades] == [1.0] * 4
    assert iterations > 4  # blocked, it would have had at most one turn per episode
    assert len(threads) == 1
    while threads[0].is_alive():
        time.sleep(0.001)


async def test_a_call_that_never_returns_is_ungraded_and_delays_no_other() -> None:
    import custom_rewards  # type: ignore[import-not-found]

    for name in ("stuck", "never"):
        made = reward(name=f"custom_rewards:{name}", timeout_s=30)
        first = asyncio.create_task(made.grade(PROBLEM, episode("stuck")))
        second = asyncio.create_task(made.grade(PROBLEM, episode()))
        await overdue(first)
        if name == "never":
            await overdue(second)
        assert (await first).reason == f"custom_rewards:{name} did not return within 30 s, reward.timeout_s"
        assert (await second).value == (1.0 if name == "stuck" else None)
        await made.close()
    custom_rewards.FREE.set()


def test_layers_over_a_custom_reward_are_reported() -> None:
    layers = {"unsupported_penalty": 2.0, "pass_bonus": 0.2, "layers": ["custom_rewards:half"]}
    config = {"name": "custom_rewards:length", **layers}
    note = layers_note(RewardConfig.model_validate(config))
    assert "reward.unsupported_penalty=2, reward.pass_bonus=0.2, reward.layers=custom_rewards:half" in (note or "")
    assert layers_note(RewardConfig.model_validate({**config, "name": "em"})) is None
    assert layers_note(RewardConfig(name="custom_rewards:length")) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"name": "no_such_module:f"},
            "reward.name='no_such_module:f': no module 'no_such_module' here or on PYTHONPATH",
        ),
        ({"name": "custom_rewards:lenght"}, r"custom_rewards has no 'lenght'; did you mean length\?"),
        ({"name": "custom_rewards:THRESHOLD"}, "an int, not a class or a function"),
        ({"name": "custom_rewards:wrong"}, r"takes \(problem\), but palimpsest calls it with \(problem, trajectory\)"),
        ({"name": "custom_rewards:half"}, r"takes \(problem, trajectory, grade\), but palimpsest calls it with"),
        (
            {"name": "custom_rewards:Weighed"},
            "reward.options.weight is missing: custom_rewards:Weighed has no default for it",
        ),
        (
            {"name": "custom_rewards:length", "options": {"scael": 1}},
            r"reward.options.scael is unknown to custom_rewards:length; did you mean scale\?; known: scale",
        ),
        (
            {"layers": [{"name": "custom_rewards:weighed", "options": {"by": "much"}}]},
            "reward.layers.custom_rewards:weighed.by='much': must be a number",
        ),
        ({"name": "em", "options": {"scale": 1}}, "reward.name=em has none"),
        ({"layers": ["custom_rewards:length"]}, "reward.layers='custom_rewards:length': .* calls it with"),
    ],
)
def test_invalid_rewards_are_rejected_before_a_model_is_loaded(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_reward(RewardConfig.model_validate(config))


def test_an_error_of_a_class_is_reported_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"could not be made: OSError: no such file: weights.bin \(custom_rewards.py"):
        reward(name="custom_rewards:Broken")


def test_names_are_checked_when_a_configuration_is_read_and_custom_ones_survive_a_round_trip() -> None:
    with pytest.raises(ConfigError, match=r"reward.name='boxd': no such reward; did you mean boxed\?; choose one of"):
        parse_config("reward: {name: boxd}")
    config = parse_config("reward: {name: 'm:f', options: {a: 1}, layers: ['m:g', {name: 'm:h', options: {b: 2}}]}")
    assert [layer.options for layer in config.reward.layers] == [{}, {"b": 2}]
    assert parse_config(dump_config(config)) == config
    for custom in ("name: 'm:f'", "layers: ['m:f']"):  # either may give rewards of turns
        parse_config(f"credit: {{adv_estimator: state_mix}}\nreward: {{{custom}}}")
